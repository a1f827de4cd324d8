"""DVC as a child process that stays for a run: it is asked about one checkout, and brings its stages up to date one by
one. DVC alone decides what has to run. Nothing that DVC prints is read but the replies of child.py."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from flows import dvc
from flows.dvc import leftovers
from flows.runs.stopping import AGAIN, SIGNALS, RunFailed, RunPaused, RunStopped, stop
from tasks.plan import dvc_records
from tasks.plan.dvc_records import cache_of, default_remote
from tasks.plan.plan_file import read_plan
from tasks.plan.stage_kinds import STAGES_SENT
from tasks.stage.errors import PAUSED as PAUSED_CODE
from tasks.stage.errors import InputError
from tasks.stage.process import RUN, Say, describe_exit

CHILD = (sys.executable, "-P", str(Path(__file__).with_name("child.py")), "dvc")
PROGRESS = re.compile(r"^\[\s*(\d{1,3})%\]")
"""How stages begin a line that says how far they are (tasks/jobs/device_job.py)."""
ERROR = "error: "
"""How a stage begins what went wrong (tasks/plan/main.py)."""
PAUSED = "paused: "
"""How a stage begins the line that says why it stopped on purpose before its end, its checkpoint written."""
HELD = "a checkpoint holds"
"""What that line says where there is something to continue from."""
ENDED_BY_SIGNAL = tuple(code for number in SIGNALS for code in (-number, 128 + number))
"""Exit codes: bash becomes the command, other shells say it in their own code."""
DVC_FAILED = 255
"""The exit code of a DVC that fails by itself."""
KEPT_LINES = 25
"""Lines of a failure that its error repeats."""
REMOTE_WAITS = (5.0, 20.0, 60.0)
"""Seconds before each new try of a remote; it is often back by then."""
LITTLE = 64 * 1024
"""Bytes; a disk with less room than this is full for every writer here."""

Lock = Callable[[str, str], bool]
"""Takes the name of a stage and the hash of its command, parameters and inputs; returns whether another host had it."""


class StageFailed(RunFailed):
    """A stage ended without its outputs; the message holds its own error, or the last lines it printed."""

    def __init__(self, stage: str, reason: str, tail: list[str]) -> None:
        super().__init__(f"stage {stage} failed ({reason}){_own_words(tail)}")


def _own_words(tail: list[str]) -> str:
    """From the error that a stage states to the end; all of its last lines where it states none."""
    stated = [index for index, line in enumerate(tail) if line.startswith(ERROR)]
    if not stated:
        return ". Its last lines:\n" + "\n".join(f"  {line}" for line in tail).rstrip()
    first, *more = tail[stated[-1] :]
    return "\n".join([f": {first[len(ERROR) :]}", *(f"  {line}" for line in more)]).rstrip()


class DvcFailed(Exception):
    """DVC could not do what it was asked; the message holds its last lines."""


class RemoteFailed(RunFailed):
    """The remote is away, or did not take what stages made; that is safe in the cache of this host."""


@dataclass(frozen=True)
class Look:
    """What has to be done for a plan."""

    unchanged: list[str]
    """The first stages of the plan for which DVC would run nothing."""
    is_complete: bool
    """Whatever the plan's stages read is made by one of them, or is up to date and stays so."""


@dataclass
class _Heard:
    """What a stage printed."""

    say: Say
    progress: Callable[[float], None]
    paused: str | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def take(self, line: str) -> None:
        """Pass a line on."""
        if line.startswith(PAUSED):
            self.paused = line[len(PAUSED) :].strip()
        if share := PROGRESS.match(line):
            self.progress(float(share[1]))
        if line.strip():
            self.tail.append(line)
            self.say(line.rstrip())


class DvcSession:
    """A process that imports DVC and answers requests about one checkout, one at a time (flows/dvc/child.py).

    It starts with the first request, and ends with the thread that made it. A context; to leave it ends a request that
    is still at work.
    """

    def __init__(
        self,
        root: Path,
        sent: Sequence[str] | None = None,
        waits: bool = False,
        lock: Lock | None = None,
        run: str | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            root: the checkout's folder.
            sent: the stages that may run here; others must be restored. None: all may.
            waits: while another DVC does the bookkeeping of a stage; else a few seconds, and then fails.
            lock: is called before a stage runs, and returns once no other host runs an equal one.
            run: what the stages record as the run that makes them.
        """
        self.root, self._lock = root, lock
        self._mark = secrets.token_hex(8)
        """Before each reply; no stage can know it."""
        self._words = [self._mark, *(["--wait-for-lock"] if waits else [])]
        told = {STAGES_SENT: None if sent is None else " ".join(sent), RUN: run}
        self._told = {name: value for name, value in told.items() if value is not None}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> DvcSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def start(self) -> subprocess.Popen[str]:
        """Start the process if there is none."""
        if self._process is None:
            environment = {**dvc.environment(), **self._told}
            self._process = stop.start([*CHILD, *self._words], self.root, environment, subprocess.PIPE)
        return self._process

    def end(self) -> None:
        """End the process, and the stage with it; a request that another thread waits for fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        """End the process, and close its streams; the next request starts another."""
        self.end()
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError), self._process:
                self._process = None

    def update(
        self, stage: str, say: Say, progress: Callable[[float], None], *, pull: bool = False, alone: bool = False
    ) -> str:
        """Bring `stage` up to date, and what it needs.

        Args:
            stage: a name of dvc.yaml, such as `pretrain@phase1`.
            say: takes every line for people.
            progress: takes the share that is done, 0 to 100, whenever the stage says it.
            pull: restore from the remote what can be.
            alone: what it needs is up to date.

        Returns:
            "ran", "restored" (from DVC's run-cache or the remote) or "skipped" (nothing had changed).

        Raises:
            StageFailed: the command failed; its outputs are as DVC leaves them, absent. Or DVC could not copy them into
                its cache; the next run makes them again.
            RunPaused: the command stopped at a checkpoint on purpose; running it again continues.
            RunStopped: Ctrl-C or SIGTERM ended it, or came before it began, and there is no checkpoint.
            RemoteFailed: the remote is not the one that was there before.
        """
        if stop.number:
            raise RunStopped(stage)
        heard = _Heard(say, progress)
        self._ask("ready", lambda line: None)  # a signal could meet it while it imports DVC
        reply: dict[str, Any] = {"away": True}
        while reply.get("away"):
            if pull:
                self._ask_remote(f"stage {stage}: the remote {{remote}} is not there", say, "require_store")
            with stop.passed_to(self.start()):
                reply = self._ask("update_stage", heard.take, stage=stage, pull=pull, alone=alone)
        done, code = reply.get("answer"), reply.get("code")
        if done is not None and not done["lost"]:
            return str(done["verdict"])
        if done is None and heard.paused is not None and (not stop.number or HELD in heard.paused):
            raise RunPaused(f"stage {stage} paused: {heard.paused.removesuffix(f'; {AGAIN}')}")
        if done is None and stop.number and code in (None, PAUSED_CODE, *ENDED_BY_SIGNAL):
            raise RunStopped(stage)
        if code is None:
            code = reply.get("ended", DVC_FAILED)
        reason = "DVC could not keep what it made in its cache" if done else describe_exit(code)
        self._close()  # it would count as a DVC at work
        raise StageFailed(stage, reason + _explain(stage, self.root, reply.get("files", ())), list(heard.tail))

    def look(self, plan: Sequence[str]) -> Look:
        """Return what changed since the last run; a status that cannot be read (another run at work) says nothing.

        DVC names a stage that itself changed, not those that come after it: all from the first such stage on count as
        changed, and all of them where one changed that `plan` needs and lacks.

        Args:
            plan: stages of dvc.yaml, each after those it needs.
        """
        try:
            found = set(self._require("changed"))
        except DvcFailed:
            return Look([], False)
        known = read_plan(self.root)
        needed = set(known.behind(plan))
        changed = needed & found
        if not changed <= set(plan):  # then so may all of them that need it
            return Look([], False)
        unchanged = list(itertools.takewhile(lambda stage: stage not in changed, plan))
        may_change = set(known.behind(needed - set(plan))) & set(plan) - set(unchanged)
        return Look(unchanged, not may_change)

    def push(self, stages: Sequence[str], say: Say) -> None:
        """Copy the outputs of `stages`, and the run-cache that names them, to the default remote.

        A remote that does not answer is tried again a few times, over about a minute and a half.

        Raises:
            RemoteFailed: it did not take them; they are safe in the cache of this host.
        """
        what = f"the remote {{remote}} did not take the outs of {', '.join(stages)}"
        self._ask_remote(what, say, "push", targets=list(stages), run_cache=True)

    def _ask_remote(self, what: str, say: Say, request: str, **arguments: Any) -> None:
        """Ask for something of the default remote; where that fails, again a few times.

        Args:
            what: what to say of a failure; {remote} stands for the remote.
            say: takes lines for people.
            request: what is asked, with its arguments.

        Raises:
            RemoteFailed: it failed every time.
        """
        # Imported here: it takes a while, and a run without a remote needs it not.
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_chain, wait_fixed

        name, url = default_remote(self.root) or ("?", "?")
        what = what.format(remote=f"{name} ({url})")
        tries = Retrying(
            retry=retry_if_exception_type(DvcFailed),
            wait=wait_chain(*map(wait_fixed, REMOTE_WAITS)),
            stop=stop_after_attempt(len(REMOTE_WAITS) + 1),
            before_sleep=lambda state: say(f"{what}; again in {state.upcoming_sleep:.0f} s"),
            reraise=True,
        )
        try:
            tries(self._require, request, **arguments)
        except DvcFailed as error:
            raise RemoteFailed(
                f"{what}. What was made is in the cache of this host: bring the remote back and run again, nothing is "
                f"computed twice. DVC said:\n{error}"
            ) from None

    def restore(self, stages: Sequence[str]) -> None:
        """Restore the outputs that dvc.lock states for `stages`.

        Raises:
            DvcFailed: some are neither in the cache nor at the remote.
        """
        if default_remote(self.root) is not None:
            self._require("require_store")
        self._require("pull", targets=list(stages))

    def _require(self, what: str, **arguments: Any) -> Any:
        """Ask for something that prints nothing; returns the answer."""
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        reply = self._ask(what, lines.append, **arguments)
        if "answer" not in reply:
            self._close()  # what it keeps of a remote may be out of date
            raise DvcFailed("\n".join(f"  {line}" for line in lines))
        return reply["answer"]

    def _ask(self, what: str, take: Say, **arguments: Any) -> dict[str, Any]:
        """Send a request, and pass on what comes until it is answered.

        Returns:
            `answer`; or, where it failed, `code`: what the command of a stage ended with, None where none did; `files`,
            in which DVC found no parameters; whether the remote is `away`; and what DVC itself `ended` with, if it did.
        """
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and what it printed last says why
            process.stdin.write(f"{json.dumps({'do': what, **arguments})}\n")
        for line in process.stdout:
            text, mark, reply = line.rstrip("\n").partition(self._mark)
            if text or not mark:
                take(text)
            if not mark:
                continue
            kind, content = json.loads(reply)
            if kind == "say":
                take(content)
            elif kind == "lock":
                had = self._lock is not None and self._lock(*content)
                process.stdin.write(f"{json.dumps(had)}\n")
            else:
                return {"answer": content} if kind == "answer" else content
        ended = process.wait()
        self._close()
        return {"code": None, "ended": ended}


def _explain(stage: str, root: Path, files: Sequence[str]) -> str:
    """What is known beyond DVC's own words, each part behind "; ". Empty where nothing is.

    Args:
        stage: the stage that failed.
        root: the checkout.
        files: those among which one holds no parameters. DVC reads parameters of a stage (compile: the manifest of
            rows) before any of our code may look at the file.
    """
    return "".join(f"; {part}" for part in (*_full_disks(stage, root), *_damaged(root, files)))


def _full_disks(stage: str, root: Path) -> Iterable[str]:
    """Names the folders of a failed stage whose disk has no room left."""
    plan = read_plan(root)
    outs = plan[stage].outs if stage in plan else ()
    places = [root, cache_of(root), *(root / Path(out).parent for out in outs)]
    full: dict[int, Path] = {}
    for place in places:
        while not place.exists():
            place = place.parent
        state = os.statvfs(place)
        if state.f_bavail * state.f_frsize < LITTLE:
            full.setdefault(place.stat().st_dev, place)
    return [f"No space left on device: the disk of {place} is full, make room there" for place in full.values()]


def _damaged(root: Path, files: Sequence[str]) -> Iterable[str]:
    """Looks at files that DVC could not read parameters from, as stages look at what they read."""
    for name in files:
        try:
            dvc_records.require([str(parent) for parent in (Path(name), *Path(name).parents)], root)
        except InputError as error:
            yield str(error)


def restore(stages: Sequence[str], root: Path, say: Say) -> str | None:
    """Restore the outputs that dvc.lock states for `stages`; None when they are here, else what DVC said."""
    leftovers.mend(root, say)
    with DvcSession(root) as session:
        try:
            session.restore(stages)
        except DvcFailed as error:
            return str(error)
    return None
