"""Free memory and memory limits of this host. Does not import torch."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Iterator, List, Optional, Tuple


def free_memory(root: Path = Path("/")) -> Optional[int]:
    """Return the bytes this process can still allocate without swapping, on the host and in each of its cgroups.

    File pages of a cgroup that the kernel can drop count as free. None if the system does not report any figure. `root`
    has /proc and /sys.
    """
    candidates = read_memory(root / "proc/meminfo", "MemAvailable")
    for folder, limit, usage, droppable in _cgroups(root):
        most, used = _read_lines(folder / limit)[:1], _read_lines(folder / usage)[:1]
        if most and used and most[0].isdigit():  # "max": no limit
            stat = dict(line.split(" ", 1) for line in _read_lines(folder / "memory.stat"))
            candidates.append(int(most[0]) - int(used[0]) + int(stat.get(droppable, 0)))
    return max(0, min(candidates)) if candidates else None


def memory_limit(root: Path = Path("/"), others: int = 0) -> Optional[int]:
    """Return the bytes this process could ever use: the least of the host, its cgroups and RLIMIT_DATA.

    Memory in use by others is not subtracted, but the bytes of `others` are, from the host and its cgroups and not from
    RLIMIT_DATA. RLIMIT_AS is ignored: torch reserves gigabytes of address space that it never uses. None if the system
    does not report any limit.
    """
    limits = read_memory(root / "proc/meminfo", "MemTotal")
    for folder, limit, _, _ in _cgroups(root):
        limits += [int(most) for most in _read_lines(folder / limit)[:1] if most.isdigit()]
    limits = [max(0, most - others) for most in limits]
    data = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return min(limits + ([data] if data != resource.RLIM_INFINITY else []), default=None)


def read_memory(file: Path, name: str) -> List[int]:
    """Return the bytes of a field of /proc/meminfo or /proc/PID/status; empty if the kernel does not report it."""
    return [int(line.split()[1]) * 1024 for line in _read_lines(file) if line.startswith(f"{name}:")]


def _cgroups(root: Path) -> Iterator[Tuple[Path, str, str, str]]:
    """Yield the folder of each cgroup above this process, and the names of its limit, usage and droppable pages."""
    mounts = root / "sys/fs/cgroup"
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, names = mounts, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = mounts / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        cgroup = base / path.lstrip("/")
        for folder in (cgroup, *cgroup.parents):
            yield (folder, *names)
            if folder == base:
                break


def _read_lines(path: Path) -> List[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
