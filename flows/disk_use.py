"""How much room folders take on the disk, and how much of it would be free without them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = 512
"""Bytes of a block as `stat` counts them, whatever the file system's own are."""


@dataclass(frozen=True)
class Size:
    """In bytes of whole blocks."""

    own: int = 0
    """Of files that have no name elsewhere: what is free when they are removed."""
    shared: int = 0
    """Of files that have one: DVC links its outs to its cache. Each counts once, however many names it has."""


def of(paths: Iterable[Path]) -> Size:
    """The room of files and folders together. Links are not followed; what goes meanwhile is not counted.

    A copy-on-write clone (reflink) of a file counts in full, as file systems tell them apart from copies in no common
    way.
    """
    seen: dict[tuple[int, int], int] = {}
    own = shared = 0
    for status in (status for path in paths for status in _below(str(path))):
        size = status.st_blocks * BLOCK
        if status.st_nlink == 1:
            own += size
            continue
        node = (status.st_dev, status.st_ino)
        names = seen[node] = seen.get(node, 0) + 1
        if names == 1:
            shared += size
        if names == status.st_nlink:  # all of them lie here
            own, shared = own + size, shared - size
    return Size(own, shared)


def _below(path: str) -> Iterator[os.stat_result]:
    """What lstat says of a file, or of every file below a folder."""
    try:
        if not os.path.isdir(path) or os.path.islink(path):
            yield os.lstat(path)
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _below(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
