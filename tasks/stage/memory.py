"""The memory that this process may still take, which sizes are tested against before any is taken.

It is what the host, its cgroups and RLIMIT_DATA leave. A size that is known beforehand, of a file or of the longest
text in it, is tested by `require_memory`.

A page of Parquet or a buffer of Arrow can unfold to any size, and the size that it declares may lie. So the kernel
counts while a part of someone else's file is read (`limited`): past a gigabyte, or less where less is left, an
allocation fails, and that becomes one sentence. It holds on Linux; elsewhere the declared sizes are all there is. A
whole stage has no such limit, as the kernel's counts address space: an evaluation of 0.5 GB had 4.5 GB of that.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from ipu_model.memory import free_memory
from tasks.stage.errors import InputError
from tasks.stage.process import python_path

ALLOWANCE = 1 << 30
"""Bytes above what the process has already, while a part of a file is read; honest files take some hundred MB."""
_STATUS = Path("/proc/self/status")
_LOOK_SECONDS = 0.1
_WATCH = f"import sys; from {__name__} import _watch; _watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"

T = TypeVar("T")


class _Bound:
    """The limit of the process, set by the first reader that is at work and taken back by the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0
        self._before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def enter(self, allowance: int) -> None:
        with self._lock:
            self._readers += 1
            if self._readers == 1:
                self._before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
                bounds = [x for x in (soft, hard, _present() + allowance) if x != resource.RLIM_INFINITY]
                resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))

    def leave(self) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers:
                resource.setrlimit(resource.RLIMIT_DATA, self._before)


_BOUND = _Bound()
_WATCHERS: list[subprocess.Popen[bytes]] = []
"""Kept, as a watcher ends when the pipe to it is closed."""


def memory_left() -> int | None:
    """Return the bytes that this process may still take; None where nothing tells."""
    left = [] if (free := free_memory()) is None else [free]
    soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if soft != resource.RLIM_INFINITY and _STATUS.exists():
        left.append(max(0, soft - _present()))
    return min(left, default=None)


def require_memory(what: str, size: int, times: int, advice: str) -> None:
    """Refuse what would take more memory than there is.

    Args:
        what: has this size, with the parameter that named it.
        size: bytes.
        times: bytes of memory that each byte takes.
        advice: what to do.

    Raises:
        InputError: it would.
    """
    left = memory_left()
    if left is not None and size * times > left:
        raise InputError(
            f"{what} has {size:,} bytes, which take some {size * times >> 20:,} MB of memory. "
            f"{left >> 20:,} MB are left to this process by the host, its cgroup and RLIMIT_DATA: {advice}"
        )


def describe_shortage(error: BaseException) -> str:
    """Return one line on memory that this process was refused."""
    left = memory_left()
    rest = "" if left is None else f", {left >> 20:,} MB are left by the host, its cgroup and RLIMIT_DATA"
    return f"memory is used up ({str(error) or 'an allocation failed'}{rest})"


def _present() -> int:
    """What counts against the limit already: private memory that can be written."""
    return _read_status(_STATUS, "VmData")


def _read_status(status: Path, name: str) -> int:
    """Return the bytes that the kernel states of a process."""
    lines = status.read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), 0)  # 0 of a dead process


def watch_memory(what: str) -> None:
    """End this process once its resident memory exceeds what it has and what is left now (Linux).

    Memory-mapped files do not count, as the kernel can drop their pages. The watcher is a process of its own, as a
    thread cannot look while a library computes; it ends with this one.

    Args:
        what: has the limit, for the message, such as a stage's name.
    """
    left = memory_left()
    if left is None or not _STATUS.exists():
        return
    limit = _read_status(_STATUS, "RssAnon") + left
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCH, str(os.getpid()), str(limit), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": python_path(None)},
        start_new_session=True,  # Ctrl-C is not for it
    )
    _WATCHERS.append(watcher)


def _watch(pid: int, limit: int, what: str) -> None:
    """End a process above its limit; return when nobody holds the other end of standard input any more."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while it was looked at
        while not select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
            if (taken := _read_status(Path(f"/proc/{pid}/status"), "RssAnon")) > limit:
                sys.stderr.write(
                    f"error: {what} took {taken >> 20:,} MB of memory, and {limit >> 20:,} MB were left to it by the "
                    "host, its cgroup and RLIMIT_DATA: split what is read, let fewer processes share the memory "
                    "(PODIUM_WORKERS, PODIUM_STAGES_AT_ONCE), or run it where there is more\n"
                )
                os.kill(pid, signal.SIGKILL)
                return


@contextlib.contextmanager
def limited(what: str, allowance: int = ALLOWANCE) -> Iterator[None]:
    """Inside, this process gets at most `allowance` bytes more than it has, and no more than is left.

    Args:
        what: is read, with the parameter that named it, for the message.
        allowance: bytes.

    Raises:
        InputError: it took more.
    """
    with _limited(what, _bounded(allowance)):
        yield


def _bounded(allowance: int) -> int:
    left = memory_left()
    return allowance if left is None else min(allowance, left)


@contextlib.contextmanager
def _limited(what: str, allowance: int) -> Iterator[None]:
    if not _STATUS.exists():
        yield
        return
    _BOUND.enter(allowance)
    try:
        yield
    except MemoryError as error:  # Arrow's own is one
        raise InputError(
            f"{what} unfolds to more than {allowance >> 20:,} MB in memory while a part of it is read "
            f"({str(error) or 'no memory'}): make it again with smaller row groups, batches or values, or split it"
        ) from None
    finally:
        _BOUND.leave()


def limited_steps(items: Iterable[T], what: str, at_once: int = 1, allowance: int = ALLOWANCE) -> Iterator[T]:
    """`items`, each made within the bound; what their user does with them is not counted.

    Args:
        items: made while they are asked for, such as a generator's.
        what: as `limited`.
        at_once: items made in one go.
        allowance: bytes for one go.

    Raises:
        InputError: as `limited`.
    """
    source, bound = iter(items), _bounded(allowance)
    while True:
        with _limited(what, bound):
            some = list(itertools.islice(source, at_once))
        if not some:
            return
        yield from some
