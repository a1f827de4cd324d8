"""Temporary folders, which may hold texts of users: for this user alone, and removed a day after a killed process."""

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ipu_model.core.files import FOREIGN_SECONDS, HOST, is_alive

LONGEST_FOR_SOCKETS = 48
"""Maximum characters of a folder for temporary folders with sockets, whose paths have at most 103 on macOS."""
NAME = re.compile(r"podium-([0-9a-f]{8})-(\d+)-\w+")


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new temporary folder, which is removed at the end; TMPDIR sets its location."""
    folder = make_scratch()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def make_scratch(*, for_sockets: bool = False) -> Path:
    """Return a new temporary folder, which the caller removes, and remove those that killed processes left.

    `for_sockets`: a long TMPDIR is not used, so that the path of a Unix socket in the folder is short enough.
    """
    for path in Path(tempfile.gettempdir()).glob("podium-*"):
        if (name := NAME.fullmatch(path.name)) and _is_left(path, name[1], name[2]):
            shutil.rmtree(path, ignore_errors=True)
    parent = "/tmp" if for_sockets and len(tempfile.gettempdir()) > LONGEST_FOR_SOCKETS else None
    return Path(tempfile.mkdtemp(prefix=f"podium-{HOST}-{os.getpid()}-", dir=parent))


def _is_left(path: Path, host: str, pid: str) -> bool:
    try:
        state = path.lstat()
    except FileNotFoundError:  # its process has just removed it
        return False
    in_use = host == HOST and (int(pid) == os.getpid() or is_alive(pid))
    return state.st_uid == os.getuid() and time.time() - state.st_mtime > FOREIGN_SECONDS and not in_use
