"""Programs that travel between hosts: a folder that one host fills and others take from.

It holds `podium.json`, which says what the programs were built for and the SHA-256 of each, and `*.popef`. Programs are
copied, never linked, and checked while they are copied: what is loaded is what was checked, and a file that PopART
or a failing disk changes in the live folder is not also the one in the store it came from.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Dict, List, Mapping

from ipu_model.files import new_file, new_folder, write_json
from ipu_model.ipu.program_folder import PROGRAMS, RECORD, make_record, read_record

SHOWN = 4
"""Differences that a line names."""
VERSIONS = ("poptorch", "poplar_sdk", "torch")
"""Parts, by the last word of their name, that name a version."""
EVALUATION = "evaluation"
"""Mode of the program of a training that judges held-out rows. It travels in a folder of this name in that of its job,
whose own record is then that of its training."""
NOTHING = "nothing"
"""Key of the record of a folder without programs: why there are none."""


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
