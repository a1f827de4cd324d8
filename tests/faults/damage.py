"""How a file is damaged: a byte flipped, the end cut off, or a byte flipped by the disk, which changes no time."""

from __future__ import annotations

import os
from pathlib import Path

FLIPPED, CUT, FLIPPED_UNSEEN = KINDS = ("flipped", "cut", "flipped unseen")


def damage(path: Path, kind: str) -> None:
    """Change the file in place.

    Args:
        path: a file of two bytes or more; of letters and digits where it is text.
        kind: one of KINDS; `flipped unseen` keeps size, times and inode, so that DVC does not look at it again.
    """
    before = path.stat()
    with path.open("r+b") as stream:
        if kind == CUT:
            stream.truncate(before.st_size // 2)
            return
        at = before.st_size * 2 // 3
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))
    if kind == FLIPPED_UNSEEN:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
