"""Memory that this host and its limits leave to a process; known without torch."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Iterator, List, Optional, Tuple


def free_memory(root: Path = Path("/")) -> Optional[int]:
    """Bytes this process may still take without swapping: of the host, and of each cgroup that it is in.

    What a cgroup's limit leaves counts file pages that the kernel can drop as free. None where nothing tells.

    Args:
        root: of the file system, which has /proc and /sys.
    """
    found = _of_host(root, "MemAvailable:")
    for folder, limit, usage, droppable in _cgroups(root):
        most, used = _lines(folder / limit)[:1], _lines(folder / usage)[:1]
        if most and used and most[0].isdigit():  # "max" is none
            stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
            found.append(int(most[0]) - int(used[0]) + int(stat.get(droppable, 0)))
    return max(0, min(found)) if found else None


def memory_limit(root: Path = Path("/")) -> Optional[int]:
    """Bytes this process may ever have in memory: of the host, of each cgroup that it is in, of RLIMIT_DATA.

    What others use is not taken off. RLIMIT_AS is no such limit: address space is taken by the gigabyte and never used.
    None where nothing tells.

    Args:
        root: of the file system, which has /proc and /sys.
    """
    found = _of_host(root, "MemTotal:")
    for folder, limit, _, _ in _cgroups(root):
        found += [int(most) for most in _lines(folder / limit)[:1] if most.isdigit()]
    data = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return min(found + ([data] if data != resource.RLIM_INFINITY else []), default=None)


def _of_host(root: Path, name: str) -> List[int]:
    """The bytes that the kernel states under a name; none where it does not."""
    return [int(line.split()[1]) * 1024 for line in _lines(root / "proc/meminfo") if line.startswith(name)]


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
