"""What a killed DVC left half-written in a checkout: dvc.lock, and its list of who reads and writes what.

DVC writes both in place. Killed in between, or on a full disk, it leaves a file that no DVC can read again, and every
later run would end there.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tasks.artifacts import RUNS
from tasks.stage_kinds import read_dvc_file


def mend(root: Path, say: Callable[[str], None]) -> None:
    """Put both right where they are broken, so that the next `dvc repro` works."""
    _mend_list(root, say)
    _mend_lock(root, say)


def _mend_lock(root: Path, say: Callable[[str], None]) -> None:
    """Set a dvc.lock aside that DVC cannot read: it finds the stages again in its run-cache, and runs none of them."""
    path = root / "dvc.lock"
    if not path.is_file():
        return
    try:
        values: Any = read_dvc_file(path)
    except yaml.YAMLError:
        values = None
    if (isinstance(values, dict) and "schema" in values) or _running(root):
        return
    aside = root / RUNS / "dvc.lock.broken"
    aside.parent.mkdir(exist_ok=True)
    path.replace(aside)
    say(f"{path} was written by half and now is {aside}: stages are found again in DVC's run-cache")


def _mend_list(root: Path, say: Callable[[str], None]) -> None:
    """Remove the list of the checkout `root` if it is broken and nobody can be in it.

    The list is .dvc/tmp/rwlock. It is looked at under DVC's own guard, so that no list that is just being written is
    taken for broken, and it stays while another DVC works in the checkout: that one entered itself there. DVC then says
    what is wrong.
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
