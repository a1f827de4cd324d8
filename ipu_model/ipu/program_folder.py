"""Folders of compiled programs: a live one, held while in use, cleaned when nobody else is there, recorded when built;
and folders that travel between hosts, which one host fills and others take from.

Both hold `podium.json`, which says what the programs were built for and the SHA-256 of each, and `*.popef`. Programs
that travel are copied, never linked, and checked while they are copied: what is loaded is what was checked, and a file
that PopART or a failing disk changes in the live folder is not also the one in the store it came from.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Tuple

from ipu_model.files import new_file, new_folder, read_json, sha256_of, write_json

CACHE_VARIABLE = "PODIUM_EXECUTABLE_CACHE"
RECORD = "podium.json"
MAPPINGS = ("parts", "executables", "sha256")
"""Keys of the record that hold values by name: of parts, and of files."""
HELD = "podium.held"
"""Flocked by every process that uses the folder: nothing is removed under it."""
PROGRAMS = "*.popef"
LOCKS = "*.lock"
SHOWN = 4
"""Differences that a line names."""
VERSIONS = ("poptorch", "poplar_sdk", "torch")
"""Parts, by the last word of their name, that name a version."""
EVALUATION = "evaluation"
"""Mode of the program of a training that judges held-out rows. It travels in a folder of this name in that of its job,
whose own record is then that of its training."""
NOTHING = "nothing"
"""Key of the record of a folder without programs: why there are none."""

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


def remove_stale_locks(folder: Path, say: Say) -> None:
    """Remove `*.lock` that no process holds, and say so.

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


def carried(folder: Path, mode: str) -> Path:
    """Where in the folder of a job the programs of this mode travel."""
    return folder / EVALUATION if mode == EVALUATION else folder


def give(folder: Path, parts: Dict[str, Any], target: Path) -> None:
    """Fill `target`, whole or not at all, with the programs of a live folder and what they were built for.

    Args:
        parts: What decides them, by dotted name.

    Raises:
        OSError: it cannot be written.
    """
    with new_folder(target) as partial:
        for path in sorted(folder.glob(PROGRAMS)):
            shutil.copyfile(str(path), str(partial / path.name))
        write_json(partial / RECORD, make_record(partial, parts))


def take(source: Path, parts: Dict[str, Any], target: Path) -> str:
    """Copy the programs of `source` and their record into the live folder `target`, if they serve a job of `parts`.

    Returns:
        Why they were not taken, in words that follow the name of `source`; "" when they were.
    """
    if not source.is_dir():
        return "is not there"
    record = read_record(source)
    if not record and (source / RECORD).exists():
        return f"was discarded: {RECORD} is damaged"
    if not record.get("executables"):
        return f"holds no program ({record[NOTHING]})" if NOTHING in record else "holds no program"
    stored = record.get("parts", {})
    if stored != _as_read(parts):
        return f"was built for another job: {difference(stored, _as_read(parts))}"
    taken: List[Path] = []
    try:
        for name in sorted(record["executables"]):
            wrong = _copy(source, name, record.get("sha256", {}).get(name), target)
            if wrong:
                return _undo(taken, f"was discarded: {name} {wrong}")
            taken.append(target / name)
        write_json(target / RECORD, make_record(target, stored))
    except OSError as error:  # gone, unreadable, or no room: the program can still be built
        return _undo(taken, f"could not be copied ({error.strerror}: {error.filename})")
    return ""


def _copy(source: Path, name: str, expected: Any, target: Path) -> str:
    """Copy one program; what is wrong with it, or "". Nothing is left of one that is wrong."""
    if Path(name).name != name or not Path(name).match(PROGRAMS):
        return "is no name of a program"
    if not isinstance(expected, str):
        return "has no SHA-256 in the record"
    if not (source / name).is_file():
        return "is gone"
    digest = hashlib.sha256()
    with new_file(target / name) as partial:
        with (source / name).open("rb") as read, partial.open("wb") as written:
            for block in iter(lambda: read.read(1 << 20), b""):
                digest.update(block)
                written.write(block)
        if digest.hexdigest() == expected:
            return ""
    (target / name).unlink()
    return "does not match its SHA-256"


def _undo(taken: List[Path], why: str) -> str:
    for path in taken:
        path.unlink()
    return why


def _as_read(parts: Mapping[str, Any]) -> Dict[str, Any]:
    """As JSON gives it back: tuples become lists."""
    values: Dict[str, Any] = json.loads(json.dumps(parts))
    return values


def differing(stored: Mapping[str, Any], parts: Mapping[str, Any]) -> List[str]:
    """Names of the parts in which two configurations differ."""
    return sorted(name for name in {*stored, *parts} if stored.get(name) != parts.get(name))


def difference(stored: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """`accumulation 16 -> 8, poptorch 3.3.0 -> 3.4.0 and 2 more`, and what follows where only versions differ."""
    names = differing(stored, parts)
    words = [f"{name} {_shown(stored.get(name))} -> {_shown(parts.get(name))}" for name in names[:SHOWN]]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    other_sdk = all(name.rpartition(".")[2] in VERSIONS for name in names)
    return f"{', '.join(words)}{more}{'; executables do not load under another SDK' if other_sdk else ''}"


def _shown(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."
