"""A second process of ours next to a training, and memory that both see.

A program of its own and not a fork: threads of PopTorch may hold locks that a copy of this process would wait for.
multiprocessing could start one, and with it a third process that watches its semaphores.
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
from ipu_model.errors import ConfigError, RowsError

LIKELY = {
    signal.SIGKILL: "; the kernel does so when the memory of the host or of the container is used up (dmesg says)",
    signal.SIGBUS: "; a file that it read was cut short, or its disk failed meanwhile",
}


def shared_memory(name: str, size: int) -> int:
    """Memory that goes with the last process that has it; its file descriptor.

    Not of /dev/shm, which Docker bounds to 64 MB, and reserved whole, as a page that cannot be had later is a SIGBUS.

    Args:
        name: that /proc shows; nothing finds the memory by it.
        size: bytes.

    Raises:
        OSError: there is not as much, or this system has no such memory.
    """
    try:
        descriptor = os.memfd_create(name)
    except AttributeError:
        raise OSError(f"{sys.platform}, or this Python, has no os.memfd_create") from None
    try:
        reserve(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def reserve(descriptor: int, size: int) -> None:
    """Let shared memory have so many bytes, what it holds kept.

    Raises:
        OSError: there are not as many.
    """
    if size:
        os.posix_fallocate(descriptor, 0, size)


class CompanionLost(Exception):
    """A companion has ended; the message says how."""


Answers = Callable[..., Iterator[Any]]
"""What a companion runs: a function that is given an iterator over requests, then its arguments, and yields an answer
to each. An error of ERRORS that it yields, or ends with, is raised by `Companion.answer`."""
ERRORS: Dict[str, Type[Exception]] = {"ConfigError": ConfigError, "RowsError": RowsError, "OSError": OSError}
SERVE = f"from {__name__} import serve; serve()"


class Companion:
    """A function of this package that runs in a process next to a training and answers requests in their order.

    SIGINT and SIGTERM stay blocked in it from its first moment, as a signal mask is inherited: they reach whole groups
    of processes, and the training alone decides when its companion ends.

    Args:
        answers: stands in a module, which the companion imports.
        arguments: of it, after the requests; they, requests and answers are what JSON can say.
        memory: descriptor that it gets under the same number.

    Raises:
        OSError: no process can be had.
    """

    def __init__(self, answers: Answers, *arguments: Any, memory: int) -> None:
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
        self.ask([answers.__module__, answers.__name__, arguments])

    def ask(self, request: Any) -> None:
        """Send a request."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, as `answer` says
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def has_answered(self) -> bool:
        """Whether `answer` need not wait."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def answer(self) -> Any:
        """Wait for the next answer. Waiting lets other threads run, and signals be noticed.

        Raises:
            ConfigError, RowsError, OSError: what the function met with.
            CompanionLost: the process has ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise CompanionLost(_describe_end(self.process.wait()))
        error, answer = json.loads(line)
        if error:
            raise ERRORS[error](*answer)
        return answer

    def close(self) -> None:
        """End the process; what it was asked for is done to its end."""
        self.process.communicate()


def serve() -> None:
    """Run in the companion: answer the requests on standard input until it ends.

    The kernel closes the pipes of a process however it ends, SIGKILL included, so that no companion outlives its
    training: one that waits reads the end of its input, one that works is ended by SIGPIPE when it answers.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb", 0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is not an answer
    requests = map(json.loads, sys.stdin.buffer)
    for module, name, arguments in requests:  # the first one; the others are for the function
        try:
            for answer in getattr(importlib.import_module(module), name)(requests, *arguments):
                replies.write(_encode(answer))
        except tuple(ERRORS.values()) as error:
            replies.write(_encode(error))
            return


def _encode(answer: Any) -> bytes:
    """A line: the name of an error and its arguments, or no name and the answer."""
    if isinstance(answer, OSError):
        reply = ["OSError", [answer.errno, answer.strerror, answer.filename]]
    else:
        reply = [type(answer).__name__, answer.args] if isinstance(answer, Exception) else ["", answer]
    return json.dumps(reply, default=str).encode() + b"\n"


def _describe_end(code: int) -> str:
    """How a companion ended, by its exit code as subprocess states it."""
    if code >= 0:
        return f"ended with exit code {code}; its last words are in the log, before this line"
    number = signal.Signals(-code)
    return f"was ended by {number.name}{LIKELY.get(number, '')}"
