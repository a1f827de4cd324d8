"""One tracker as its stage holds it: a child process that gets lines of JSON, and is waited for at the end only."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from tasks.project.process import Say, describe_exit, python_path

TROUBLED_SECONDS = 5.0
"""What one may take after the end of a training that has said that it cannot record: it tries once more."""
HURRIED_SECONDS = 3.0
"""What it may take after SIGTERM, when the host is about to take the process's life."""
PIPE_BYTES = 1 << 20
"""Room for events of some 200 bytes: what waits for a tracker that is busy. The kernel grants it (F_SETPIPE_SZ) to
anybody."""

Event = dict[str, Any]


def command(backend: str) -> list[str]:
    """How the process of a tracker is started."""
    return [sys.executable, "-m", f"tasks.tracking.track_{backend}"]


def start(backend: str, say: Say) -> Tracker | None:
    """Start a tracker; None where the system has no room for it.

    Args:
        backend: one of tracking.backends.
        say: takes lines for people.
    """
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    try:
        process = subprocess.Popen(
            command(backend),
            env=environment,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        say(f"tracking: {backend} could not be started ({error.strerror}); nothing is recorded there")
        return None
    return Tracker(backend, process, say)


class Tracker:
    """One child process: lines of JSON to it, lines of JSON from it, and no waiting for either before the end."""

    def __init__(self, backend: str, process: subprocess.Popen[bytes], say: Say) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._backend, self._process, self._say = backend, process, say
        self._pipes = (process.stdin, process.stdout)
        self._to, self._from = (pipe.fileno() for pipe in self._pipes)
        for pipe in (self._to, self._from):
            os.set_blocking(pipe, False)
        with contextlib.suppress(OSError):  # where it may not be that wide
            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._unsent = self._heard = b""
        """Parts of lines: what the pipe had no room for, and what has no end yet."""
        self._lost = 0
        """Messages that it did not take."""
        self._until = 0.0
        """When it has to have ended, on time.monotonic's clock."""
        self._troubled = self._gone = False
        """Whether it said last that it cannot record; whether it reads no more."""

    def send(self, message: Event) -> None:
        """Send it, or count it as lost where the tracker has not taken what was sent before."""
        self._push()
        if self._unsent or self._gone:
            self._lost += 1
            return
        self._unsent = json.dumps(message).encode() + b"\n"
        self._push()

    def _push(self) -> None:
        try:
            while self._unsent and not self._gone:
                self._unsent = self._unsent[os.write(self._to, self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._gone = True

    def hear(self) -> None:
        """Say what the tracker said."""
        while block := self._read():
            *lines, self._heard = (self._heard + block).split(b"\n")
            for message in map(json.loads, lines):
                self._troubled = message["troubled"]
                self._say(f"tracking: {self._backend}: {message['say']}")

    def _read(self) -> bytes | None:
        try:
            return os.read(self._from, 1 << 16)
        except BlockingIOError:
            return None

    def end(self, message: Event, seconds: float) -> None:
        """Send the last message, and no other after it."""
        self.hear()
        self._until = time.monotonic() + (min(seconds, TROUBLED_SECONDS) if self._troubled else seconds)
        while self._unsent and not self._gone and self._left():
            select.select([], [self._to], [], self._left())
            self._push()
        self.send(message)
        while self._unsent and not self._gone and self._left():
            select.select([], [self._to], [], self._left())
            self._push()
        self._pipes[0].close()

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def wait(self) -> None:
        """Wait for its end, and say what became of it if that is no good news."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._left())
        self.hear()
        code = self._process.poll()
        if code is None:
            self._kill()
            self._say(f"tracking: {self._backend} came to no end in time and was stopped; the training lacks nothing")
        elif code and not self._troubled:
            self._say(f"tracking: {self._backend} ended with {describe_exit(code)}; the training lacks nothing")
        if self._lost and not self._troubled:
            self._say(f"tracking: {self._backend} did not take {self._lost} events; they are in history.csv")

    def stop(self) -> None:
        """Close its pipe, which tells it to end, and kill it if it does not."""
        self._pipes[0].close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(HURRIED_SECONDS)
        self._kill()
        self._pipes[1].close()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
