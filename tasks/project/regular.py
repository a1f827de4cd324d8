"""Opening what must be a file: a pipe would wait for its writer, a device never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotAFile(OSError):
    """What was named is a pipe, socket or device."""


def open_regular(path: Path | str) -> BinaryIO:
    """Open a file to read its bytes; the very file that was opened is looked at, so that none can take its place.

    Raises:
        OSError: it cannot be opened.
        IsADirectoryError: it is a folder.
        NotAFile: it is a pipe, socket or device.
    """
    require_regular(os.stat(path).st_mode, path)  # opening alone does something to some devices
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(mode: int, path: Path | str) -> None:
    """As `open_regular`, of the mode that stat gave.

    Raises:
        IsADirectoryError, NotAFile: it is no file.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise NotAFile(errno.EINVAL, "is a pipe, socket or device, and a file is required", str(path))
