"""Memory limits of this process, checked before large allocations.

The available memory is what the host, its cgroups and RLIMIT_DATA leave. `require_memory` checks sizes that are known
in advance, such as that of a file or of its longest text.

A Parquet page or an Arrow buffer can expand to any size, and its declared size may be wrong. So the kernel enforces a
limit while a part of a user's file is read (`limit_memory`): beyond a gigabyte, or less if less is left, an allocation
fails, which becomes one message. This works on Linux; elsewhere only declared sizes are checked. A whole stage has no
such limit, because the kernel counts address space: an evaluation of 0.5 GB used 4.5 GB of it.
"""

import contextlib
import itertools
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from ipu_model.core.memory import free_memory, read_memory
from tasks.stage.errors import InputError
from tasks.stage.events import report
from tasks.stage.process import child_environment

ALLOWANCE = 1 << 30
"""Bytes that reading a part of a file may add; well-formed files need a few hundred MB."""
_STATUS = Path("/proc/self/status")
_LOOK_SECONDS = 0.1
_WATCH = f"import sys; from {__name__} import _watch; _watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"

T = TypeVar("T")

_WATCHERS: list[subprocess.Popen[bytes]] = []
"""References to watcher processes: a watcher ends when the pipe to it is closed."""


def memory_left() -> int | None:
    """Return the bytes that this process may still allocate; None if unknown."""
    left = [] if (free := free_memory()) is None else [free]
    soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if soft != resource.RLIM_INFINITY and _STATUS.exists():
        left.append(max(0, soft - _present()))
    return min(left, default=None)


def require_memory(what: str, size: int, times: int, advice: str) -> None:
    """Reject input of `size` bytes if less than `times` as many bytes of memory are available.

    Raises:
        InputError: there is not enough memory; names `what`, with the parameter that named it, and ends with `advice`.
    """
    left = memory_left()
    if left is not None and size * times > left:
        raise InputError(
            f"{what} has {size:,} bytes, which need about {size * times >> 20:,} MB of memory. "
            f"{left >> 20:,} MB are left by the host, its cgroup and RLIMIT_DATA: {advice}"
        )


def describe_shortage(error: BaseException) -> str:
    """Return a one-line description of a failed allocation."""
    left = memory_left()
    rest = "" if left is None else f", {left >> 20:,} MB are left by the host, its cgroup and RLIMIT_DATA"
    return f"out of memory ({str(error) or 'an allocation failed'}{rest})"


def _present() -> int:
    """Return the bytes that already count against the limit: private, writable memory."""
    return sum(read_memory(_STATUS, "VmData"))


def watch_memory(what: str) -> None:
    """Kill this process if its resident memory exceeds the current value plus the memory left now (Linux).

    Memory-mapped files do not count, as the kernel can drop their pages. The watcher is a separate process, because a
    thread cannot run while a library computes; it ends with this one. `what` names this process in the message.
    """
    left = memory_left()
    if left is None or not _STATUS.exists():
        return
    limit = sum(read_memory(_STATUS, "RssAnon")) + left
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCH, str(os.getpid()), str(limit), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=child_environment(),
        start_new_session=True,  # Ctrl-C must not reach it
    )
    _WATCHERS.append(watcher)


def _watch(pid: int, limit: int, what: str) -> None:
    """Kill a process above its limit; return when the other end of standard input is closed."""
    while not select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
        if (usage := sum(read_memory(Path(f"/proc/{pid}/status"), "RssAnon"))) > limit:  # a dead process has none
            text = (
                f"{what} used {usage >> 20:,} MB of memory, and {limit >> 20:,} MB were left by the host, its cgroup "
                "and RLIMIT_DATA: split the input, use fewer processes (PODIUM_WORKERS), or use a host with more memory"
            )
            report("failed", text=text)
            sys.stderr.write(f"error: {text}\n")
            with contextlib.suppress(ProcessLookupError):  # the process ended meanwhile
                os.kill(pid, signal.SIGKILL)
            return


@contextlib.contextmanager
def limit_memory(what: str, allowance: int = ALLOWANCE) -> Iterator[None]:
    """Limit allocations in the context to `allowance` bytes, and to the memory left.

    Raises:
        InputError: an allocation exceeded the limit while `what` was read.
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
    before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [bound for bound in (soft, hard, _present() + allowance) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    except MemoryError as error:  # ArrowMemoryError is a subclass
        raise InputError(
            f"{what} expands to more than {allowance >> 20:,} MB of memory when one part is read "
            f"({str(error) or 'no memory'}): write it with smaller row groups, batches or values, or split it"
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def iterate_limited(items: Iterable[T], what: str, at_once: int = 1, allowance: int = ALLOWANCE) -> Iterator[T]:
    """Yield `items` of a generator, `at_once` created within the limit; processing them is not limited.

    Raises:
        InputError: see `limit_memory`.
    """
    source, bound = iter(items), _bounded(allowance)
    while True:
        with _limited(what, bound):
            batch = list(itertools.islice(source, at_once))
        if not batch:
            return
        yield from batch
