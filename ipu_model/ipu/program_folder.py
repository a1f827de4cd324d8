"""One folder of compiled programs: held while in use, cleaned when nobody else is there, recorded when built."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, Optional, Tuple

from ipu_model.files import read_json, sha256_of, write_json

CACHE_VARIABLE = "PODIUM_EXECUTABLE_CACHE"
RECORD = "podium.json"
MAPPINGS = ("parts", "executables", "sha256")
"""Keys of the record that hold values by name: of parts, and of files."""
HELD = "podium.held"
"""Flocked by every process that uses the folder: nothing is removed under it."""
PROGRAMS = "*.popef"
LOCKS = "*.lock"

Say = Callable[[str], None]
Sizes = Dict[str, int]
"""Bytes by file name."""


class ProgramFolder:
    """A folder in use by this process.

    Args:
        path: Made where it is missing.
        say: Takes lines for people.
        fill: Puts programs from elsewhere into the folder, where it has none; says why it did not, or "".
    """

    def __init__(self, path: Path, say: Say, fill: Optional[Callable[[Path], str]] = None) -> None:
        self.path, self.expected, self.damage = path, False, ""
        self.filled, self.not_filled, self.told = False, "", ""
        self._stream, self._first = _hold(path)
        if self._first:  # nobody else is here: what is damaged or left behind can go
            remove_stale_locks(path, say)
            self.damage = _discard_damaged(path)
            if fill is not None and not states(path):
                self.not_filled = fill(path)
                self.filled = not self.not_filled
        fcntl.flock(self._stream, fcntl.LOCK_SH)
        self.before = states(path)

    @property
    def sizes(self) -> Sizes:
        return {name: state[0] for name, state in self.before.items()}

    def record(self, parts: Dict[str, Any]) -> None:
        """Write what the executables were built for. Under several instances the first to come writes."""
        if self._first:
            write_json(self.path / RECORD, make_record(self.path, parts))

    def touch(self) -> None:
        """Remember the use: prune goes by the time of the record."""
        if (self.path / RECORD).exists():
            os.utime(str(self.path / RECORD))

    def release(self) -> None:
        self._stream.close()


def make_record(folder: Path, parts: Dict[str, Any]) -> Dict[str, Any]:
    """What podium.json says of the programs in a folder: what they were built for, when, their bytes and SHA-256."""
    sizes = {name: state[0] for name, state in states(folder).items()}
    return {
        "parts": parts,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "executables": sizes,
        "sha256": {name: sha256_of(folder / name) for name in sizes},
    }


def remove_stale_locks(folder: Path, say: Say) -> List[str]:
    """Remove `*.lock` that no process holds; returns their names.

    PopTorch's processes count in such a file who came first. A crash leaves the count behind, and then nobody
    of the next run counts as first. The kernel knows who is alive: it drops the flock of a process that ended.
    """
    removed = []
    for path in sorted(folder.glob(LOCKS)):
        with path.open("a", encoding="utf-8") as stream:
            if _flocked(stream, fcntl.LOCK_EX | fcntl.LOCK_NB):
                path.unlink()
                removed.append(path.name)
    if removed:
        say(f"removed {len(removed)} stale lock(s) of a run that crashed from {folder}: {', '.join(removed)}")
    return removed


def read_record(folder: Path) -> Dict[str, Any]:
    """podium.json of a folder; {} when it is missing or damaged."""
    try:
        values = read_json(folder / RECORD)
    except (OSError, ValueError):
        return {}
    mappings = [values] + [values.get(key, {}) for key in MAPPINGS] if isinstance(values, dict) else [values]
    return values if all(isinstance(mapping, dict) for mapping in mappings) else {}


def _discard_damaged(folder: Path) -> str:
    """Remove executables that a killed run left half, or that changed; returns what was found."""
    record = read_record(folder)
    recorded, hashes = record.get("executables", {}), record.get("sha256", {})
    found = []
    for path in sorted(folder.glob(PROGRAMS)):
        wrong = _wrong(path, recorded, hashes)
        if wrong:
            found.append(f"{path.name} is {wrong}")
            path.unlink()
    found += [f"{name} is gone" for name in sorted(recorded) if not (folder / name).exists() and name not in str(found)]
    return "damaged: " + ", ".join(found) if found else ""


def _wrong(path: Path, sizes: Sizes, hashes: Dict[str, str]) -> str:
    if not path.exists():
        return "a link to nothing"
    size = path.stat().st_size
    if not size:
        return "empty"
    if path.name not in sizes:
        return "not recorded"
    if size != sizes[path.name]:
        return "of another size than recorded"
    return "" if hashes.get(path.name) == sha256_of(path) else "not the one whose SHA-256 was recorded"


def states(folder: Path) -> Dict[str, Tuple[int, int]]:
    """Size and time of change of every executable that is not empty."""
    stats = {path.name: path.stat() for path in folder.glob(PROGRAMS) if path.exists()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items() if stat.st_size}


def link(source: Path, target: Path) -> None:
    """Links to the executables of a read-only folder, and its record."""
    if not source.is_dir():
        return
    record = read_record(source)
    for path in source.glob(PROGRAMS):
        with contextlib.suppress(FileExistsError):
            (target / path.name).symlink_to(path.resolve())
    if record and not (target / RECORD).exists():
        write_json(target / RECORD, record)


def _hold(folder: Path) -> Tuple[IO[str], bool]:
    """The locked HELD of a folder, exclusively (True) or shared, where another process was there first.

    Who waited for a lock may get that of a folder which prune removed meanwhile: then it is made anew.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / HELD).open("a", encoding="utf-8")
        first = _flocked(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not first:
            fcntl.flock(stream, fcntl.LOCK_SH)
        if (folder / HELD).exists() and os.path.samestat(os.fstat(stream.fileno()), os.stat(str(folder / HELD))):
            return stream, first
        stream.close()


def _flocked(stream: IO[str], operation: int) -> bool:
    try:
        fcntl.flock(stream, operation)
    except BlockingIOError:
        return False
    return True
