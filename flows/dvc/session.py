"""DVC in a child process that lasts for a run and brings the stages of one checkout up to date, one by one.

DVC alone decides what has to run. Requests and replies are JSON on a socket (child.py), and so are the events of stages
(tasks/stage/events.py). What stages print is for users and is not parsed.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import selectors
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from flows import dvc
from flows.dvc import leftovers
from flows.runs.stopping import RESUME_HINT, SIGNALS, RunFailed, RunPaused, RunStopped, stop
from tasks.plan.dvc_records import default_remote, find_cache, verify_files
from tasks.plan.plan_file import Stage, read_plan
from tasks.plan.stage_kinds import STAGES_SENT
from tasks.stage.errors import PAUSED, InputError
from tasks.stage.events import EVENTS
from tasks.stage.process import RUN, Say, describe_exit
from tasks.stage.scratch import make_scratch
from tasks.stage.start import FORKS

CHILD = (sys.executable, "-P", str(Path(__file__).with_name("child.py")), "dvc")
MODULE = re.compile(r"python -m tasks\.stage\.start (\S+)")
"""Command of a stage, with its module."""
FORKED_MODULES = 3
"""Number of modules from which on a fork server saves more time than it takes."""
CHECKPOINT_SAVED = "checkpoint saved"
"""Text in the reason of a pause if the stage can continue from a checkpoint."""
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
READ_BYTES = 1 << 18
"""Maximum size of a datagram, and of a part of a stream that is read at once."""

StageLock = Callable[[str, str], contextlib.AbstractContextManager[None]]
"""Function of a stage's name and the hash of its command, parameters and inputs; it waits for the lock and holds it."""


class StageFailed(RunFailed):
    """A stage ended without its outputs. The message has its error, or its last lines if it reported none."""

    def __init__(self, stage: str, reason: str, error: str | None, tail: Sequence[str]) -> None:
        shown = "\n".join([". Its last lines:", *(f"  {line}" for line in tail)]) if error is None else f": {error}"
        super().__init__(f"stage {stage} failed ({reason}){shown.rstrip()}")


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


@dataclass(frozen=True)
class Listener:
    """Functions that receive what a stage says."""

    line: Say
    """Receives each line that it prints, and messages of DVC."""
    note: Say = lambda text: None
    """Receives notes that users must see."""
    progress: Callable[[int, str], None] = lambda percent, text: None
    """Receives the percentage that is done, 0 to 100, with a text."""


@dataclass
class _Output:
    """Receiver of what arrives while a request is answered: lines, and events of a stage."""

    listener: Listener
    paused: str | None = None
    error: str | None = None
    """Error that the stage reported."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def take_line(self, line: str) -> None:
        if line.strip():
            self.tail.append(line)
            self.listener.line(line.rstrip())

    def take_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.take_line(line)

    def take_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            self.listener.progress(event["percent"], event["text"])
        elif event["event"] == "note":
            self.listener.note(event["text"])
        elif event["event"] == "paused":
            self.paused = event["text"]
        elif event["event"] == "failed":
            self.error = event["text"]


class _Lines:
    """Lines of a stream of bytes that arrives in parts."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, part: bytes) -> list[str]:
        """Return the lines that this part completes; an empty part, the end, completes the last one."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        if not part and self._rest:
            lines, self._rest = [self._rest], b""
        return [line.decode(errors="replace") for line in lines]


class DvcSession(contextlib.AbstractContextManager["DvcSession"]):
    """Child process with DVC that answers requests about one checkout, one at a time (flows/dvc/child.py).

    It starts with the first request, and ends with the thread that made it. Use it as a context manager.
    """

    def __init__(self, root: Path, allowed: Sequence[str] | None = None, lock: StageLock | None = None) -> None:
        """Describe the session; the process is not started yet.

        Args:
            allowed: stages that may run here; others must be restored. None: all may run.
            lock: lock of equal stages on all hosts, held until a stage that has changed has run and is pushed.
        """
        self.root, self._lock = root, lock
        self.run: str | None = None
        """Identity of the run, which stages record."""
        self._variables = {} if allowed is None else {STAGES_SENT: " ".join(allowed)}
        self._process: _Child | None = None

    def __exit__(self, *error: object) -> None:
        self._close()

    def start(self) -> _Child:
        """Start the process if it is not running."""
        if self._process is None:
            self._process = _Child(self.root, {**dvc.stage_environment(), **self._variables})
        return self._process

    def _close(self) -> None:
        """End the process and its stage. The next request starts a new one."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def update(self, stage: str, listener: Listener, *, pull: bool = False) -> str:
        """Bring `stage` up to date, whose dependencies are.

        Equal stages never run at the same time on one cache: the second waits for the first and is then restored.

        Args:
            stage: a name in dvc.yaml, such as `pretrain@phase1`.
            pull: restore outputs from the remote if possible; otherwise push them.

        Returns:
            "ran", "restored" (from DVC's run-cache or the remote) or "skipped" (nothing had changed).

        Raises:
            StageFailed: the command failed, and DVC removed its outputs. Or DVC could not copy them into its cache; the
                next run makes them again.
            RunPaused: the command stopped at a checkpoint on purpose; run it again to continue.
            RunStopped: Ctrl-C or SIGTERM ended it, or came before it began, and there is no checkpoint.
            RemoteFailed: the remote is missing, is not the one seen before, or did not accept the outputs.
        """
        if stop.number:
            raise RunStopped(stage)
        output, say = _Output(listener), listener.line
        run = {} if self.run is None else {RUN: self.run}
        reply: dict[str, Any] = {"away": True}
        with contextlib.ExitStack() as locks:
            is_locked = False
            while reply.get("away"):
                if pull:
                    self._send_to_remote(f"stage {stage}: the remote {{remote}} is not available", say, "require_store")
                reply = self._send("find_key", output, stage=stage)
                if "answer" not in reply:
                    break
                if (key := reply["answer"]) is not None and not is_locked:
                    locks.enter_context(self._hold(stage, key, say))
                    is_locked = True
                with stop.forward_to(self.start().process):
                    reply = self._send("update", output, stage=stage, key=key, pull=pull, run=run)
            verdict = self._judge(stage, reply, output)
            if verdict == "ran" and pull:
                self.push([stage], listener.note)
        return verdict

    @contextlib.contextmanager
    def _hold(self, stage: str, key: str, say: Say) -> Iterator[None]:
        """Lock an equal stage on this host within the context, and on all hosts if the session has a lock for them."""
        folder = find_cache(self.root) / "podium-locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / key).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"stage {stage}: an equal stage is running on this host; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.nullcontext() if self._lock is None else self._lock(stage, key):
                yield

    def _judge(self, stage: str, reply: dict[str, Any], output: _Output) -> str:
        """Return the verdict in the reply to an update, or raise the error that it stands for."""
        done, code = reply.get("answer"), reply.get("code")
        if done is not None and not done["lost"]:
            return str(done["verdict"])
        killed = reply.get("ended") == -signal.SIGKILL  # then the kernel asked the stage to stop, no one else
        asked = CHECKPOINT_SAVED in (output.paused or "") if stop.number else not killed
        if done is None and output.paused is not None and asked:
            raise RunPaused(f"stage {stage} paused: {output.paused.removesuffix(f'; {RESUME_HINT}')}")
        if done is None and stop.number and code in (None, PAUSED, *ENDED_BY_SIGNAL):
            raise RunStopped(stage)
        if code is None:
            code = reply.get("ended", DVC_FAILED)
        reason = "DVC could not store its outputs in the cache" if done else describe_exit(code)
        self._close()  # otherwise it would count as a running DVC
        causes = _likely_causes(stage, self.root, reply.get("files", ()))
        raise StageFailed(stage, reason + causes, output.error, output.tail)

    def require_dvc(self) -> None:
        """Wait until DVC is imported.

        Raises:
            RunFailed: it cannot be imported, as with another version of a package than it needs.
        """
        output = _Output(Listener(lambda line: None))
        if self._send("ready", output).get("ended", 0) > 0 and not stop.number:
            error = "".join([*output.tail][-1:])
            raise RunFailed(
                f"DVC {metadata.version('dvc')} cannot be imported ({error}). Install the tested versions: "
                f"{sys.executable} -m pip install -c constraints/host.txt -U dvc"
            )

    def check_plan(self, plan: Sequence[str]) -> PlanStatus:
        """Return which stages are unchanged since the last run; none if another run prevents reading the status.

        DVC lists stages that changed themselves, not those that depend on them. So all stages after the first changed
        one count as changed, and all stages of the plan if a changed dependency is not in it.
        """
        try:
            reported = set(self.request("changed"))
        except DvcFailed:
            return PlanStatus([], False)
        known = read_plan(self.root)
        needed = set(known.with_upstream(plan))
        changed = needed & reported
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
        self._send_to_remote(what, say, "push", targets=list(stages))

    def _send_to_remote(self, what: str, say: Say, request: str, **arguments: Any) -> None:
        """Send a request that uses the default remote, with a few retries.

        Raises:
            RemoteFailed: every try failed; its message begins with `what`, with the remote for {remote}.
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
        output = _Output(Listener(lambda line: None))
        reply = self._send(what, output, **arguments)
        if "answer" not in reply:
            self._close()  # its view of the remote may be out of date
            raise DvcFailed("\n".join(f"  {line}" for line in output.tail))
        return reply["answer"]

    def _send(self, what: str, output: _Output, **arguments: Any) -> dict[str, Any]:
        """Send a request and pass on what arrives until it is answered.

        Returns:
            `answer`. Or, if the request failed: `code`, the exit code of a stage's command or None; `files` in which
            DVC found no parameters; `away`, whether the remote is unavailable; `ended`, DVC's exit code if it ended.
        """
        reply = self.start().ask({"do": what, **arguments}, output)
        if "ended" in reply:
            self._close()
        return reply


def open_session(
    root: Path, say: Say, allowed: Sequence[str] | None = None, lock: StageLock | None = None
) -> DvcSession:
    """Repair what a killed DVC left in a checkout; return a session in it (`DvcSession`)."""
    leftovers.repair(root, say)
    return DvcSession(root, allowed, lock)


class _Child:
    """Process of DVC, with the streams on which it and its stages answer."""

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self._folder = make_scratch(for_sockets=True)
        self._events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._events.bind(str(self._folder / "events"))
        self._replies, theirs = socket.socketpair()
        self.forks = self._folder / "forks"
        """Socket of the fork server, which may be missing."""
        environment = {**environment, EVENTS: str(self._folder / "events"), FORKS: str(self.forks)}
        with theirs:
            command = [*CHILD, str(theirs.fileno())]
            self.process = stop.start(command, root, environment, descriptors=[theirs.fileno()])
        assert self.process.stdout is not None
        self._output = self.process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._selector = selectors.DefaultSelector()
        for stream in (self._replies, self._events, self._output):
            self._selector.register(stream, selectors.EVENT_READ)
        self._lines, self._messages, self._has_ended = _Lines(), _Lines(), False

    def close(self) -> None:
        """End the process and its stage, and remove the sockets."""
        self.process.kill()
        self.process.wait()
        self._selector.close()
        for stream in (self._replies, self._events, self.process.stdout):
            assert stream is not None
            stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, request: dict[str, Any], output: _Output) -> dict[str, Any]:
        """Send a request; return its reply (`DvcSession._send`) after everything that came before it."""
        with contextlib.suppress(ConnectionError):  # it has ended; its last output, read below, says why
            self._replies.sendall(f"{json.dumps(request)}\n".encode())
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._replies in ready and (reply := self._read_replies(output)) is not None:
                return reply
            self._read_events(output)
            self._read_output(output)

    def _read_replies(self, output: _Output) -> dict[str, Any] | None:
        """Pass on the messages that are there; return the reply that ends the request, if it is there."""
        part = b""
        with contextlib.suppress(ConnectionResetError):  # it ended before it read the request
            part = self._replies.recv(READ_BYTES)
        if not part:
            return self._end(output)
        for kind, content in map(json.loads, self._messages.split(part)):
            if kind == "running":
                output.take_line(f"Running stage '{content}':")
                continue
            self._read_output(output)  # what a stage wrote before
            if kind != "say":
                self._read_events(output)
                output.take_lines(self._lines.split(b""))
                return {"answer": content} if kind == "answer" else content
            output.take_lines(content.split("\n"))
        return None

    def _end(self, output: _Output) -> dict[str, Any]:
        """Pass on the last output of a process that ended, and of its stage, which ends then."""
        os.set_blocking(self._output, True)
        self._read_output(output)
        self._read_events(output)
        return {"code": None, "ended": self.process.wait()}

    def _read_output(self, output: _Output) -> None:
        """Pass on the lines that are there, and the end of the stream if it is there."""
        with contextlib.suppress(BlockingIOError):
            while not self._has_ended:
                part = os.read(self._output, READ_BYTES)
                output.take_lines(self._lines.split(part))
                if not part:
                    self._has_ended = True
                    self._selector.unregister(self._output)

    def _read_events(self, output: _Output) -> None:
        """Pass on the events that are there."""
        with contextlib.suppress(BlockingIOError):
            while True:
                event = json.loads(self._events.recv(READ_BYTES, socket.MSG_DONTWAIT))
                self._read_output(output)  # what the stage printed before
                output.take_event(event)


@contextlib.contextmanager
def use_fork_server(session: DvcSession, stages: Sequence[Stage], root: Path) -> Iterator[None]:
    """Within the context, a fork server starts the stages of the session (tasks/stage/fork_server.py)."""
    modules = dict.fromkeys(match[1] for stage in stages if (match := MODULE.match(stage.cmd)))
    forks = session.start().forks
    if len(modules) < FORKED_MODULES or sys.platform != "linux":
        yield
        return
    command = [sys.executable, "-m", "tasks.stage.fork_server", str(forks), *modules]
    server = stop.start(command, root, dvc.stage_environment())
    try:
        yield
    finally:
        server.kill()
        server.wait()


def _likely_causes(stage: str, root: Path, files: Sequence[str]) -> str:
    """Return likely causes of a failure beyond DVC's message, each preceded by "; ": full disks and damaged files.

    One of `files` has no valid parameters. DVC reads parameters of a stage (for compile, the manifest of rows) before
    any of our code can check the file.
    """
    plan = read_plan(root)
    outs = plan[stage].outs if stage in plan else ()
    full: dict[int, Path] = {}
    for folder in [root, find_cache(root), *(root / Path(out).parent for out in outs)]:
        while not folder.exists():
            folder = folder.parent
        state = os.statvfs(folder)
        if state.f_bavail * state.f_frsize < FULL_BELOW:
            full.setdefault(folder.stat().st_dev, folder)
    causes = [f"No space left on device: the disk of {path} is full; free some space" for path in full.values()]
    for name in files:
        try:
            verify_files([str(parent) for parent in (Path(name), *Path(name).parents)], root)
        except InputError as error:
            causes.append(str(error))
    return "".join(f"; {cause}" for cause in causes)


def restore_outputs(stages: Sequence[str], root: Path, say: Say) -> str | None:
    """Restore the outputs of `stages` recorded in dvc.lock; return DVC's error if they are in no cache or remote."""
    with open_session(root, say) as session:
        try:
            if default_remote(root) is not None:
                session.request("require_store")
            session.request("pull", targets=list(stages))
        except DvcFailed as error:
            return str(error)
    return None
