"""Files and folders that are there whole or not at all, and strict reading of what they hold. Standard library only."""

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
from pathlib import Path
from typing import IO, Any, BinaryIO, Callable, Dict, Iterator, List, Tuple

PARTIAL = ".partial"
"""Ending of what is being written; never read, removed by the next writer."""
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
    """Fill the folder `path` as a whole or not at all: yields a temporary one next to it, which is synced and renamed.

    What was there stays until the new folder is complete.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_partial(path)
    fresh, old = (path.with_name(f"{path.name}.{os.getpid()}{kind}{PARTIAL}") for kind in ("", ".old"))
    fresh.mkdir()
    try:
        yield fresh
        for written in (*fresh.rglob("*"), fresh):
            fsync(written)
        if path.exists():
            os.replace(str(path), str(old))
        os.replace(str(fresh), str(path))
        _fsync_names(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.replace(str(old), str(path))
        shutil.rmtree(str(fresh), ignore_errors=True)
        shutil.rmtree(str(old), ignore_errors=True)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Fill the file `path` as a whole or not at all: yields a temporary name next to it, synced and renamed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_partial(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        yield partial
        fsync(partial)
        os.replace(str(partial), str(path))
        _fsync_names(path.parent)
    finally:
        if partial.exists():
            partial.unlink()


def fsync(path: Path) -> None:
    """Push a file, or the names in a folder, to the disk: a rename is only as durable as what it renames."""
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_names(folder: Path) -> None:
    """Push the names in a folder to the disk, where this user may read it and its file system can."""
    try:
        fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL):
            raise


def clear_partial(path: Path) -> bool:
    """Clear away what killed writers of `path` left next to it; returns whether there was anything.

    Where the writer of a folder died between its two renames, the first is undone.
    """
    cleared = False
    for left in sorted(path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL}")):
        name = re.fullmatch(r"(\d+)(\.old)?\.partial", left.name[len(path.name) + 1 :])
        if name is None or is_alive(name[1]):
            continue
        cleared = True
        if not left.is_dir():
            left.unlink()
        elif name[2] and not path.exists():
            os.replace(str(left), str(path))
        else:
            shutil.rmtree(str(left))
    return cleared


def is_alive(pid: str) -> bool:
    """Tell whether another process of this host with that number runs; one that only waits for its parent does not."""
    try:
        os.kill(int(pid), 0)
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except PermissionError:
        return True
    except (ValueError, OverflowError, ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z" and int(pid) != os.getpid()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time in, on this host and on others that share the disk; the file `path` is there meanwhile.

    The system takes the lock back however its holder ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_at(lock, path):
                continue  # the holder before removed it while this process waited
            try:
                yield
            finally:
                path.unlink()
            return


def try_lock(stream: IO[Any]) -> bool:
    """Lock a file for this process alone, unless another one holds it; return whether this process does."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def is_at(stream: IO[Any], path: Path) -> bool:
    """Tell whether an open file is still the one with this name."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    return False


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Give a file a second name, or where the file system has no hard links, a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with new_file(path) as partial:
        partial.write_bytes(text.encode())


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


def find_object(path: Path) -> Dict[str, Any] | None:
    """Return the object that a JSON file holds; None where there is none that can be read."""
    try:
        values = read_json(path)
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


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


def json_text(values: Any) -> str:
    """Return JSON, keys sorted, NaN refused."""
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, values: Any) -> None:
    """Write json_text, whole or not at all."""
    write_text(path, json_text(values))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal; memory flat in its size."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
