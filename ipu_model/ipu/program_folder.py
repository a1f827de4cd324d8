"""Folders of compiled programs: live folders in a host's cache, and shared folders that one host fills for others.

A live folder is locked while in use, cleaned when no other process uses it, and recorded when its program is built.

PopART keys its cache by an opaque hash, and one folder with many `*.popef` is slow. So every program has a folder
`<root>/<fingerprint>/`. The fingerprint is ours: it tells before compiling whether the cache will have the program, and
if not, why. PopART decides in the end, and `ProgramFolder.report_outcome` reports where the two disagree.

Both kinds have `podium.json`, with the configuration of the programs and the SHA-256 of each, and `*.popef`. Shared
programs are copied, never linked, and checked during the copy: so the loaded file is the checked one, and a file that
PopART or a failing disk changes in the live folder stays intact in the shared one.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Tuple

from ipu_model.core.errors import ConfigError
from ipu_model.core.files import (
    find_object,
    fingerprint,
    flatten_keys,
    is_same_file,
    new_file,
    new_folder,
    sha256_of,
    try_lock,
    write_json,
)
from ipu_model.core.units import format_count, shorten

CACHE_VARIABLE = "PODIUM_EXECUTABLE_CACHE"
RECORD = "podium.json"
MAPPINGS = ("parts", "executables", "sha256")
"""Keys of the record whose values are objects: parts by name, and values by file name."""
LOCK_FILE = "podium.held"
"""Lock file (flock) of every process that uses the folder; a locked folder is not pruned."""
PROGRAMS = "*.popef"
LOCKS = "*.lock"
SHOWN = 4
"""Differences that a message names."""
VERSIONS = ("poptorch", "poplar_sdk", "torch")
"""Last parts of names that are versions."""
EVALUATION = "evaluation"
"""Mode of the program that evaluates held-out rows during a training. Its shared folder has this name, inside that of
its job, whose own record is then that of the training program."""

Say = Callable[[str], None]
States = Dict[str, Tuple[int, int]]
"""File name -> size in bytes, and modification time in nanoseconds."""


class ProgramFolder:
    """Folder of one program in a cache, locked by this process until `close`.

    Opening it discards damaged programs, and copies shared ones (`copy_programs`) if it has none, unless another
    process uses the folder.

    Attributes:
        path: Folder for enableExecutableCaching.
        expected: True if compiling should find the executable.
        lookup: One line that states whether a hit is expected, and why.
        origin: After `report_outcome`, the origin of the program for result.json: built (why), loaded, or restored.

    Raises:
        ConfigError: the folder cannot be created.
    """

    def __init__(self, root: Path, parts: Dict[str, Any], say: Say, shared: Optional[Path] = None) -> None:
        self._parts, self._mode, self.origin = flatten_keys(parts), parts["mode"], ""
        source = None if shared is None else shared_folder(shared, self._mode)
        self.path = root / fingerprint(parts)
        damage = refusal = ""
        self._restored_from: Optional[Path] = None
        try:
            self._stream, self._first = _hold(self.path)
        except OSError as error:
            raise ConfigError(
                f"the executable cache {root} cannot be used ({error.strerror}): set {CACHE_VARIABLE} to a writable "
                "folder"
            ) from error
        if self._first:  # no other process uses the folder: damaged files and stale locks can be removed
            remove_stale_locks(self.path, say)
            damage = _discard_damaged(self.path)
            if source is not None and not list_programs(self.path):
                refusal = copy_programs(source, self._parts, self.path)
                self._restored_from = None if refusal else source
        fcntl.flock(self._stream, fcntl.LOCK_SH)
        self._before = list_programs(self.path)
        self.expected = bool(self._before)
        damage, refusal = damage and f"{damage}: discarded", refusal and f"{source} {refusal}"
        self.lookup = self._describe_lookup(damage, refusal)

    def _describe_lookup(self, damaged: str, refused: str) -> str:
        if self._restored_from is not None:
            taken = f"{_amount(self._before)} from {self._restored_from}, checked and put into {self.path}"
            return f"hit, {taken}{'; in it ' if damaged else ''}{damaged}"
        if self.expected:
            return f"hit, {_amount(self._before)} in {self.path}"
        why = "; ".join(filter(None, [damaged, refused]))
        self.origin = f"built: {why or self._nearest()}"
        return f"miss, {why}, to be rebuilt" if why else f"miss, {self._nearest()}"

    def _nearest(self) -> str:
        """Describe the difference to the most similar cached configuration of the same mode."""
        records = sorted(self.path.parent.glob(f"*/{RECORD}"))
        stored = [read_record(path.parent).get("parts", {}) for path in records]
        # A training program cannot explain a miss for inference.
        others = [x for x in stored if x.get("mode") == self._mode and differing_parts(x, self._parts)]
        if not others:
            return "no executable yet"
        nearest = min(others, key=lambda x: len(differing_parts(x, self._parts)))
        return f"no executable yet; the most similar cached one differs in {describe_difference(nearest, self._parts)}"

    def report_outcome(self) -> str:
        """Report after compiling whether PopART found its executable, and record the folder's programs."""
        now = list_programs(self.path)
        new = {name: state for name, state in now.items() if self._before.get(name) != state}
        if new:
            text = f"built, {_amount(new)}"
            try:
                if self._first:  # with several instances, the first one
                    write_json(self.path / RECORD, make_record(self.path, self._parts))
            except OSError as error:  # for example a full disk; the program still runs
                text += f", but it could not be recorded ({error.strerror}), so the next run compiles again"
            if self.expected:
                text += (
                    ". A hit was expected: something outside the fingerprint also decides; compare "
                    f"{self.path / RECORD} with this run, and report it"
                )
            self._before, self.origin = now, self.origin or "built, although a hit was expected"
            return text
        if not self._before:
            return "built, but PopART saved nothing (the IPU Model has no cache): the next run compiles again"
        if (self.path / RECORD).exists():
            os.utime(str(self.path / RECORD))  # prune goes by the last use
        self.origin = "loaded from the cache" if self._restored_from is None else f"restored from {self._restored_from}"
        return "loaded from the cache, nothing was compiled"

    def discard(self, why: str) -> None:
        """Remove the programs that were in the folder when it was opened, so that they are built again.

        A program that another instance has built since stays.
        """
        now = list_programs(self.path)
        for name, state in self._before.items():
            if now.get(name) == state:
                (self.path / name).unlink(missing_ok=True)
        self._before, self.expected, self._restored_from = {}, False, None
        self.lookup, self.origin = f"miss, {why}: discarded, to be rebuilt", f"built: {why}"

    def export(self, target: Path) -> None:
        """Copy the programs into the shared folder of a job, atomically; call it after `report_outcome`.

        Raises:
            OSError: the folder cannot be written.
        """
        with new_folder(shared_folder(target, self._mode)) as partial:
            for path in sorted(self.path.glob(PROGRAMS)):
                shutil.copyfile(str(path), str(partial / path.name))
            write_json(partial / RECORD, make_record(partial, self._parts))

    def close(self) -> None:
        """Unlock the folder."""
        self._stream.close()


def _amount(programs: States) -> str:
    return f"{format_count(len(programs), 'files')}, {sum(size for size, _ in programs.values()) / 1e6:.1f} MB"


def make_record(folder: Path, parts: Dict[str, Any]) -> Dict[str, Any]:
    """Return the record of the programs in a folder: their configuration, time, sizes in bytes and SHA-256."""
    sizes = {name: state[0] for name, state in list_programs(folder).items()}
    return {
        "parts": parts,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "executables": sizes,
        "sha256": {name: sha256_of(folder / name) for name in sizes},
    }


def remove_stale_locks(folder: Path, say: Say) -> None:
    """Remove `*.lock` files that no process has locked, and report them.

    PopTorch's processes use the count in such a file to decide which is first. A crash leaves the count behind, and
    then no process of the next run is first. The kernel releases the flock of a process that has ended.
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
    """Read podium.json of a folder; {} if it is missing or damaged."""
    values = find_object(folder / RECORD) or {}
    return values if all(isinstance(values.get(key, {}), dict) for key in MAPPINGS) else {}


def _discard_damaged(folder: Path) -> str:
    """Remove executables that are incomplete or changed; return a description of them."""
    record = read_record(folder)
    recorded, hashes = record.get("executables", {}), record.get("sha256", {})
    damage = []
    for path in sorted(folder.glob(PROGRAMS)):
        problem = _find_damage(path, recorded, hashes)
        if problem:
            damage.append(f"{path.name} is {problem}")
            path.unlink()
    missing = (name for name in sorted(recorded) if not (folder / name).exists() and name not in str(damage))
    damage += [f"{name} is missing" for name in missing]
    return "damaged: " + ", ".join(damage) if damage else ""


def _find_damage(path: Path, sizes: Dict[str, int], hashes: Dict[str, str]) -> str:
    size = path.stat().st_size
    if not size:
        return "empty"
    if path.name not in sizes:
        return "not recorded"
    if size != sizes[path.name]:
        return "not of the recorded size"
    return "" if hashes.get(path.name) == sha256_of(path) else "different in SHA-256 from the record"


def list_programs(folder: Path) -> States:
    """Return the size and modification time of every executable that is not empty."""
    programs: States = {}
    for path in folder.glob(PROGRAMS):
        with contextlib.suppress(FileNotFoundError):  # discarded by another instance
            stat = path.stat()
            programs[path.name] = (stat.st_size, stat.st_mtime_ns)
    return {name: state for name, state in programs.items() if state[0]}


def _hold(folder: Path) -> Tuple[IO[str], bool]:
    """Lock a folder by its file LOCK_FILE: exclusively (True), or shared if another process uses it.

    After waiting, the lock may belong to a folder that prune has removed: then the folder is created again.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / LOCK_FILE).open("a", encoding="utf-8")
        first = try_lock(stream)
        if not first:
            fcntl.flock(stream, fcntl.LOCK_SH)
        if is_same_file(stream, folder / LOCK_FILE):
            return stream, first
        stream.close()


def shared_folder(folder: Path, mode: str) -> Path:
    """Return the folder for programs of this mode in the shared folder of a job."""
    return folder / EVALUATION if mode == EVALUATION else folder


def copy_programs(source: Path, parts: Dict[str, Any], target: Path) -> str:
    """Copy the programs of `source` and their record into the live folder `target`, if they match `parts`.

    Return the reason why they were not copied, a phrase that follows the name of `source`; "" if they were.
    """
    if not source.is_dir():
        return "does not exist"
    record = read_record(source)
    if not record and (source / RECORD).exists():
        return f"was discarded: {RECORD} is damaged"
    if not record.get("executables"):
        return "has no program"
    stored = record.get("parts", {})
    if stored != _as_read(parts):
        return f"was built for another job: {describe_difference(stored, _as_read(parts))}"
    copied: List[Path] = []
    try:
        for name in sorted(record["executables"]):
            problem = _copy(source, name, record.get("sha256", {}).get(name), target)
            if problem:
                return _undo(copied, f"was discarded: {name} {problem}")
            copied.append(target / name)
        write_json(target / RECORD, make_record(target, stored))
    except OSError as error:  # missing, unreadable, or a full disk: the program can still be built
        return _undo(copied, f"could not be copied ({error.strerror}: {error.filename})")
    return ""


def _copy(source: Path, name: str, expected: Any, target: Path) -> str:
    """Copy one program and return its problem, or "". The copy of a damaged program is removed."""
    if Path(name).name != name or not Path(name).match(PROGRAMS):
        return "is not the name of a program"
    if not isinstance(expected, str):
        return "has no SHA-256 in the record"
    if not (source / name).is_file():
        return "is missing"
    with new_file(target / name) as partial:
        shutil.copyfile(str(source / name), str(partial))
        if sha256_of(partial) == expected:
            return ""
    (target / name).unlink()
    return "does not match its SHA-256"


def _undo(copied: List[Path], why: str) -> str:
    for path in copied:
        path.unlink()
    return why


def _as_read(parts: Mapping[str, Any]) -> Dict[str, Any]:
    """Return parts as read from JSON, where tuples become lists."""
    return json.loads(json.dumps(parts))


def differing_parts(stored: Mapping[str, Any], parts: Mapping[str, Any]) -> List[str]:
    """Return the names of the parts in which two configurations differ."""
    return sorted(name for name in {*stored, *parts} if stored.get(name) != parts.get(name))


def describe_difference(stored: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Format differences: `accumulation 16 -> 8, poptorch 3.3.0 -> 3.4.0 and 2 more`, with a hint on SDK versions."""
    names = differing_parts(stored, parts)
    words = [f"{name} {_format_value(stored.get(name))} -> {_format_value(parts.get(name))}" for name in names]
    other_sdk = all(name.rpartition(".")[2] in VERSIONS for name in names)
    return f"{shorten(words, SHOWN)}{'; executables do not load under another SDK' if other_sdk else ''}"


def _format_value(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."
