"""A bound on the memory that reading somebody else's file may take, whatever the file says of its own sizes.

A page of Parquet or a buffer of Arrow can unfold to any size, and its declared size may lie. So the kernel counts: past
the bound an allocation fails, and that becomes one sentence. It holds on Linux; elsewhere the declared sizes are all
there is. What the process had before, and what it takes outside of reading, is not counted.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tasks.project.errors import InputError

ALLOWANCE = 1 << 30
"""Bytes above what the process has already; honest files are read in some hundred MB."""
_STATUS = Path("/proc/self/status")

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


def _present() -> int:
    """What counts against the limit already: private memory that can be written."""
    return next(int(line.split()[1]) << 10 for line in _STATUS.read_text().splitlines() if line.startswith("VmData"))


@contextlib.contextmanager
def limited(what: str, allowance: int = ALLOWANCE) -> Iterator[None]:
    """Inside, this process gets at most `allowance` bytes more than it has.

    Args:
        what: is read, with the parameter that named it, for the message.
        allowance: bytes.

    Raises:
        InputError: it took more.
    """
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
    source = iter(items)
    while True:
        with limited(what, allowance):
            some = list(itertools.islice(source, at_once))
        if not some:
            return
        yield from some
