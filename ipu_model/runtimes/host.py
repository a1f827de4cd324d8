"""Facts of the host, never of the job: CPU threads and how the C library hands out memory."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

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


def free_memory(root: Path = Path("/")) -> Optional[int]:
    """Bytes this process may still take without swapping: of the host, and of each cgroup that it is in.

    What a cgroup's limit leaves counts file pages that the kernel can drop as free. None where nothing tells.

    Args:
        root: of the file system, which has /proc and /sys.
    """
    found: List[int] = []
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for folder, limit, usage, droppable in _cgroups(root):
        most, used = _lines(folder / limit)[:1], _lines(folder / usage)[:1]
        if most and used and most[0].isdigit():  # "max" is none
            stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
            found.append(int(most[0]) - int(used[0]) + int(stat.get(droppable, 0)))
    return max(0, min(found)) if found else None


def _cgroups(root: Path) -> Iterator[Tuple[Path, str, str, str]]:
    """Folder of each cgroup above this process, and the names of its limit, its usage and its droppable pages."""
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, names = mounts, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = mounts / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = base / path.lstrip("/")
        for folder in (own, *own.parents):
            yield (folder, *names)
            if folder == base:
                break


def _lines(path: Path) -> List[str]:
    """Of a file of the kernel; none where it is not there."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
