"""The command line of an executable cache: what is in it, and what may go."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set

from ipu_model.files import PARTIAL
from ipu_model.ipu.executables import CACHE_VARIABLE
from ipu_model.ipu.program_folder import HELD, PROGRAMS, RECORD, read_record

DAY = 86400.0
GB = 1e9
USAGE = 2
SHOWN = 6
"""Parts that a line of the table names."""


@dataclass(frozen=True)
class Entry:
    """One folder of a cache."""

    path: Path
    size: int
    """Bytes of its executables."""
    used_at: float
    """Seconds since 1970 of the last use (the time of its record), or of its newest file."""
    parts: Dict[str, Any]
    """What it was built for; empty when it has no record."""


def entries(root: Path) -> List[Entry]:
    """The folders of a cache, least recently used first."""
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        programs = [program.stat() for program in path.glob(PROGRAMS)] if path.is_dir() else []
        record = path / RECORD
        if not programs and not record.exists() and not (path / HELD).exists():
            continue  # not ours
        times = [record.stat().st_mtime] if record.exists() else [stat.st_mtime for stat in programs]
        parts = read_record(path).get("parts", {})
        found.append(
            Entry(path, sum(stat.st_size for stat in programs), max(times, default=path.stat().st_mtime), parts)
        )
    return sorted(found, key=lambda entry: (entry.used_at, entry.path.name))


def older_than(found: Sequence[Entry], days: float, now: float) -> List[Entry]:
    """Those not used for so many days."""
    return [entry for entry in found if now - entry.used_at >= days * DAY]


def beyond(found: Sequence[Entry], gigabytes: float) -> List[Entry]:
    """Those that must go, least recently used first, until the rest holds at most `gigabytes` of 10**9 bytes."""
    total, going = sum(entry.size for entry in found), []
    for entry in found:
        if total <= gigabytes * GB:
            break
        going.append(entry)
        total -= entry.size
    return going


def remove(entry: Entry) -> bool:
    """Remove a folder unless a process uses it; it vanishes under its name at once."""
    with (entry.path / HELD).open("a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        going = entry.path.with_name(entry.path.name + PARTIAL)
        os.replace(str(entry.path), str(going))
        shutil.rmtree(str(going))
    return True


def table(found: Sequence[Entry], now: float) -> str:
    """Folder, size, age and what it was built for: the parts in which the folders differ."""
    lines = [f"{'folder':<16}  {'MB':>9}  {'unused, days':>12}  built for"]
    names = _telling(found)
    for entry in found:
        told = ", ".join(f"{name} {json.dumps(entry.parts[name])}" for name in names if name in entry.parts)
        age = (now - entry.used_at) / DAY
        lines.append(f"{entry.path.name:<16}  {entry.size / 1e6:>9.1f}  {age:>12.1f}  {told or 'no record'}")
    total = sum(entry.size for entry in found)
    return "\n".join([*lines, f"{len(found)} folders, {total / 1e6:.1f} MB"])


def _telling(found: Sequence[Entry]) -> List[str]:
    names: Set[str] = {name for entry in found for name in entry.parts}
    differing = [name for name in sorted(names) if len({json.dumps(entry.parts.get(name)) for entry in found}) > 1]
    return (differing or sorted(names))[:SHOWN]


def run(arguments: Optional[Sequence[str]]) -> int:
    """The command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    root = options.root or os.environ.get(CACHE_VARIABLE)
    if not root:
        sys.stderr.write(f"name the cache: --root FOLDER, or {CACHE_VARIABLE}\n")
        return USAGE
    found, now = entries(Path(root).expanduser()), time.time()
    if options.command == "list":
        print(table(found, now))
        return 0
    if options.older_than_days is not None:
        going = older_than(found, options.older_than_days, now)
    else:
        going = beyond(found, options.larger_than_gb)
    print(table(going, now))
    if not options.yes:
        print("nothing was removed: add --yes to remove these")
        return 0
    for entry in going:
        if not remove(entry):
            print(f"{entry.path.name} is in use and stays")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ipu_model.ipu.executables", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="show what is kept")
    prune = commands.add_parser("prune", help="show what would be removed, and with --yes remove it")
    for command in (listing, prune):
        command.add_argument("--root", help=f"the cache; default {CACHE_VARIABLE}")
    rule = prune.add_mutually_exclusive_group(required=True)
    rule.add_argument("--older-than-days", type=_amount, metavar="N", help="what was not used for N days")
    rule.add_argument("--larger-than-gb", type=_amount, metavar="N", help="the least used, until N GB are left")
    prune.add_argument("--yes", action="store_true", help="remove; without it nothing is touched")
    return parser


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value
