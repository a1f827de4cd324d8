"""The IPUs of this double: how many there are, and who holds them."""

import gc
import os
import weakref

from poptorch.kinds import refusal

COUNT = "PODIUM_DOUBLE_IPUS"
"""Environment variable: IPUs of the double. When not set, it has those of one executable at a time, up to 64, as a host
has those of its job: another attaches only after it."""
PER_PROCESS = 64
HOLDERS = weakref.WeakSet()


def reserved(needed):
    """The power of two that holds `needed` IPUs: only such groups can be attached."""
    return 1 << (needed - 1).bit_length()


def acquire(executable):
    wanted = reserved(executable.num_ipus)
    if _free(wanted) < wanted:
        gc.collect()  # executors that no one knows any more
    if _free(wanted) < wanted:
        raise refusal(f"Failed to acquire {wanted} IPU(s): others are attached to them")
    HOLDERS.add(executable)


def _free(wanted):
    held = sum(reserved(holder.num_ipus) for holder in HOLDERS)
    return (_count() if COUNT in os.environ else max(held, wanted)) - held


def _count():
    return int(os.environ.get(COUNT, PER_PROCESS))


def ipuHardwareIsAvailable(num_ipus=1):
    """That many exist; whether they are free is not known."""
    return _count() >= num_ipus


def ipuHardwareVersion():
    assert _count() > 0, "there is no IPU"
    return 2
