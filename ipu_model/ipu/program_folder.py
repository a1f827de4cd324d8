"""Folders of compiled programs: a live one, held while in use, cleaned when no one else is there, recorded when built;
and folders that travel between hosts, which one host fills and others take from.

PopART keys its cache by a hash that nobody can read, and one folder with many `*.popef` is slow. So every program gets
`<root>/<fingerprint>/`. The fingerprint is ours, to say before compiling whether there will be a hit, and why not;
PopART decides, and `Program.outcome` says when the two disagree.

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
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ipu_model.files import find_object, is_at, new_file, new_folder, sha256_of, try_lock, write_json
from ipu_model.jobs.fingerprint import fingerprint, flat
from ipu_model.units import shorten

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
States = Dict[str, Tuple[int, int]]
"""File name -> bytes, and time of change in nanoseconds."""


class Program:
    """The folder of one program in a cache, in use by this process: nothing is removed from it before `close`.

    Damaged programs are discarded when it is opened, and where there are none they are taken from elsewhere, unless
    another process uses the folder.

    Args:
        roots: The cache; then one that is read-only, whose programs are linked into it.
        parts: Everything that decides the program (options.executable_parts).
        say: Takes lines for people.
        shared: Folder of programs from elsewhere (`take`).

    Attributes:
        path: For enableExecutableCaching.
        expected: Whether compiling should find its executable.
        forecast: The same and why, in one line.
        origin: After `outcome`, how the program came to be, for result.json: built and why, loaded, or restored.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, roots: Sequence[Path], parts: Dict[str, Any], say: Say, shared: Optional[Path] = None) -> None:
        self._roots, self._parts, self._mode, self.origin = roots, flat(parts), parts["mode"], ""
        source = None if shared is None else carried(shared, self._mode)
        self.path, *read_only = (root / fingerprint(parts) for root in roots)
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in read_only:
            link(folder, self.path)
        damage = refusal = ""
        self._restored_from: Optional[Path] = None
        self._stream, self._first = _hold(self.path)
        if self._first:  # no one else is here: what is damaged or left behind can go
            remove_stale_locks(self.path, say)
            damage = _discard_damaged(self.path)
            if source is not None and not states(self.path):
                refusal = take(source, self._parts, self.path)
                self._restored_from = None if refusal else source
        fcntl.flock(self._stream, fcntl.LOCK_SH)
        self._before = states(self.path)
        self.expected = bool(self._before)
        damage, refusal = damage and f"{damage}: discarded", refusal and f"{source} {refusal}"
        self.forecast = self._describe_forecast(damage, refusal)

    def _describe_forecast(self, damaged: str, refused: str) -> str:
        if self._restored_from is not None:
            taken = f"{_amount(self._before)} from {self._restored_from}, checked and put into {self.path}"
            return f"hit, {taken}{'; in it ' if damaged else ''}{damaged}"
        if self.expected:
            return f"hit, {_amount(self._before)} in {self.path}"
        why = "; ".join(filter(None, [damaged, refused]))
        self.origin = f"built: {why or self._nearest()}"
        return f"miss, {why}, built anew" if why else f"miss, {self._nearest()}"

    def _nearest(self) -> str:
        """The stored configuration of the same mode that differs least, and in what."""
        records = [path for root in self._roots for path in sorted(root.glob(f"*/{RECORD}"))]
        stored = [read_record(path.parent).get("parts", {}) for path in records]
        # A training program says nothing about one of inference.
        others = [x for x in stored if x.get("mode") == self._mode and differing(x, self._parts)]
        if not others:
            return "no executable yet"
        nearest = min(others, key=lambda x: len(differing(x, self._parts)))
        return f"no executable yet; the nearest stored one differs in {difference(nearest, self._parts)}"

    def outcome(self) -> str:
        """After compiling: whether PopART found its executable; records what the folder now holds."""
        now = states(self.path)
        new = {name: state for name, state in now.items() if self._before.get(name) != state}
        if new:
            text = f"built, {_amount(new)}"
            try:
                if self._first:  # under several instances the first to come
                    write_json(self.path / RECORD, make_record(self.path, self._parts))
            except OSError as error:  # a full disk: the program runs all the same
                text += f", but it could not be recorded ({error.strerror}), so the next run compiles again"
            if self.expected:
                text += (
                    ". A miss although a hit was expected: something outside the fingerprint decides too; compare "
                    f"{self.path / RECORD} with this run, and report it"
                )
            self._before, self.origin = now, self.origin or "built, although a hit was expected"
            return text
        if not self._before:
            return "built, but PopART kept nothing (the IPU Model has no cache): the next run compiles again"
        if (self.path / RECORD).exists():
            os.utime(str(self.path / RECORD))  # prune goes by the last use
        self.origin = "loaded from the cache" if self._restored_from is None else f"restored from {self._restored_from}"
        return "loaded from the cache, nothing was compiled"

    def give(self, target: Path) -> None:
        """After outcome: fill the folder of a job, whole or not at all, for other hosts.

        Raises:
            OSError: it cannot be written.
        """
        with new_folder(carried(target, self._mode)) as partial:
            for path in sorted(self.path.glob(PROGRAMS)):
                shutil.copyfile(str(path), str(partial / path.name))
            write_json(partial / RECORD, make_record(partial, self._parts))

    def close(self) -> None:
        """Let go of the folder."""
        self._stream.close()


def _amount(programs: States) -> str:
    count, size = len(programs), sum(size for size, _ in programs.values())
    return f"{count} file{'s' if count > 1 else ''}, {size / 1e6:.1f} MB"


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
            if try_lock(stream):
                path.unlink()
                removed.append(path.name)
    if removed:
        say(f"removed {len(removed)} stale lock(s) of a run that crashed from {folder}: {', '.join(removed)}")


def read_record(folder: Path) -> Dict[str, Any]:
    """podium.json of a folder; {} when it is missing or damaged."""
    values = find_object(folder / RECORD) or {}
    return values if all(isinstance(values.get(key, {}), dict) for key in MAPPINGS) else {}


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


def _wrong(path: Path, sizes: Dict[str, int], hashes: Dict[str, str]) -> str:
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


def states(folder: Path) -> States:
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

    Who waited for a lock may get that of a folder which prune removed meanwhile: then it is made again.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / HELD).open("a", encoding="utf-8")
        first = try_lock(stream)
        if not first:
            fcntl.flock(stream, fcntl.LOCK_SH)
        if is_at(stream, folder / HELD):
            return stream, first
        stream.close()


def carried(folder: Path, mode: str) -> Path:
    """Where in the folder of a job the programs of this mode travel."""
    return folder / EVALUATION if mode == EVALUATION else folder


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
    words = [f"{name} {_shown(stored.get(name))} -> {_shown(parts.get(name))}" for name in names]
    other_sdk = all(name.rpartition(".")[2] in VERSIONS for name in names)
    return f"{shorten(words, SHOWN)}{'; executables do not load under another SDK' if other_sdk else ''}"


def _shown(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."
