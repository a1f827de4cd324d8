"""The executable cache of a host: where it is, and a command that shows and prunes it.

`python -m ipu_model.ipu.executables list|prune`. In a cache are folders of programs for IPUs (program_folder.py), and
libraries of functions compiled for the CPU (ipu_model/runtimes/compiling.py).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

from ipu_model.errors import ConfigError
from ipu_model.files import PARTIAL, try_lock
from ipu_model.ipu.program_folder import CACHE_VARIABLE, HELD, RECORD, Program, Say, read_record, states

LIVE = ".live"
"""Name of the folder of live executables beside those that travel."""
DAY = 86400.0
GB = 1e9
USAGE = 2
LIBRARY = ".so"
SHOWN = 6
"""Parts that a line of the table names."""


def cache_root(
    environ: Mapping[str, str], configured: Optional[str], say: Say, shared: Optional[str] = None
) -> Optional[Path]:
    """Where executables are kept: PODIUM_EXECUTABLE_CACHE, else executable_cache_dir, else beside those that travel,
    else nowhere (None).

    Args:
        configured: executable_cache_dir of the ipu_config; "" and "disabled" mean none, as in Optimum.
        shared: Job.executables.
    """
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
        say(f"executables: not kept, every run compiles; set {CACHE_VARIABLE} or executable_cache_dir to a folder")
    return None if chosen is None else Path(chosen).expanduser()


class ExecutableCache:
    """The executables under one root, for one job.

    Args:
        root: From cache_root.
        say: Takes lines for people.
        shared: Folder of programs from elsewhere (program_folder.take), for configurations that the root lacks.
    """

    def __init__(self, root: Path, say: Say, shared: Optional[str] = None) -> None:
        own = _writable(root, say)
        self._roots, self._say = (own,) if own == root else (own, root), say
        self._shared = None if shared is None else Path(shared)

    def open(self, parts: Dict[str, Any]) -> Program:
        """The folder of a program: there, clean, and held against prune until it is closed.

        Raises:
            ConfigError: it cannot be made.
        """
        try:
            return Program(self._roots, parts, self._say, self._shared)
        except OSError as error:
            raise ConfigError(
                f"the executable cache {self._roots[0]} cannot be used ({error.strerror}): set {CACHE_VARIABLE} to a "
                "folder that can be written"
            ) from error


def _writable(root: Path, say: Say) -> Path:
    """`root`, or a folder of the user's own when it is read-only: PopTorch insists on writing."""
    existing = next(folder for folder in [root, *root.absolute().parents] if folder.exists())
    if os.access(str(existing), os.W_OK):
        return root
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = home / "podium" / "executables"
    say(f"executables: {root} is read-only; what it holds is linked into {own}, what is new stays there")
    return own


@dataclass(frozen=True)
class Entry:
    """One folder or library of a cache."""

    path: Path
    size: int
    """Bytes of its executables."""
    used_at: float
    """Seconds since 1970 of the last use (the time of its record), or of its newest file."""
    built_at: float
    """Seconds since 1970 when its programs were built or came here."""
    parts: Dict[str, Any]
    """What it was built for; empty when it has no record."""


def entries(root: Path) -> List[Entry]:
    """What is in a cache, least recently used first."""
    found = _libraries(root)
    for path in root.iterdir() if root.is_dir() else ():
        programs = states(path) if path.is_dir() else {}
        record = path / RECORD
        if not programs and not record.exists() and not (path / HELD).exists():
            continue  # not ours
        written = [state[1] / 1e9 for state in programs.values()] or [path.stat().st_mtime]
        kept = read_record(path)
        used_at = record.stat().st_mtime if record.exists() else max(written)
        built_at = _seconds(kept.get("created")) or min(written)
        found.append(Entry(path, sum(s[0] for s in programs.values()), used_at, built_at, kept.get("parts", {})))
    return sorted(found, key=lambda entry: (entry.used_at, entry.path.name))


def _libraries(root: Path) -> List[Entry]:
    found = []
    for path in root.glob(f"*{LIBRARY}"):
        record = path.with_suffix(".json")
        if not record.is_file():
            continue  # not ours, or just being written
        used_at, built_at = record.stat().st_mtime, path.stat().st_mtime
        found.append(Entry(path, path.stat().st_size, used_at, built_at, {"function": path.stem.rpartition("-")[0]}))
    return found


def _seconds(created: Any) -> float:
    """Seconds since 1970 of the record's ISO date; 0.0 of what is none."""
    try:
        return datetime.datetime.fromisoformat(created).timestamp()
    except (TypeError, ValueError):
        return 0.0


def choose(found: Sequence[Entry], rule: str, amount: float, now: float) -> List[Entry]:
    """Those that a rule of `prune` removes.

    Args:
        found: Least recently used first.
        rule: unused_for_days, older_than_days (used since or not), or larger_than_gb: the least recently used ones,
            until the rest holds at most that many times 10**9 bytes.
    """
    if rule == "unused_for_days":
        return [entry for entry in found if now - entry.used_at >= amount * DAY]
    if rule == "older_than_days":
        return [entry for entry in found if now - entry.built_at >= amount * DAY]
    total, going = sum(entry.size for entry in found), []
    for entry in found:
        if total <= amount * GB:
            break
        going.append(entry)
        total -= entry.size
    return going


def remove(entry: Entry) -> bool:
    """Remove a folder unless a process uses it, it vanishes under its name at once; or a library, which stays with
    the processes that have loaded it.

    Returns:
        Whether it is gone, be it that another process removed it.
    """
    if entry.path.suffix == LIBRARY:
        for path in (entry.path.with_suffix(".json"), entry.path):
            path.unlink(missing_ok=True)
        return True
    if not entry.path.is_dir():
        return True
    with (entry.path / HELD).open("a", encoding="utf-8") as stream:
        if not try_lock(stream):
            return False
        going = entry.path.with_name(entry.path.name + PARTIAL)
        os.replace(str(entry.path), str(going))
        shutil.rmtree(str(going))
    return True


def table(found: Sequence[Entry], now: float) -> str:
    """Name, size, age and what it was built for: the parts in which the folders differ."""
    width = max([16, *(len(entry.path.name) for entry in found)])
    lines = [f"{'name':<{width}}  {'MB':>9}  {'unused, days':>12}  {'age, days':>9}  built for"]
    names = _telling(found)
    for entry in found:
        told = ", ".join(f"{name} {json.dumps(entry.parts[name])}" for name in names if name in entry.parts)
        unused, age = ((now - at) / DAY for at in (entry.used_at, entry.built_at))
        amounts = f"{entry.size / 1e6:>9.1f}  {unused:>12.1f}  {age:>9.1f}"
        lines.append(f"{entry.path.name:<{width}}  {amounts}  {told or 'no record'}")
    total = sum(entry.size for entry in found)
    return "\n".join([*lines, f"{len(found)} entries, {total / 1e6:.1f} MB"])


def _telling(found: Sequence[Entry]) -> List[str]:
    names: Set[str] = {name for entry in found for name in entry.parts}
    differing = [name for name in sorted(names) if len({json.dumps(entry.parts.get(name)) for entry in found}) > 1]
    return (differing or sorted(names))[:SHOWN]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """List or prune a cache, as the command line says; returns the exit code."""
    options = _parser().parse_args(arguments)
    root = options.root or os.environ.get(CACHE_VARIABLE)
    if not root:
        sys.stderr.write(f"name the cache: --root FOLDER, or {CACHE_VARIABLE}\n")
        return USAGE
    found, now = entries(Path(root).expanduser()), time.time()
    if options.command == "list":
        print(table(found, now))
        return 0
    rules = ("unused_for_days", "older_than_days", "larger_than_gb")
    [(rule, amount)] = [(name, vars(options)[name]) for name in rules if vars(options)[name] is not None]
    going = choose(found, rule, amount, now)
    print(table(going, now))
    if not options.yes:
        print("nothing was removed: add --yes to remove these")
        return 0
    for entry in going:
        if not remove(entry):
            print(f"{entry.path.name} is in use and stays")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ipu_model.ipu.executables", description="Show and prune an executable cache."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="show what is kept")
    prune = commands.add_parser("prune", help="show what would be removed, and with --yes remove it")
    for command in (listing, prune):
        command.add_argument("--root", help=f"the cache; default {CACHE_VARIABLE}")
    rule = prune.add_mutually_exclusive_group(required=True)
    rule.add_argument("--unused-for-days", type=_at_least_zero, metavar="N", help="what was not used for N days")
    rule.add_argument("--older-than-days", type=_at_least_zero, metavar="N", help="what was built N days ago or before")
    rule.add_argument("--larger-than-gb", type=_at_least_zero, metavar="N", help="the least used, until N GB are left")
    prune.add_argument("--yes", action="store_true", help="remove; without it nothing is touched")
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
