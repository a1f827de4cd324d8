"""Copies of the evidence that nobody else changes: each file is read once, into a private folder, hashed on the way.

A file may be replaced at any moment, so publish does not check one and send another: it decides on these copies, and
sends them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ipu_model.files import NotAFile, is_alive, open_regular, sha256_of
from tasks.project.errors import InputError

Hashes = Mapping[str, str | None]
"""Name -> SHA-256; None: the file is not there."""
BLOCK = 1 << 20


def hashes_of(files: Mapping[str, Path]) -> dict[str, str | None]:
    """SHA-256 of every file, None of one that is not there."""
    return {name: sha256_of(path) if path.is_file() else None for name, path in sorted(files.items())}


@contextlib.contextmanager
def copy_privately(files: Mapping[str, Path], place: Path) -> Iterator[tuple[Path, dict[str, str | None]]]:
    """Copy files into a folder that only this user can enter, for as long as the context lasts.

    What a killed process left there is cleared away.

    Args:
        files: name below that folder -> what is read, once.
        place: the folder is made in it.

    Raises:
        InputError: one is no regular file.
    """
    place.mkdir(parents=True, exist_ok=True)
    for left in place.glob("held.*.partial"):
        if not is_alive(left.name.split(".")[1]):
            shutil.rmtree(left)
    folder = place / f"held.{os.getpid()}.partial"
    folder.mkdir(mode=0o700)
    try:
        yield folder, {name: _copy(path, folder / name) for name, path in sorted(files.items())}
    finally:
        shutil.rmtree(folder)


def _copy(source: Path, target: Path) -> str | None:
    """Read a file once and keep what was read; returns its SHA-256, None where it is not there."""
    digest = hashlib.sha256()
    try:
        stream = open_regular(source)
    except FileNotFoundError:
        return None
    except (IsADirectoryError, NotAFile):
        raise InputError(
            f"{source} is no regular file (a folder, pipe or device): put back what its stage wrote"
        ) from None
    with stream:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as copy:
            while block := stream.read(BLOCK):
                digest.update(block)
                copy.write(block)
    return digest.hexdigest()
