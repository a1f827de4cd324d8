"""DVC's list of who reads and writes what in a checkout (.dvc/tmp/rwlock), when a killed DVC left half of it.

DVC writes the list in place. Killed in between, or on a full disk, it leaves a file that no DVC can read again, and
every later run would end there.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path


def mend(root: Path, say: Callable[[str], None]) -> None:
    """Remove the list of the checkout `root` if it is broken and nobody can be in it.

    It is looked at under DVC's own guard, so that no list that is just being written is taken for broken, and it stays
    while another DVC works in the checkout: that one entered itself there. DVC then says what is wrong.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    if _is_whole(path):
        return
    with path.with_suffix(".lock").open("a", encoding="utf-8") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # it is being written now
        if _is_whole(path):
            return
        if others := _running(root):
            say(f"{path} is broken and stays, as DVC is at work here (process {', '.join(map(str, others))})")
            return
        path.unlink(missing_ok=True)
        say(f"removed {path}: a DVC that was killed, or found the disk full, had left half of it")


def _is_whole(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return True


def _running(root: Path) -> list[int]:
    """Process ids of every DVC whose current folder is `root` (Linux; elsewhere none is seen)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            here = os.path.samefile(process / "cwd", root)
            words = (process / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is somebody else's
        if here and (b"dvc" in words or any(word.endswith(b"/dvc") for word in words[:2])):
            found.append(int(process.name))
    return found
