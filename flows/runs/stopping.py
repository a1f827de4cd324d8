"""Ctrl-C and SIGTERM while a command runs the pipeline.

The stages at work are asked to stop, each in a process group of its own, and have time to make a checkpoint; their last
line says whether they did. Without a stage at work the command ends at once. A second Ctrl-C waits for nothing.

On a worker nobody listens here: the worker itself ends what it started (flows/workers/worker.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from tasks.stage.process import die_with_parent

PATIENCE_S = 600
"""How long a stage may take to end once it was asked to: the call that IPUs are at, up to 90 s, and a checkpoint of
a large model on a slow disk. As TimeoutStopSec of deploy/podium-worker@.service."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = "run it again to continue"


class RunFailed(Exception):
    """A stage or publish failed for a reason its message gives; the run ends here."""


class RunPaused(Exception):
    """A stage stopped at a checkpoint on purpose; running again continues there."""


class RunStopped(Exception):
    """Ctrl-C or SIGTERM ended a stage that had nothing to keep; the message names it."""


class Interrupted(KeyboardInterrupt):
    """The command was asked to end, and no stage is at work that could keep something."""


class Stop:
    """Whether this process was asked to end, and whom that is passed on to."""

    def __init__(self) -> None:
        self.number = 0
        """The signal that came first; 0: none."""
        self.listens = False
        self._children: list[subprocess.Popen[str]] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take over SIGINT and SIGTERM; elsewhere than in the main thread this is not possible, and nothing changes."""
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
    def taken_back(self) -> Iterator[None]:
        """Within a flow: take SIGTERM back from Prefect, if this process listened before."""
        with self._installed() if self.listens else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # as in a script with &
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
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        """Start a child whose lines are read, and that is asked to stop here (`passed_to`)."""
        return subprocess.Popen(
            command,
            cwd=root,
            env=env,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=self._in_child,
            process_group=0 if self.listens else None,  # one of its own, so that Ctrl-C reaches it once
        )

    def _in_child(self) -> None:
        """`preexec_fn` of such a child: it ends with this process, and hears SIGINT.

        A shell that starts this command with & lets it and all its children ignore SIGINT, which is what a child is
        asked to stop with.
        """
        die_with_parent()
        if self.listens:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    @contextlib.contextmanager
    def passed_to(self, child: subprocess.Popen[str]) -> Iterator[None]:
        """While the body waits for `child`, started in a group of its own, a signal asks it to stop."""
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

    def follow(self, command: list[str], root: Path, env: dict[str, str], take: Callable[[str], None]) -> int:
        """Run a child to its end, asked to stop where this process is; its exit code.

        Args:
            command: its words.
            root: where it works.
            env: its environment.
            take: gets each line as it comes, its end left out.
        """
        child = self.start(command, root, env)
        assert child.stdout is not None
        with self.passed_to(child):
            for line in child.stdout:
                take(line.rstrip())
            return child.wait()

    def check(self) -> None:
        """Raises: Interrupted, if this process was asked to end."""
        if self.number and self.listens:
            raise Interrupted(self.reason())

    def reason(self) -> str:
        """What asked this process to end, in words."""
        return "Ctrl-C" if self.number == signal.SIGINT else signal.Signals(self.number).name

    def exit_code(self) -> int:
        """The exit code of a process that the signal ended."""
        return 128 + self.number

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first = not self.number
        self.number = self.number or number
        if not self._children:
            raise Interrupted(self.reason())
        if first:
            # DVC ignores SIGINT while a stage runs, and SIGTERM would end it at once.
            _send([*self._children], signal.SIGINT)
            signal.alarm(PATIENCE_S)
        elif number != signal.SIGTERM:
            _send([*self._children], signal.SIGKILL)
            raise Interrupted(self.reason())


def _send(children: Sequence[subprocess.Popen[str]], number: int) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.killpg(child.pid, number)


stop = Stop()
"""The one of this process, as signals are the process's, too."""
