"""Handling of Ctrl-C, SIGTERM and SIGHUP (a lost terminal) while a command runs the pipeline.

Running stages, each in its own process group, are asked to stop and get time to write a checkpoint; their last line
says whether they did. Without a running stage the command ends immediately. A second Ctrl-C kills the stages, or
this process if none runs.

On a worker these handlers are not installed, as the worker ends its own processes (flows/workers/worker.py).
"""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from tasks.stage.process import die_with_parent

STOP_TIMEOUT_S = 600
"""Seconds that a stage may take to stop: the current call on IPUs, up to 90 s, and a checkpoint of a large model on a
slow disk. Keep it equal to TimeoutStopSec in deploy/podium-worker@.service."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS_BETWEEN_CHECKS = 1.0
"""Time between two calls that ask whether a child ends early."""
SECONDS_TO_FORK = 0.01
"""Time after which a signal that arrived during a fork counts."""
RESUME_HINT = "run it again to continue"
CANCELLED_IN_PREFECT = "a cancellation in Prefect"


class RunFailed(Exception):
    """A stage or publish failed, which ends the run. The message has the reason."""


class RunPaused(Exception):
    """A stage stopped at a checkpoint on purpose. Run again to continue there."""


class RunStopped(Exception):
    """Ctrl-C or SIGTERM ended a stage without a checkpoint. The message is its name."""


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to end while no stage was running that could write a checkpoint."""


class StopSignal:
    """Signal state of this process, and the children that signals are forwarded to."""

    def __init__(self) -> None:
        self.number = 0
        """First signal received; 0: none."""
        self.listens = False
        self.is_cancelled = False
        """True if it was cancelled on the Prefect server."""
        self._children: list[subprocess.Popen[str]] = []
        self._is_forking = False
        self._postponed = 0
        """Signal received while the main thread forked; 0: none."""
        os.register_at_fork(
            before=lambda: self._mark_fork(True),
            after_in_parent=lambda: self._mark_fork(False),
            after_in_child=lambda: self._mark_fork(False),
        )

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Handle SIGNALS within the context. Outside the main thread this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.number, self.listens = 0, True
        with self._installed():
            try:
                yield
            finally:
                self.listens = False

    @contextlib.contextmanager
    def reclaim(self) -> Iterator[None]:
        """Within a flow, replace Prefect's SIGTERM handler with ours if this process is listening."""
        with self._installed() if self.listens else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        # A shell script that starts this command with & makes it ignore SIGINT, and nohup SIGHUP; keep that.
        heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        handlers = {number: signal.signal(number, self._on_signal) for number in (*heard, signal.SIGALRM)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def start(
        self,
        command: list[str],
        root: Path,
        env: dict[str, str],
        descriptors: Sequence[int] = (),
    ) -> subprocess.Popen[str]:
        """Start a child process whose output is read by lines. See `forward_to` for signals.

        Args:
            descriptors: files that the child inherits in addition to the standard streams.
        """
        return subprocess.Popen(
            command,
            cwd=root,
            env=env,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
            preexec_fn=self._prepare_child,
            process_group=0 if self.listens else None,  # its own group, so that it gets Ctrl-C from us only
        )

    def _prepare_child(self) -> None:
        """Set up a child before exec: it ends with this process, and does not ignore SIGINT, which asks it to stop.

        If a shell starts this command with &, children would inherit that SIGINT is ignored.
        """
        die_with_parent()
        if self.listens:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    @contextlib.contextmanager
    def forward_to(self, child: subprocess.Popen[str]) -> Iterator[None]:
        """Forward signals to `child` within the context, as a request to stop."""
        if not self.listens:
            yield
            return
        self._children.append(child)
        try:
            yield
        finally:
            self._children.remove(child)
            if not self._children:
                signal.alarm(0)

    def run_child(
        self,
        command: list[str],
        root: Path,
        env: dict[str, str],
        take: Callable[[str], None],
        ends_early: Callable[[], bool] = lambda: False,
    ) -> int:
        """Run a child process to its end, forward signals to it, and return its exit code.

        Args:
            command: command and arguments.
            root: working directory.
            env: environment variables.
            take: called with each line of output, without the line end.
            ends_early: called from time to time in another thread; after it returns True, the child is stopped as by
                Ctrl-C.
        """
        child, ended = self.start(command, root, env), threading.Event()
        assert child.stdout is not None

        def watch() -> None:
            while not ended.wait(SECONDS_BETWEEN_CHECKS):
                if ends_early():
                    _send([child], signal.SIGINT)
                    return

        threading.Thread(target=watch, daemon=True).start()
        with self.forward_to(child):
            try:
                for line in child.stdout:
                    take(line.rstrip())
                return child.wait()
            finally:
                ended.set()

    def cancel(self) -> None:
        """Stop as by SIGTERM, because the run was cancelled on the Prefect server."""
        if self.listens:
            self.is_cancelled = True
            os.kill(os.getpid(), signal.SIGTERM)

    def check(self) -> None:
        """Raise Interrupted if a signal asked this process to end."""
        if self.number and self.listens:
            raise Interrupted(self.reason())

    def reason(self) -> str:
        """Return the name of the signal, Ctrl-C or SIGTERM, or the cancellation in Prefect."""
        if self.is_cancelled:
            return CANCELLED_IN_PREFECT
        return "Ctrl-C" if self.number == signal.SIGINT else signal.Signals(self.number).name

    def exit_code(self) -> int:
        """Return the exit code of a process ended by the signal."""
        return 128 + self.number

    def _mark_fork(self, begins: bool) -> None:
        if threading.current_thread() is threading.main_thread():  # only there do handlers of signals run
            self._is_forking = begins

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGALRM and self._postponed:
            number, self._postponed = self._postponed, 0
        if self._is_forking:  # Python ignores what is raised in a hook of os.fork: a lock of logging would stay held
            self._postponed = number
            signal.setitimer(signal.ITIMER_REAL, SECONDS_TO_FORK)
            return
        if number == signal.SIGHUP:
            _leave_terminal()
        first = not self.number
        self.number = self.number or number
        if not self._children:
            if number == signal.SIGINT and not first:
                os._exit(self.exit_code())
            raise Interrupted(self.reason())
        if first:
            # DVC ignores SIGINT while a stage runs, and SIGTERM would end it at once.
            _send([*self._children], signal.SIGINT)
            signal.alarm(STOP_TIMEOUT_S)
        elif number in (signal.SIGINT, signal.SIGALRM):
            _send([*self._children], signal.SIGKILL)
            raise Interrupted(self.reason())


def _leave_terminal() -> None:
    """Write to nowhere instead of a terminal that is gone, where writing fails; the log has everything."""
    with open(os.devnull, "w") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                os.dup2(nowhere.fileno(), stream.fileno())


def _send(children: Sequence[subprocess.Popen[str]], number: int) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):  # it has already ended
            os.killpg(child.pid, number)


stop = StopSignal()
"""Instance for this process, as signals are per process."""
