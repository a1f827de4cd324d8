"""A second program of ours beside a training, and memory that both see.

A program of its own and no fork: threads of PopTorch may hold locks that a copy of this process would wait for.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import ipu_model

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


class Companion:
    """A module of this package that runs beside a training and answers each request, a line of JSON, with another.

    SIGINT and SIGTERM stay blocked in it from its first moment, as a signal mask is inherited: they reach whole groups
    of processes, and the training alone decides when its companion ends.

    Args:
        words: of its command line.
        memory: descriptor that it gets under the same number.

    Raises:
        OSError: no process can be had.
    """

    def __init__(self, module: str, *words: str, memory: int) -> None:
        root = str(Path(ipu_model.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(memory,),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

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

    def answer(self) -> Dict[str, Any]:
        """Wait for the next answer. Waiting lets other threads run, and signals be noticed.

        Raises:
            CompanionLost: the process has ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise CompanionLost(_describe_end(self.process.wait()))
        answer: Dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process; what it was asked for is done to its end."""
        self.process.communicate()


def _describe_end(code: int) -> str:
    """How a companion ended, by its exit code as subprocess states it."""
    if code >= 0:
        return f"ended with exit code {code}; its last words are in the log, before this line"
    number = signal.Signals(-code)
    return f"was ended by {number.name}{LIKELY.get(number, '')}"
