"""Settings of the host that do not depend on the job: threads, memory allocation of glibc, CPU flags."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Optional, Set

import torch

from ipu_model.core.errors import ConfigError
from ipu_model.core.files import find_value

# Options of mallopt, malloc.h of glibc.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def set_threads(setting: Optional[str]) -> None:
    """Apply PODIUM_THREADS; None leaves torch's choice.

    Raises:
        ConfigError: not a whole number above 0.
    """
    if not setting:
        return
    if not setting.isdigit() or int(setting) < 1:
        raise ConfigError(f"PODIUM_THREADS={setting!r} must be a whole number of threads, at least 1")
    torch.set_num_threads(int(setting))


def keep_freed_memory(setting: Optional[str] = None) -> bool:
    """Apply PODIUM_KEEP_MEMORY: unless it is "0", glibc keeps freed blocks for reuse instead of returning them.

    By default the kernel maps and clears every large tensor of every step: thousands of page faults per update, up to
    a fifth of the CPU time of a small model (Hugging Face's Trainer was 1.7 times as fast with this setting in
    `make bench`, case pretrain-tiny). The peak does not change, because a step frees and allocates the same sizes.
    Return whether the options were set; other C libraries do not have them.

    Raises:
        ConfigError: neither 0 nor 1.
    """
    if setting not in (None, "", "0", "1"):
        raise ConfigError(f"PODIUM_KEEP_MEMORY={setting!r} must be 1 (keep freed memory for the next update) or 0")
    if setting == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    options = ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, (1 << 31) - 1), (M_TOP_PAD, 64 << 20))
    return all(mallopt(option, value) == 1 for option, value in options)


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> Set[str]:
    """Return the instruction sets of the CPU by their Linux names; empty on other systems."""
    return set(find_value("flags", cpuinfo).split())
