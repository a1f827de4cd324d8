"""Executable cache of a host: its location, and a command that lists and prunes it.

`python -m ipu_model.ipu.executables list|prune`. A cache has folders of IPU programs (program_folder.py) and libraries
of functions compiled for the CPU (ipu_model/runtimes/compilation.py).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ipu_model.core.files import PARTIAL, try_lock
from ipu_model.core.units import format_count
from ipu_model.ipu.program_folder import (
    CACHE_VARIABLE,
    LOCK_FILE,
    RECORD,
    Say,
    list_programs,
    read_record,
)

LIVE = ".live"
"""Name of the folder of live executables, next to the folders that are copied between hosts."""
DAY = 86400.0
GB = 1e9
USAGE = 2
LIBRARY = ".so"
SHOWN = 6
"""Parts of a configuration that a line of the table names."""


def cache_root(
    environ: Mapping[str, str], configured: Optional[str], say: Say, shared: Optional[str] = None
) -> Optional[Path]:
    """Return the folder of executables: PODIUM_EXECUTABLE_CACHE, else executable_cache_dir, else a folder next to
    `shared` (Job.executables), else None. As in Optimum, "" and "disabled" mean no executable_cache_dir."""
    configured = None if configured in (None, "", "disabled") else configured
    chosen = environ.get(CACHE_VARIABLE) or None
    if chosen is not None:
        also = f", not executable_cache_dir {configured}" if configured not in (None, chosen) else ""
        say(f"executables: {chosen} ({CACHE_VARIABLE}{also})")
    elif configured is not None:
        chosen = configured
        say(f"executables: {chosen} (executable_cache_dir of the ipu_config)")
    elif shared is not None:
        chosen = str(Path(shared).parent / LIVE)
        say(f"executables: {chosen} (set {CACHE_VARIABLE} to share them with other checkouts of this host)")
    else:
        say(f"executables: not cached, every run compiles; set {CACHE_VARIABLE} or executable_cache_dir to a folder")
    return None if chosen is None else Path(chosen).expanduser()


@dataclass(frozen=True)
class CacheEntry:
    """Folder or library in a cache."""

    path: Path
    size: int
    used_at: float
    """Time of the last use (the time of its record), or of its newest file; seconds since 1970."""
    built_at: float
    """Time when its programs were built or copied here, seconds since 1970."""
    parts: Dict[str, Any]
    """Configuration that it was built for; empty without a record."""


def list_entries(root: Path) -> List[CacheEntry]:
    """List a cache, least recently used entries first."""
    listed = _libraries(root)
    for path in root.iterdir() if root.is_dir() else ():
        programs = list_programs(path) if path.is_dir() else {}
        record = path / RECORD
        if not programs and not record.exists() and not (path / LOCK_FILE).exists():
            continue  # not ours
        written = [state[1] / 1e9 for state in programs.values()] or [path.stat().st_mtime]
        used_at = record.stat().st_mtime if record.exists() else max(written)
        size, parts = sum(state[0] for state in programs.values()), read_record(path).get("parts", {})
        listed.append(CacheEntry(path, size, used_at, min(written), parts))
    return sorted(listed, key=lambda entry: (entry.used_at, entry.path.name))


def _libraries(root: Path) -> List[CacheEntry]:
    listed = []
    for path in root.glob(f"*{LIBRARY}"):
        record = path.with_suffix(".json")
        if not record.is_file():
            continue  # not ours, or just being written
        used_at, built_at = record.stat().st_mtime, path.stat().st_mtime
        listed.append(
            CacheEntry(path, path.stat().st_size, used_at, built_at, {"function": path.stem.rpartition("-")[0]})
        )
    return listed


def select_entries(listed: Sequence[CacheEntry], rule: str, amount: float, now: float) -> List[CacheEntry]:
    """Select the entries that a rule of `prune` removes, from a list with the least recently used first.

    The rule is unused_for_days, older_than_days (whether used since or not), or larger_than_gb: the least recently used
    entries, until the rest has at most `amount` times 10**9 bytes.
    """
    if rule == "unused_for_days":
        return [entry for entry in listed if now - entry.used_at >= amount * DAY]
    if rule == "older_than_days":
        return [entry for entry in listed if now - entry.built_at >= amount * DAY]
    total, selected = sum(entry.size for entry in listed), []
    for entry in listed:
        if total <= amount * GB:
            break
        selected.append(entry)
        total -= entry.size
    return selected


def remove_entry(entry: CacheEntry) -> bool:
    """Remove a folder that no process uses, or a library; return whether it no longer exists.

    A folder is renamed first, so that no process finds a part of it. Processes keep a library that they have loaded.
    """
    if entry.path.suffix == LIBRARY:
        for path in (entry.path.with_suffix(".json"), entry.path):
            path.unlink(missing_ok=True)
        return True
    if not entry.path.is_dir():
        return True
    with (entry.path / LOCK_FILE).open("a", encoding="utf-8") as stream:
        if not try_lock(stream):
            return False
        renamed = entry.path.with_name(entry.path.name + PARTIAL)
        os.replace(str(entry.path), str(renamed))
        shutil.rmtree(str(renamed))
    return True


def format_entries(listed: Sequence[CacheEntry], now: float) -> str:
    """Format name, size, age and configuration of entries, with the parts in which the configurations differ."""
    width = max([16, *(len(entry.path.name) for entry in listed)])
    lines = [f"{'name':<{width}}  {'MB':>9}  {'unused, days':>12}  {'age, days':>9}  built for"]
    known = sorted({name for entry in listed for name in entry.parts})
    differing = [name for name in known if len({json.dumps(entry.parts.get(name)) for entry in listed}) > 1]
    for entry in listed:
        parts = ", ".join(
            f"{name} {json.dumps(entry.parts[name])}" for name in (differing or known)[:SHOWN] if name in entry.parts
        )
        unused, age = ((now - at) / DAY for at in (entry.used_at, entry.built_at))
        amounts = f"{entry.size / 1e6:>9.1f}  {unused:>12.1f}  {age:>9.1f}"
        lines.append(f"{entry.path.name:<{width}}  {amounts}  {parts or 'no record'}")
    total = sum(entry.size for entry in listed)
    return "\n".join([*lines, f"{format_count(len(listed), 'entries')}, {total / 1e6:.1f} MB"])


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    root = options.root or os.environ.get(CACHE_VARIABLE)
    if not root:
        sys.stderr.write(f"no cache is named: pass --root FOLDER or set {CACHE_VARIABLE}\n")
        return USAGE
    listed, now = list_entries(Path(root).expanduser()), time.time()
    if options.command == "list":
        print(format_entries(listed, now))
        return 0
    rules = ("unused_for_days", "older_than_days", "larger_than_gb")
    [(rule, amount)] = [(name, vars(options)[name]) for name in rules if vars(options)[name] is not None]
    selected = select_entries(listed, rule, amount, now)
    print(format_entries(selected, now))
    if not options.yes:
        print("nothing was removed: add --yes to remove these")
        return 0
    for entry in selected:
        if not remove_entry(entry):
            print(f"{entry.path.name} is in use and was not removed")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ipu_model.ipu.executables", description="List and prune an executable cache."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="list the cached executables")
    prune = commands.add_parser("prune", help="list executables to remove; with --yes remove them")
    for command in (listing, prune):
        command.add_argument("--root", help=f"folder of the cache (default: {CACHE_VARIABLE})")
    rule = prune.add_mutually_exclusive_group(required=True)
    rule.add_argument("--unused-for-days", type=_at_least_zero, metavar="N", help="entries not used for N days")
    rule.add_argument("--older-than-days", type=_at_least_zero, metavar="N", help="entries built at least N days ago")
    rule.add_argument("--larger-than-gb", type=_at_least_zero, metavar="N", help="the least used, until N GB are left")
    prune.add_argument("--yes", action="store_true", help="remove the listed entries (default: only list them)")
    return parser


def _at_least_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
