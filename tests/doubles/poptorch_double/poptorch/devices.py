"""The IPUs of this double: how many there are, and who holds them."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

from poptorch.errors import refusal

COUNT = "PODIUM_DOUBLE_IPUS"
"""Environment variable: IPUs of the double. When not set, it has those of one executable at a time, up to 64, as a host
has those of its job: another attaches only after it."""
PER_PROCESS = 64
_HOLDERS: Any = weakref.WeakSet()


def count() -> int:
    return int(os.environ.get(COUNT, PER_PROCESS))


def reserved(needed: int) -> int:
    """The power of two that holds `needed` IPUs: only such groups can be attached."""
    return 1 << (needed - 1).bit_length()


def acquire(executable: Any) -> None:
    wanted = reserved(executable.num_ipus)
    if _held() + wanted > _there(wanted):
        gc.collect()  # executors that no one knows any more
    held, there = _held(), _there(wanted)
    if held + wanted > there:
        raise refusal(f"Failed to acquire {wanted} IPU(s): {held} of {there} are attached to other executors")
    _HOLDERS.add(executable)


def _there(wanted: int) -> int:
    return count() if COUNT in os.environ else max(_held(), wanted)


def _held() -> int:
    return sum(reserved(holder.num_ipus) for holder in _HOLDERS)


def release(executable: Any) -> None:
    _HOLDERS.discard(executable)


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """That many exist; whether they are free is not known."""
    return count() >= num_ipus


def ipuHardwareVersion() -> int:
    assert count() > 0, "there is no IPU"
    return 2
