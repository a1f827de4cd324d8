"""DVC in a child process that lasts for a run and brings the stages of one checkout up to date, one by one.

DVC alone decides what has to run. Only the replies of child.py are parsed, never other output of DVC.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from flows import dvc
from flows.dvc import leftovers
from flows.runs.stopping import RESUME_HINT, SIGNALS, RunFailed, RunPaused, RunStopped, stop
from tasks.plan.dvc_records import default_remote, find_cache, verify_files
from tasks.plan.plan_file import Stage, read_plan
from tasks.plan.stage_kinds import STAGES_SENT
from tasks.stage.errors import PAUSED as PAUSED_CODE
from tasks.stage.errors import InputError
from tasks.stage.process import RUN, Say, describe_exit

CHILD = (sys.executable, "-P", str(Path(__file__).with_name("child.py")), "dvc")
PROGRESS = re.compile(r"^\[\s*(\d{1,3})%\]")
"""Prefix of a stage's progress lines (tasks/jobs/device_job.py)."""
ERROR = "error: "
"""Prefix of a stage's error message (tasks/plan/main.py)."""
PAUSED = "paused: "
"""Prefix of the line in which a stage says why it stopped early on purpose, after writing its checkpoint."""
CHECKPOINT_SAVED = "checkpoint saved"
"""Text in that line if the stage can continue from a checkpoint."""
MODULE = re.compile(r"python -m (\S+)")
"""Command of a stage, with its module."""
FORKED_MODULES = 3
"""Number of modules from which on a fork server saves more time than it takes."""
ENDED_BY_SIGNAL = tuple(code for number in SIGNALS for code in (-number, 128 + number))
"""Exit codes of stages that a signal ended. bash replaces itself with the command; other shells return 128 + signal."""
DVC_FAILED = 255
"""Exit code of a DVC that fails by itself."""
KEPT_LINES = 25
"""Number of last output lines in the error of a failed stage."""
REMOTE_WAITS = (5.0, 20.0, 60.0)
"""Seconds before each retry of a remote."""
FULL_BELOW = 64 * 1024
"""Bytes of free space below which a disk counts as full."""

StageLock = Callable[[str, str], bool]
"""Function of a stage's name and the hash of its command, parameters and inputs; returns whether it had to wait."""


class StageFailed(RunFailed):
    """A stage ended without its outputs. The message has its last error and what follows it, or its last lines."""

    def __init__(self, stage: str, reason: str, tail: list[str]) -> None:
        first, errors = ". Its last lines:", [index for index, line in enumerate(tail) if line.startswith(ERROR)]
        if errors:
            first, *tail = tail[errors[-1] :]
            first = f": {first.removeprefix(ERROR)}"
        shown = "\n".join([first, *(f"  {line}" for line in tail)]).rstrip()
        super().__init__(f"stage {stage} failed ({reason}){shown}")


class DvcFailed(Exception):
    """A request to DVC failed. The message has DVC's last lines of output."""


class RemoteFailed(RunFailed):
    """The remote is unavailable or did not accept a push. The outputs are safe in the cache of this host."""


@dataclass(frozen=True)
class PlanStatus:
    """Status of a plan."""

    unchanged: list[str]
    """Leading stages of the plan that are up to date."""
    is_complete: bool
    """Every dependency of the plan's stages is in the plan, or is up to date and stays so."""


@dataclass
class _StageOutput:
    say: Say
    progress: Callable[[float], None]
    paused: str | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def take(self, line: str) -> None:
        """Forward a line, and look for progress or a pause in it."""
        if line.startswith(PAUSED):
            self.paused = line[len(PAUSED) :].strip()
        if share := PROGRESS.match(line):
            self.progress(float(share[1]))
        if line.strip():
            self.tail.append(line)
            self.say(line.rstrip())


class DvcSession(contextlib.AbstractContextManager["DvcSession"]):
    """Child process with DVC that answers requests about one checkout, one at a time (flows/dvc/child.py).

    It starts with the first request, and ends with the thread that made it. Use it as a context manager; leaving the
    context ends a pending request.
    """

    def __init__(
        self,
        root: Path,
        allowed: Sequence[str] | None = None,
        wait_for_lock: bool = False,
        lock: StageLock | None = None,
    ) -> None:
        """Describe the session; the process is not started yet.

        Args:
            allowed: stages that may run here; others must be restored. None: all may run.
            wait_for_lock: wait while another DVC holds the repository lock; otherwise fail after a few seconds.
            lock: called before a stage runs; returns once no other host runs an equal one.
        """
        self.root, self._lock = root, lock
        self.run: str | None = None
        """Identity of the run, which stages record."""
        self._mark = secrets.token_hex(8)
        """Random prefix of replies, which stages cannot know."""
        self._arguments = [self._mark, *(["--wait-for-lock"] if wait_for_lock else [])]
        self._variables = {} if allowed is None else {STAGES_SENT: " ".join(allowed)}
        self._process: subprocess.Popen[str] | None = None
        self._forks: socket.socket | None = None
        """Other end of the socket on which the process asks the fork server for stages."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def start(self) -> subprocess.Popen[str]:
        """Start the process if it is not running."""
        if self._process is None:
            environment, words, descriptors = {**dvc.stage_environment(), **self._variables}, self._arguments, []
            with contextlib.ExitStack() as held:
                if sys.platform == "linux":
                    self._forks, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    descriptors = [held.enter_context(end).fileno()]
                    words = [*words, "--forks", str(end.fileno())]
                command = [*CHILD, *words]
                self._process = stop.start(command, self.root, environment, subprocess.PIPE, descriptors=descriptors)
        return self._process

    def take_forks(self) -> socket.socket | None:
        """Return the other end of the socket for the fork server, once. Without a server, it has to be closed."""
        forks, self._forks = self._forks, None
        return forks

    def end(self) -> None:
        """End the process and its stage. A request that another thread waits for fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        """End the process and close its streams. The next request starts a new one."""
        self.end()
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError), self._process:
                self._process = None

    def update(
        self, stage: str, say: Say, progress: Callable[[float], None], *, pull: bool = False, single: bool = False
    ) -> str:
        """Bring `stage` and its dependencies up to date.

        Args:
            stage: a name in dvc.yaml, such as `pretrain@phase1`.
            progress: called with the percentage, 0 to 100, when the stage reports it.
            pull: restore outputs from the remote if possible.
            single: its dependencies are up to date.

        Returns:
            "ran", "restored" (from DVC's run-cache or the remote) or "skipped" (nothing had changed).

        Raises:
            StageFailed: the command failed, and DVC removed its outputs. Or DVC could not copy them into its cache; the
                next run makes them again.
            RunPaused: the command stopped at a checkpoint on purpose; run it again to continue.
            RunStopped: Ctrl-C or SIGTERM ended it, or came before it began, and there is no checkpoint.
            RemoteFailed: the remote is missing or is not the one seen before.
        """
        if stop.number:
            raise RunStopped(stage)
        output, known = _StageOutput(say, progress), {} if self.run is None else {RUN: self.run}
        self._send("ready", lambda line: None)  # import DVC before signals are forwarded
        if forks := self.take_forks():
            forks.close()
        reply: dict[str, Any] = {"away": True}
        while reply.get("away"):
            if pull:
                self._send_to_remote(f"stage {stage}: the remote {{remote}} is not available", say, "require_store")
            with stop.forward_to(self.start()):
                reply = self._send("update_stage", output.take, stage=stage, pull=pull, single=single, run=known)
        done, code = reply.get("answer"), reply.get("code")
        if done is not None and not done["lost"]:
            return str(done["verdict"])
        killed = reply.get("ended") == -signal.SIGKILL  # then the kernel asked the stage to stop, no one else
        asked = CHECKPOINT_SAVED in (output.paused or "") if stop.number else not killed
        if done is None and output.paused is not None and asked:
            raise RunPaused(f"stage {stage} paused: {output.paused.removesuffix(f'; {RESUME_HINT}')}")
        if done is None and stop.number and code in (None, PAUSED_CODE, *ENDED_BY_SIGNAL):
            raise RunStopped(stage)
        if code is None:
            code = reply.get("ended", DVC_FAILED)
        reason = "DVC could not store its outputs in the cache" if done else describe_exit(code)
        self._close()  # otherwise it would count as a running DVC
        raise StageFailed(stage, reason + _likely_causes(stage, self.root, reply.get("files", ())), list(output.tail))

    def require_dvc(self) -> None:
        """Wait until DVC is imported.

        Raises:
            RunFailed: it cannot be imported, as with another version of a package than it needs.
        """
        lines: deque[str] = deque(maxlen=1)
        if self._send("ready", lines.append).get("ended", 0) > 0 and not stop.number:
            raise RunFailed(
                f"DVC {metadata.version('dvc')} cannot be imported ({''.join(lines)}). Install the tested versions: "
                f"{sys.executable} -m pip install -c constraints/host.txt -U dvc"
            )

    def check_plan(self, plan: Sequence[str]) -> PlanStatus:
        """Return which stages are unchanged since the last run; none if another run prevents reading the status.

        DVC lists stages that changed themselves, not those that depend on them. So all stages after the first changed
        one count as changed, and all stages of the plan if a changed dependency is not in it.

        Args:
            plan: stages of dvc.yaml, each after its dependencies.
        """
        try:
            found = set(self.request("changed"))
        except DvcFailed:
            return PlanStatus([], False)
        known = read_plan(self.root)
        needed = set(known.with_upstream(plan))
        changed = needed & found
        if not changed <= set(plan):  # any stage of the plan may depend on it
            return PlanStatus([], False)
        unchanged = list(itertools.takewhile(lambda stage: stage not in changed, plan))
        may_change = set(known.with_upstream(needed - set(plan))) & set(plan) - set(unchanged)
        return PlanStatus(unchanged, not may_change)

    def push(self, stages: Sequence[str], say: Say) -> None:
        """Copy the outputs of `stages` and their run-cache entries to the default remote.

        A failed push is retried a few times, for about a minute and a half.

        Raises:
            RemoteFailed: the remote did not accept them. They are safe in the cache of this host.
        """
        what = f"the remote {{remote}} did not accept the outs of {', '.join(stages)}"
        self._send_to_remote(what, say, "push", targets=list(stages), run_cache=True)

    def _send_to_remote(self, what: str, say: Say, request: str, **arguments: Any) -> None:
        """Send a request that uses the default remote, with a few retries.

        Args:
            what: message for a failure, with {remote} for the remote.

        Raises:
            RemoteFailed: every try failed.
        """
        # Imported here as it is slow to import, and only runs with a remote need it.
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_chain, wait_fixed

        name, url = default_remote(self.root) or ("?", "?")
        what = what.format(remote=f"{name} ({url})")
        tries = Retrying(
            retry=retry_if_exception_type(DvcFailed),
            wait=wait_chain(*map(wait_fixed, REMOTE_WAITS)),
            stop=stop_after_attempt(len(REMOTE_WAITS) + 1),
            before_sleep=lambda state: say(f"{what}; retrying in {state.upcoming_sleep:.0f} s"),
            reraise=True,
        )
        try:
            tries(self.request, request, **arguments)
        except DvcFailed as error:
            raise RemoteFailed(
                f"{what}. The outputs are in the cache of this host: restore the remote and run again; nothing is "
                f"computed twice. DVC's error:\n{error}"
            ) from None

    def request(self, what: str, **arguments: Any) -> Any:
        """Send a request and return the answer; raise DvcFailed with DVC's last lines of output if it fails."""
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        reply = self._send(what, lines.append, **arguments)
        if "answer" not in reply:
            self._close()  # its view of the remote may be out of date
            raise DvcFailed("\n".join(f"  {line}" for line in lines))
        return reply["answer"]

    def _send(self, what: str, take: Say, **arguments: Any) -> dict[str, Any]:
        """Send a request and forward its output until it is answered.

        Returns:
            `answer`. Or, if the request failed: `code`, the exit code of a stage's command or None; `files` in which
            DVC found no parameters; `away`, whether the remote is unavailable; `ended`, DVC's exit code if it ended.
        """
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its last output, read below, says why
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


@contextlib.contextmanager
def use_fork_server(sessions: Sequence[DvcSession], stages: Sequence[Stage], root: Path) -> Iterator[None]:
    """Within the context, a fork server starts the stages of the sessions (tasks/stage/fork_server.py)."""
    modules = dict.fromkeys(match[1] for stage in stages if (match := MODULE.match(stage.cmd)))
    if len(modules) < FORKED_MODULES or sys.platform != "linux":
        yield
        return
    for session in sessions:
        session.start()
    ends = [end for session in sessions if (end := session.take_forks())]
    numbers = [end.fileno() for end in ends]
    command = [sys.executable, "-m", "tasks.stage.fork_server", ",".join(map(str, numbers)), *modules]
    server = stop.start(command, root, dvc.stage_environment(), descriptors=numbers)
    for end in ends:
        end.close()
    try:
        yield
    finally:
        server.kill()
        server.wait()


def _likely_causes(stage: str, root: Path, files: Sequence[str]) -> str:
    """Return likely causes of a failure beyond DVC's message, each preceded by "; ": full disks and damaged files.

    Args:
        files: files of which one has no valid parameters. DVC reads parameters of a stage (for compile, the manifest of
            rows) before any of our code can check the file.
    """
    plan = read_plan(root)
    outs = plan[stage].outs if stage in plan else ()
    full: dict[int, Path] = {}
    for place in [root, find_cache(root), *(root / Path(out).parent for out in outs)]:
        while not place.exists():
            place = place.parent
        state = os.statvfs(place)
        if state.f_bavail * state.f_frsize < FULL_BELOW:
            full.setdefault(place.stat().st_dev, place)
    causes = [f"No space left on device: the disk of {place} is full; free some space" for place in full.values()]
    for name in files:
        try:
            verify_files([str(parent) for parent in (Path(name), *Path(name).parents)], root)
        except InputError as error:
            causes.append(str(error))
    return "".join(f"; {cause}" for cause in causes)


def restore_outputs(stages: Sequence[str], root: Path, say: Say) -> str | None:
    """Restore the outputs of `stages` recorded in dvc.lock; return DVC's error if they are in no cache or remote."""
    leftovers.repair(root, say)
    with DvcSession(root) as session:
        try:
            if default_remote(root) is not None:
                session.request("require_store")
            session.request("pull", targets=list(stages))
        except DvcFailed as error:
            return str(error)
    return None
