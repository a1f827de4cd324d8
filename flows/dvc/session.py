"""DVC as a child process that stays for a run: it is asked about one checkout, and brings its stages up to date one by
one. DVC alone decides what has to run. Nothing that DVC prints is read."""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import json
import os
import re
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from flows import dvc
from flows.dvc import leftovers
from flows.stopping import AGAIN, SIGNALS, RunFailed, stop
from tasks.project import dvc_records
from tasks.project.errors import PAUSED as PAUSED_CODE
from tasks.project.errors import InputError
from tasks.project.plan_file import read_plan
from tasks.project.process import Say, describe_exit
from tasks.project.stage_kinds import STAGES_SENT, cache_of, default_remote
from tasks.project.usage import RUN

CHILD = (sys.executable, "-P", str(Path(__file__).with_name("child.py")), "dvc")
PROGRESS = re.compile(r"^\[\s*(\d{1,3})%\]")
"""How stages begin a line that says how far they are (tasks/jobs/device_job.py)."""
ERROR = "error: "
"""How a stage begins what went wrong (tasks/project/main.py)."""
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


class StageFailed(Exception):
    """A stage ended without its outputs; the message holds its own error, or the last lines it printed."""

    def __init__(self, stage: str, reason: str, tail: list[str]) -> None:
        self.stage = stage
        super().__init__(f"stage {stage} failed ({reason}){_own_words(tail)}")


def _own_words(tail: list[str]) -> str:
    """From the error that a stage states to the end; all of its last lines where it states none."""
    stated = [index for index, line in enumerate(tail) if line.startswith(ERROR)]
    if not stated:
        return ". Its last lines:\n" + "\n".join(f"  {line}" for line in tail).rstrip()
    first, *more = tail[stated[-1] :]
    return "\n".join([f": {first[len(ERROR) :]}", *(f"  {line}" for line in more)]).rstrip()


class StagePaused(Exception):
    """A stage stopped before its end on purpose, and continues from its checkpoint when it is run again."""

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        super().__init__(f"stage {stage} paused: {reason.removesuffix(f'; {AGAIN}')}")


class StageStopped(Exception):
    """Ctrl-C or SIGTERM ended a stage that had nothing to keep."""


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


class _Lines:
    """The lines that come from a child, each as soon as its end has come."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor, self.is_open = descriptor, True
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), True)
        self._text = ""

    def read(self) -> Iterator[str]:
        """Yield the lines that are there now."""
        while self.is_open:
            try:
                block = os.read(self.descriptor, io.DEFAULT_BUFFER_SIZE)
            except BlockingIOError:
                return
            self.is_open = bool(block)
            *lines, self._text = (self._text + self._decoder.decode(block, final=not block)).split("\n")
            yield from lines

    def read_to_end(self) -> Iterator[str]:
        """Yield the lines that are there now, the last one though its end has not come."""
        yield from self.read()
        rest, self._text = self._text, ""
        yield from filter(None, [rest])


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
        self._options = [*(["--wait-for-lock"] if waits else []), *(["--ask"] if lock is not None else [])]
        told = {STAGES_SENT: None if sent is None else " ".join(sent), RUN: run}
        self._told = {name: value for name, value in told.items() if value is not None}
        self._process: subprocess.Popen[str] | None = None
        self._streams = contextlib.ExitStack()

    def __enter__(self) -> DvcSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def start(self) -> subprocess.Popen[str]:
        """Start the process if there is none."""
        if self._process is None:
            replies, theirs = os.pipe()
            try:
                command = [*CHILD, str(theirs), *self._options]
                environment = {**dvc.environment(), **self._told}
                self._process = stop.start(command, self.root, environment, subprocess.PIPE, [theirs])
            finally:
                os.close(theirs)
                self._streams.callback(os.close, replies)
            self._streams.enter_context(contextlib.suppress(BrokenPipeError))
            self._streams.enter_context(self._process)  # closes its streams
            assert self._process.stdout is not None
            self._replies, self._output = _Lines(replies), _Lines(self._process.stdout.fileno())
        return self._process

    def end(self) -> None:
        """End the process, and the stage with it; a request that another thread waits for fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        """End the process, and close what it was heard by; the next request starts another."""
        self.end()
        self._streams.close()
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
            StagePaused: the command stopped at a checkpoint on purpose; running it again continues.
            StageStopped: Ctrl-C or SIGTERM ended it, or came before it began, and there is no checkpoint.
            RemoteFailed: the remote is not the one that was there before.
        """
        if stop.number:
            raise StageStopped(stage)
        heard = _Heard(say, progress)
        self.start()
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
            raise StagePaused(stage, heard.paused)
        if done is None and stop.number and code in (None, PAUSED_CODE, *ENDED_BY_SIGNAL):
            raise StageStopped(stage)
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
        self.start()
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
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and what it printed last says why
            self._process.stdin.write(f"{json.dumps({'do': what, **arguments})}\n")
        with selectors.DefaultSelector() as selector:
            for stream in (self._replies, self._output):
                selector.register(stream.descriptor, selectors.EVENT_READ, stream)
            while selector.get_map():
                ready = [key.data for key, _ in selector.select()]
                for reply in map(json.loads, self._replies.read()):
                    if "say" in reply:
                        take(reply["say"])
                        continue
                    if "lock" in reply:
                        assert self._lock is not None
                        self._process.stdin.write(f"{json.dumps(self._lock(*reply['lock']))}\n")
                        continue
                    for line in self._output.read_to_end():
                        take(line)
                    return reply if "answer" in reply else reply["failed"]
                for line in self._output.read():
                    take(line)
                for stream in ready:
                    if not stream.is_open:
                        selector.unregister(stream.descriptor)
        for line in self._output.read_to_end():
            take(line)
        ended = self._process.wait()
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
