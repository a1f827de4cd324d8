"""Memory that this host and its limits leave to a process, and what jobs reserve of it; known without torch."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Callable, ContextManager, Iterator, List, Optional, Tuple

from ipu_model.files import try_lock

LOOK_S = 1.0
"""Seconds between looks at what other jobs hold."""


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


@contextlib.contextmanager
def reserve_memory(size: float, wait: Callable[[], None], folder: Optional[Path] = None) -> Iterator[None]:
    """Hold `size` bytes of this host for the body, which begins when what other jobs of this user hold leaves as much.

    Free memory would not tell: a job that has just begun has not taken its own yet. A job beside which there is no
    other begins whatever it needs. What a process held is free again however that process ends.

    Args:
        size: bytes.
        wait: called each second until the body begins; may raise.
        folder: where the reservations lie; by default in the folder for temporary files.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"podium-memory-{os.getuid()}"
    own: ContextManager[object] = contextlib.nullcontext()
    with contextlib.suppress(OSError):  # no folder, no room, no locks: a job needs none of them
        folder.mkdir(mode=0o700, exist_ok=True)
        limit = memory_limit()
        if limit is not None and folder.stat().st_uid == os.getuid():  # else somebody took the name
            own = _reserve(size, limit, wait, folder)
    with own:
        yield


def _reserve(size: float, limit: int, wait: Callable[[], None], folder: Path) -> ContextManager[object]:
    with (folder / "turn").open("a") as turn:  # kept while it waits, so that small jobs do not overtake large ones
        while not (try_lock(turn) and (not (held := _held(folder)) or held + size <= limit)):
            wait()
            time.sleep(LOOK_S)
        own = tempfile.NamedTemporaryFile("w", dir=folder, prefix="job-")  # noqa: SIM115 -- closed by the caller
        own.write(f"{size:.0f}")
        own.flush()
        try_lock(own)
    return own


def _held(folder: Path) -> int:
    """The bytes that jobs hold; called by the process whose turn it is."""
    held = 0
    for path in folder.glob("job-*"):
        with contextlib.suppress(FileNotFoundError), path.open() as stream:  # it has ended meanwhile
            if try_lock(stream):
                path.unlink()  # its process was killed
            else:
                held += int(stream.read())
    return held


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
