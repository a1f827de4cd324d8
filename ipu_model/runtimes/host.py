"""Facts of the host, never of the job: its CPU and threads, and how the C library hands out memory."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Optional, Set

import torch

from ipu_model.errors import ConfigError

# Options of mallopt, malloc.h of glibc.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def set_threads(asked: Optional[str]) -> None:
    """Apply PODIUM_THREADS; None leaves torch's choice.

    Raises:
        ConfigError: not a whole number above 0.
    """
    if not asked:
        return
    if not asked.isdigit() or int(asked) < 1:
        raise ConfigError(f"PODIUM_THREADS={asked!r} must be a whole number of threads, at least 1")
    torch.set_num_threads(int(asked))


def keep_freed_memory(asked: Optional[str] = None) -> bool:
    """Apply PODIUM_KEEP_MEMORY: unless it is "0", glibc reuses freed blocks and gives none back to the kernel.

    By default every large tensor of a step is mapped and cleared by the kernel anew: thousands of page
    faults per update, up to a fifth of the CPU time of a small model (Hugging Face's Trainer was 1.7 times as
    fast with the same in `make bench`, case pretrain-tiny). The peak stays, as a step frees and takes the same sizes.

    Returns:
        Whether it was done; other C libraries have no such options.

    Raises:
        ConfigError: neither 0 nor 1.
    """
    if asked not in (None, "", "0", "1"):
        raise ConfigError(f"PODIUM_KEEP_MEMORY={asked!r} must be 1 (keep freed memory for the next update) or 0")
    if asked == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    wanted = ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, (1 << 31) - 1), (M_TOP_PAD, 64 << 20))
    return all(mallopt(option, value) == 1 for option, value in wanted)


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> Set[str]:
    """Instruction sets of the CPU as Linux names them; empty elsewhere."""
    if not cpuinfo.is_file():
        return set()
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()
