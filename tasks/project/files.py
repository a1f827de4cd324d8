"""Files and folders that are there whole or not at all, and strict reading of what they hold.

ipu_model/files.py does the same for the other Python.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

BLOCK = 1 << 20
"""Bytes that are read at once."""
MAX_JSON_BYTES = 128 << 20
"""Reports, predictions and configurations are far smaller; parsed JSON takes many times its size."""
MAX_JSON_VALUES = 4_000_000
"""In one document: an empty list of two bytes takes 64 in memory."""


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


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill `path` as a whole or not at all: yields a temporary folder beside it, renamed at the end.

    What was there stays until the new folder is complete.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(path)
    fresh, old = (path.with_name(f"{path.name}.{os.getpid()}{kind}.partial") for kind in ("", ".old"))
    fresh.mkdir()
    try:
        yield fresh
        if path.exists():
            os.replace(path, old)
        os.replace(fresh, path)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time in, on this host and on others that share the disk; the file `path` is there meanwhile.

    The system takes the lock back however its holder ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_at(lock, path):
                continue  # the holder before removed it while this process waited
            try:
                yield
            finally:
                path.unlink()
            return


def _is_at(stream: IO[bytes], path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    return False


def recover_folder(path: Path) -> bool:
    """Clear away what killed writers of the folder `path` left beside it; whether there was anything.

    Where one died between its two renames, the first is undone.
    """
    found = False
    for left in sorted(path.parent.glob(f"{glob.escape(path.name)}.*.partial")):
        name = re.fullmatch(r"(\d+)(\.old)?\.partial", left.name.removeprefix(f"{path.name}."))
        if name is None or is_alive(name[1]) or not left.is_dir():
            continue
        found = True
        if name[2] and not path.exists():
            os.replace(left, path)
        else:
            shutil.rmtree(left)
    return found


def is_alive(pid: str) -> bool:
    """Whether another process of this host with that number runs; one that ended and was not waited for does not."""
    import psutil  # only where something was left

    try:
        ended = psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except (ValueError, psutil.NoSuchProcess):
        return False
    except psutil.AccessDenied:  # another user's, on a host that hides these
        return True
    return not ended and int(pid) != os.getpid()


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Give a file a second name, or where the file system has no hard links, a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Fill the file `path` as a whole or not at all: yields a temporary file beside it, renamed at the end."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all (temporary name in the same folder, then rename)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as stream:
        stream.write(text.encode())


def read_at_most(stream: BinaryIO, limit: int) -> bytes:
    """Up to `limit` bytes, in blocks: one read of so many takes as much memory before it knows how many there are."""
    content = bytearray()
    while len(content) < limit and (block := stream.read(min(BLOCK, limit - len(content)))):
        content += block
    return bytes(content)


def read_json(path: Path, *, encoding: str = "utf-8", parse: Callable[..., Any] | None = None, **options: Any) -> Any:
    """What a JSON file holds; `options` are those of `json.loads`, `parse` is `parse_json` or takes its place.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: empty, not UTF-8, not JSON, nested too deeply, or larger than MAX_JSON_BYTES.
    """
    try:
        with open_regular(path) as stream:
            content = read_at_most(stream, MAX_JSON_BYTES + 1)
    except NotAFile as error:
        raise ValueError(f"it {error.strerror}") from None
    if not content:
        raise ValueError("the file is empty")
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"it has {path.stat().st_size} bytes; up to {MAX_JSON_BYTES} are read")
    return (parse or parse_json)(content.decode(encoding), **options)


def parse_json(text: str, values: int = MAX_JSON_VALUES, **options: Any) -> Any:
    """`json.loads`, where nesting too deep for the interpreter is a ValueError, as everything else that is wrong.

    Args:
        values: at most so many of them, about; commas and brackets inside of texts count, too.
        options: of `json.loads`.
    """
    if len(text) > values and (found := sum(text.count(mark) for mark in ",[{")) > values:
        raise ValueError(f"it holds some {found:,} values; up to {values:,} are read")
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON for `json`'s object_pairs_hook: by itself it keeps the last of equal keys and says nothing.

    Raises:
        ValueError: a key stands twice.
    """
    values = dict(pairs)
    if len(values) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} stands twice in an object")
    return values


def write_json(path: Path, values: Any) -> None:
    """Write JSON, keys sorted, NaN refused, whole or not at all."""
    write_text(path, json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal; memory flat in its size."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
