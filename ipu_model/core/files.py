"""Atomic writes of files and folders, locks, strict reading of JSON, and hashes. Standard library only."""

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
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Tuple

PARTIAL = ".partial"
"""Suffix of files being written; such files are never read, and the next writer removes them."""
HOST = hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]
FOREIGN_SECONDS = 24 * 3600
"""Age at which a partial file of another host, whose processes are not visible here, counts as left behind."""
BLOCK = 1 << 20
MAX_JSON_BYTES = 128 << 20
"""Reports, predictions and configurations are far smaller; parsed JSON takes many times the size of the file."""
MAX_JSON_VALUES = 4_000_000
"""Limit on the values of one document: an empty list of two bytes takes 64 bytes in memory."""


class NotAFile(OSError):
    """A path that names a pipe, socket or device."""


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file to read its bytes. The open file itself is checked, so that it cannot be replaced in between.

    Raises:
        OSError: the file cannot be opened, is a folder (IsADirectoryError), or a pipe, socket or device (NotAFile).
    """
    require_regular(os.stat(path).st_mode, path)  # on some devices, opening alone has an effect
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(mode: int, path: Path | str) -> None:
    """Check that a mode from stat is that of a regular file.

    Raises:
        IsADirectoryError, NotAFile: as `open_regular`.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise NotAFile(errno.EINVAL, "is a pipe, socket or device; a file is required", str(path))


def partial_path(path: Path, kind: str = "") -> Path:
    """Return the temporary path next to `path` at which this process of this host writes."""
    return path.with_name(f"{path.name}.{HOST}-{os.getpid()}{kind}{PARTIAL}")


def complete_path(path: Path) -> Path:
    """Return the path that a file in a partial folder has once the folder is complete."""
    return Path(re.sub(rf"\.[0-9a-f]{{8}}-\d+{re.escape(PARTIAL)}(?=/|$)", "", str(path)))


@contextlib.contextmanager
def new_folder(path: Path, replace: bool = True) -> Iterator[Path]:
    """Replace the folder `path` atomically: yield a temporary folder next to it, which is then synced and renamed.

    The previous folder stays until the new one is complete. Unless `replace`, a folder that another process, which
    makes the same, has completed first stays.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_partial(path)
    fresh, old = partial_path(path), partial_path(path, ".old")
    fresh.mkdir()
    try:
        yield fresh
        for written in (*fresh.rglob("*"), fresh):
            fsync(written)
        if replace and path.exists():
            os.replace(str(path), str(old))
        try:
            os.replace(str(fresh), str(path))
        except OSError as error:
            if replace or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        _fsync_names(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.replace(str(old), str(path))
        shutil.rmtree(str(fresh), ignore_errors=True)
        shutil.rmtree(str(old), ignore_errors=True)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Replace the file `path` atomically: yield a temporary path next to it, which is then synced and renamed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_partial(path)
    partial = partial_path(path)
    try:
        yield partial
        fsync(partial)
        os.replace(str(partial), str(path))
        _fsync_names(path.parent)
    finally:
        if partial.exists():
            partial.unlink()


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk: a rename is only as durable as the file it renames."""
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_names(folder: Path) -> None:
    """Flush the entries of a folder to the disk, if this user may read it and its file system supports that."""
    try:
        fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL):
            raise


def clear_partial(path: Path) -> bool:
    """Remove partial files that killed writers of `path` left next to it; return whether there were any.

    If the writer of a folder died between its two renames, the first rename is undone. Other hosts may write to a
    shared folder: their partial files stay for FOREIGN_SECONDS.
    """
    cleared = False
    for partial in sorted(path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL}")):
        name = re.fullmatch(r"([0-9a-f]{8})-(\d+)(\.old)?\.partial", partial.name[len(path.name) + 1 :])
        if name is None or _is_in_use(partial, name[1], name[2]):
            continue
        cleared = True
        if not partial.is_dir():
            partial.unlink()
        elif name[3] and not path.exists():
            os.replace(str(partial), str(path))
        else:
            shutil.rmtree(str(partial))
    return cleared


def _is_in_use(partial: Path, host: str, pid: str) -> bool:
    """Return whether the writer of a partial file is alive, or may be on another host."""
    if host == HOST:
        return is_alive(pid)
    try:
        return time.time() - partial.stat().st_mtime < FOREIGN_SECONDS
    except FileNotFoundError:  # it has just been renamed
        return True


def is_alive(pid: str) -> bool:
    """Return whether another process with this ID runs on this host; a zombie does not count."""
    try:
        os.kill(int(pid), 0)
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except PermissionError:
        return True
    except (ValueError, OverflowError, ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z" and int(pid) != os.getpid()


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes of all hosts that share the disk; the file `path` exists meanwhile.

    The system releases the lock however its holder ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_same_file(lock, path):
                continue  # the previous holder removed it while this process waited
            try:
                yield
            finally:
                path.unlink()
            return


def try_lock(stream: IO[Any]) -> bool:
    """Lock a file for this process, unless another one holds the lock; return whether this process holds it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def is_same_file(stream: IO[Any], path: Path) -> bool:
    """Return whether `path` still names this open file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    return False


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Hard-link a file, or copy it if the file system has no hard links; create the folder of `target`."""
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with new_file(path) as partial:
        partial.write_bytes(text.encode())


def read_json(path: Path, *, encoding: str = "utf-8", parse: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Read a JSON file; `parse` replaces `parse_json`, `options` are those of `json.loads`.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: empty, not UTF-8, not JSON, nested too deeply, or larger than MAX_JSON_BYTES.
    """
    try:
        with open_regular(path) as stream:
            content = bytearray()  # in blocks: one read would allocate all bytes even for a short stream
            while len(content) <= MAX_JSON_BYTES and (block := stream.read(BLOCK)):
                content += block
    except NotAFile as error:
        raise ValueError(f"it {error.strerror}") from None
    if not content:
        raise ValueError("the file is empty")
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"it has {path.stat().st_size} bytes; up to {MAX_JSON_BYTES} are read")
    return (parse or parse_json)(content.decode(encoding), **options)


def find_value(name: str, file: Path) -> str:
    """Return the first value of this name in a file of lines `name : value`, as in /proc; empty if there is none."""
    with contextlib.suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def find_object(path: Path) -> Dict[str, Any] | None:
    """Return the object in a JSON file, or None if there is no readable object."""
    try:
        values = read_json(path)
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def parse_json(text: str, **options: Any) -> Any:
    """Parse JSON like `json.loads`, but report nesting too deep for the interpreter as a ValueError too, and refuse
    more than about MAX_JSON_VALUES values; commas and brackets inside strings count as well."""
    if len(text) > MAX_JSON_VALUES and (count := sum(text.count(mark) for mark in ",[{")) > MAX_JSON_VALUES:
        raise ValueError(f"it has about {count:,} values; up to {MAX_JSON_VALUES:,} are read")
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def reject_duplicate_keys(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """Refuse duplicate keys; an object_pairs_hook for `json`, which by default silently keeps the last one.

    Raises:
        ValueError: a key occurs twice.
    """
    values = dict(pairs)
    if len(values) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} occurs twice in an object")
    return values


def format_json(values: Any) -> str:
    """Return indented JSON with sorted keys; NaN is refused."""
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, values: Any) -> None:
    """Write indented JSON with sorted keys atomically."""
    write_text(path, format_json(values))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, reading it block by block."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def flatten_keys(values: Mapping[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Flatten nested dicts: {"geometry": {"micro_batch_size": 4}} -> {"geometry.micro_batch_size": 4}."""
    result: Dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result.update(flatten_keys(value, f"{prefix}{name}."))
        else:
            result[f"{prefix}{name}"] = value
    return result


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of some values; the order of the keys does not matter."""
    text = json.dumps(flatten_keys(parts), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
