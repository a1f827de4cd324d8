"""Writing to disk so that a reader sees the whole of something or nothing. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import stat
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Tuple

PARTIAL = ".partial"
"""Ending of what is being written; never read, removed by the next run."""

BLOCK = 1 << 20
"""Bytes that are read at once."""
MAX_JSON_BYTES = 64 << 20
"""Manifests, configurations and states of checkpoints are far smaller; parsed JSON takes many times its size."""

MAX_JSON_VALUES = 2000000
"""In one document: an empty list of two bytes takes 64 in memory."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read its bytes; the very file that was opened is looked at, so that none can take its place.

    Raises:
        OSError: it cannot be opened, or is a pipe, which would wait for its writer, a device, which never ends, or a
            socket or folder.
    """
    descriptor = -1
    try:
        _require_regular(os.stat(str(path)).st_mode, path)  # opening alone does something to some devices
        descriptor = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        _require_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        raise


def _require_regular(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is a pipe, socket or device, and a file is required", str(path))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal; memory flat in its size."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
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
    """The temporary name of a target; what killed writers of the same target left is removed."""
    for stale in path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL}"):
        if _is_alive(stale.name.split(".")[-2]):
            continue
        if stale.is_dir():
            shutil.rmtree(str(stale))
        else:
            stale.unlink()
    return path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")


def _is_alive(pid: str) -> bool:
    """Whether another process of this host with that number runs."""
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return int(pid) != os.getpid()


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


def read_at_most(stream: BinaryIO, limit: int) -> bytes:
    """Up to `limit` bytes, in blocks: one read of so many takes as much memory before it knows how many there are."""
    content = bytearray()
    while len(content) < limit and (block := stream.read(min(BLOCK, limit - len(content)))):
        content += block
    return bytes(content)


def read_json(path: Path, **options: Any) -> Any:
    """What a JSON file holds.

    Args:
        path: the file.
        options: of `json.loads`.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: empty, not UTF-8, not JSON, nested too deeply, or larger than MAX_JSON_BYTES.
    """
    try:
        with open_regular(path) as stream:
            content = read_at_most(stream, MAX_JSON_BYTES + 1)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ValueError(f"it {error.strerror}") from None
    if not content:
        raise ValueError("the file is empty")
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"it has {Path(path).stat().st_size} bytes; up to {MAX_JSON_BYTES} are read")
    return parse_json(content.decode("utf-8"), **options)


def parse_json(text: str, **options: Any) -> Any:
    """`json.loads`, where nesting too deep for the interpreter, and too many values, are a ValueError, too."""
    found = sum(text.count(mark) for mark in ",[{") if len(text) > MAX_JSON_VALUES else 0
    if found > MAX_JSON_VALUES:
        raise ValueError(f"it holds some {found} values; up to {MAX_JSON_VALUES} are read")
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def each_key_once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """An object of JSON for `json`'s object_pairs_hook: by itself it keeps the last of equal keys and says nothing.

    Raises:
        ValueError: a key stands twice.
    """
    values = dict(pairs)
    if len(values) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} stands twice in an object")
    return values


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def json_text(values: Any) -> str:
    """JSON, keys sorted, NaN refused."""
    return json.dumps(values, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, values: Any) -> None:
    """Write json_text, whole or not at all."""
    write_text(path, json_text(values))
