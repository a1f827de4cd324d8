"""What binds a verdict to what it judged: hashes of files, and copies that nobody else changes.

A file may be replaced at any moment, so publish does not check one and send another: every file is read once, into a
private folder, hashed on the way. What is checked, decided on and sent are these copies.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.project.errors import InputError
from tasks.project.files import NotAFile, is_alive, open_regular, sha256_of

Hashes = Mapping[str, str | None]
"""Name -> SHA-256; None: the file is not there."""
BLOCK = 1 << 20


def hashes_of(files: Mapping[str, Path]) -> dict[str, str | None]:
    """SHA-256 of every file, None of one that is not there."""
    return {name: sha256_of(path) if path.is_file() else None for name, path in sorted(files.items())}


@contextlib.contextmanager
def held(files: Mapping[str, Path], place: Path) -> Iterator[tuple[Path, dict[str, str | None]]]:
    """Copies of files in a folder that only this user can enter, for as long as the context lasts.

    What a killed process left there is cleared away.

    Args:
        files: name below that folder -> what is read, once.
        place: the folder is made in it.

    Raises:
        InputError: one is no regular file.
    """
    place.mkdir(parents=True, exist_ok=True)
    clear_left(place)
    folder = place / f"held.{os.getpid()}.partial"
    folder.mkdir(mode=0o700)
    try:
        yield folder, {name: _copy(path, folder / name) for name, path in sorted(files.items())}
    finally:
        shutil.rmtree(folder)


def clear_left(place: Path) -> None:
    """Remove copies whose process has ended."""
    for left in place.glob("held.*.partial"):
        if not is_alive(left.name.split(".")[1]):
            shutil.rmtree(left)


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


def difference(stated: Any, found: Hashes) -> list[str]:
    """How files differ from those that a verdict was about, in words; empty where they are the same.

    Args:
        stated: `judged` of the verdict.
        found: hashes of the files that are there now.
    """
    if not isinstance(stated, Mapping):
        return ["it does not say what it judged"]
    names = sorted({*stated, *found})
    return [
        f"{name} has SHA-256 {found.get(name) or 'none, it is not there'}, judged was {stated.get(name) or 'none'}"
        for name in names
        if stated.get(name) != found.get(name)
    ]
