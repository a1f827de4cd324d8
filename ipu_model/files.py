"""Writing to disk so that a reader sees the whole of something or nothing. Standard library only."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Iterator

PARTIAL = ".partial"
"""Ending of what is being written; never read, removed by the next run."""

MAX_JSON_BYTES = 64 << 20
"""Manifests, configurations and states of checkpoints are far smaller; parsed JSON takes many times its size."""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal; memory flat in its size."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def fsync(path: Path) -> None:
    """Push a file, or the names in a folder, to the disk: a rename is only as durable as what it renames."""
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _partial(path: Path) -> Path:
    """The temporary name of a target; what killed writers of the same target left is removed.

    There is one writer at a time: a job holds its run folder (process.only_one).
    """
    for stale in path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL}"):
        if stale.is_dir():
            shutil.rmtree(str(stale))
        else:
            stale.unlink()
    return path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name in the same folder; on success it is fsynced and renamed to `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        yield partial
        fsync(partial)
        os.replace(str(partial), str(path))
        fsync(path.parent)
    finally:
        if partial.exists():
            partial.unlink()


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success its files are fsynced and it becomes `path`.

    An existing `path` is removed only after the new folder is complete.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        for file in sorted(partial.iterdir()):
            fsync(file)
        fsync(partial)
        if path.exists():
            shutil.rmtree(str(path))
        os.replace(str(partial), str(path))
        fsync(path.parent)
    finally:
        shutil.rmtree(str(partial), ignore_errors=True)


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: empty, not UTF-8, not JSON, nested too deeply, or larger than MAX_JSON_BYTES.
    """
    size = Path(path).stat().st_size
    if size == 0:
        raise ValueError("the file is empty")
    if size > MAX_JSON_BYTES:
        raise ValueError(f"it has {size} bytes; up to {MAX_JSON_BYTES} are read")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Any) -> None:
    """Write JSON, keys sorted, NaN refused, whole or not at all."""
    write_text(path, json.dumps(values, indent=2, sort_keys=True, allow_nan=False) + "\n")
