"""A companion process of a training, and memory that both share.

The companion is a new program, not a fork: threads of PopTorch may hold locks that a forked copy would wait for.
multiprocessing would also start a third process, to watch its semaphores.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Type

import ipu_model
from ipu_model.core.errors import ConfigError, RowsError

SIGNAL_HINTS = {
    signal.SIGKILL: "; the kernel does this when the host or the container runs out of memory (see dmesg)",
    signal.SIGBUS: "; a file that it read was truncated, or its disk failed",
}


def shared_memory(name: str, size: int) -> int:
    """Allocate memory that is freed with the last process that holds it; return its file descriptor.

    It is not in /dev/shm, which Docker limits to 64 MB; /proc shows its name. All bytes are reserved now, because a
    page that is missing later raises SIGBUS.

    Raises:
        OSError: not enough memory is free, or this system has no such memory.
    """
    try:
        descriptor = os.memfd_create(name)
    except AttributeError:
        raise OSError(f"{sys.platform}, or this Python, has no os.memfd_create") from None
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class CompanionLost(Exception):
    """End of a companion; the message says how it ended."""


Handler = Callable[..., Iterator[Any]]
"""The function that a companion runs: it takes an iterator over requests, then its arguments, and yields an answer to
each request. An error of ERRORS that it yields or raises is raised again by `Companion.receive`."""
ERRORS: Dict[str, Type[Exception]] = {"ConfigError": ConfigError, "RowsError": RowsError, "OSError": OSError}
SERVE = f"from {__name__} import serve; serve()"


class Companion:
    """A process that runs a function of a module next to a training and answers requests in order.

    SIGINT and SIGTERM are blocked in it from the start, because a signal mask is inherited: such signals reach whole
    process groups, but only the training decides when its companion ends. The arguments of the handler (after the
    requests), requests and answers must be JSON values. The descriptor `memory` has the same number in the companion.

    Raises:
        OSError: the process cannot start.
    """

    def __init__(self, handler: Handler, *arguments: Any, memory: int) -> None:
        root = str(Path(ipu_model.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(memory,),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.send([handler.__module__, handler.__name__, arguments])

    def send(self, request: Any) -> None:
        """Send a request."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; `receive` raises that
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def has_answered(self) -> bool:
        """Return whether `receive` would return without waiting."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def receive(self) -> Any:
        """Wait for the next answer. Other threads and signal handlers run meanwhile.

        Raises:
            ConfigError, RowsError, OSError: an error of the handler.
            CompanionLost: the process has ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            if code >= 0:
                raise CompanionLost(f"ended with exit code {code}; its output is in the log, before this line")
            number = signal.Signals(-code)
            raise CompanionLost(f"was ended by {number.name}{SIGNAL_HINTS.get(number, '')}")
        error, answer = json.loads(line)
        if error:
            raise ERRORS[error](*answer)
        return answer

    def close(self) -> None:
        """End the process after it has completed all requests."""
        self.process.communicate()


def serve() -> None:
    """Answer the requests on standard input until it ends; runs in the companion.

    The kernel closes the pipes of a process however it ends, even by SIGKILL, so no companion outlives its training: a
    waiting one reads the end of its input, and a busy one gets SIGPIPE when it answers.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb", 0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that output of libraries is not read as an answer
    requests = map(json.loads, sys.stdin.buffer)
    for module, name, arguments in requests:  # the first request; the handler takes the others
        try:
            for answer in getattr(importlib.import_module(module), name)(requests, *arguments):
                replies.write(_encode(answer))
        except tuple(ERRORS.values()) as error:
            replies.write(_encode(error))
            return


def _encode(answer: Any) -> bytes:
    """Encode an answer as one line: the name of an error and its arguments, or an empty name and the answer."""
    if isinstance(answer, OSError):
        reply = ["OSError", [answer.errno, answer.strerror, answer.filename]]
    else:
        reply = [type(answer).__name__, answer.args] if isinstance(answer, Exception) else ["", answer]
    return json.dumps(reply, default=str).encode() + b"\n"
