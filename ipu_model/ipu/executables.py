"""Compiled programs on disk: one folder per configuration, so that a hit can be foretold and a miss explained.

PopART keys its cache by a hash that nobody can read, and one folder with many `*.popef` is slow. So every
configuration gets `<root>/<fingerprint>/`, with PopART's `*.popef` and a `podium.json` that says what they were
built for. The fingerprint is ours and only foretells; PopART decides, and `outcome` says when the two disagree.

`python -m ipu_model.ipu.executables list|prune` shows and cleans a cache.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ipu_model.errors import ConfigError
from ipu_model.ipu.config import CACHE_OFF
from ipu_model.ipu.program_folder import (
    CACHE_VARIABLE,
    RECORD,
    ProgramFolder,
    Say,
    Sizes,
    carried,
    difference,
    differing,
    give,
    link,
    read_record,
    states,
    take,
)
from ipu_model.ipu.pruning import run
from ipu_model.jobs.fingerprint import fingerprint, flat

LIVE = ".live"
"""Name of the folder of live executables beside those that travel."""


def cache_root(
    environ: Mapping[str, str], configured: Optional[str], say: Say, shared: Optional[str] = None
) -> Optional[Path]:
    """Where executables are kept: PODIUM_EXECUTABLE_CACHE, else executable_cache_dir, else beside those that travel,
    else nowhere (None).

    Args:
        configured: executable_cache_dir of the ipu_config; "" and "disabled" mean none, as in Optimum.
        shared: Job.executables.
    """
    configured = None if configured in (None, *CACHE_OFF) else configured
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
        self._root, self._say, self._shared = _writable(Path(root), say), say, shared
        self._source = Path(root) if self._root != Path(root) else None
        self._opened: Dict[str, ProgramFolder] = {}

    def folder(self, parts: Dict[str, Any]) -> Path:
        """The folder for enableExecutableCaching: there, clean, and held against prune until close().

        Raises:
            ConfigError: it cannot be made.
        """
        return self._open(parts).path

    def expectation(self, parts: Dict[str, Any]) -> Tuple[bool, str]:
        """Whether compiling will find its executable, and why, in one line. Damaged executables are discarded."""
        opened = self._open(parts)
        opened.expected = bool(opened.before)
        damaged = f"{opened.damage}: discarded" if opened.damage else ""
        if opened.filled:
            also = f"; in it {damaged}" if damaged else ""
            return (
                True,
                f"hit, {_amount(opened.sizes)} from {self._source_of(parts)}, checked and put into {opened.path}{also}",
            )
        if opened.before:
            return True, f"hit, {_amount(opened.sizes)} in {opened.path}"
        refused = f"{self._source_of(parts)} {opened.not_filled}" if opened.not_filled else ""
        why = "; ".join(filter(None, [damaged, refused])) or self._nearest(flat(parts))
        opened.told = f"built: {why}"
        return False, f"miss, {why}{', built anew' if damaged or refused else ''}"

    def outcome(self, parts: Dict[str, Any]) -> str:
        """After compiling: whether PopART found its executable; records what the folder now holds."""
        opened = self._open(parts)
        new = {name: state for name, state in states(opened.path).items() if opened.before.get(name) != state}
        if new:
            text = f"built, {_amount({name: state[0] for name, state in new.items()})}"
            try:
                opened.record(flat(parts))
            except OSError as error:  # a full disk: the program runs all the same
                text += f", but it could not be recorded ({error.strerror}), so the next run compiles again"
            if opened.expected:
                text += (
                    ". A miss although a hit was expected: something outside the fingerprint decides too; compare "
                    f"{opened.path / RECORD} with this run, and report it"
                )
            opened.before = states(opened.path)
            opened.told = opened.told or "built, although a hit was expected"
            return text
        if opened.before:
            opened.touch()
            opened.told = f"restored from {self._source_of(parts)}" if opened.filled else "loaded from the cache"
            return "loaded from the cache, nothing was compiled"
        return "built, but PopART kept nothing (the IPU Model has no cache): the next run compiles again"

    def summary(self, parts: Dict[str, Any]) -> str:
        """After outcome: how the program came to be, for result.json: built and why, loaded, or restored."""
        return self._open(parts).told

    def give(self, parts: Dict[str, Any], target: Optional[str]) -> None:
        """After outcome: fill the folder `target` of a job, where there is one, for other hosts.

        Raises:
            OSError: it cannot be written.
        """
        if target is not None:
            give(self._open(parts).path, flat(parts), carried(Path(target), parts["mode"]))

    def close(self) -> None:
        """Let go of the folders."""
        for opened in self._opened.values():
            opened.release()
        self._opened.clear()

    def _open(self, parts: Dict[str, Any]) -> ProgramFolder:
        key = fingerprint(parts)
        if key not in self._opened:
            try:
                path = self._root / key
                path.mkdir(parents=True, exist_ok=True)
                if self._source is not None:
                    link(self._source / key, path)
                self._opened[key] = ProgramFolder(path, self._say, self._fill(parts))
            except OSError as error:
                raise ConfigError(
                    f"the executable cache {self._root} cannot be used ({error.strerror}): set {CACHE_VARIABLE} to a "
                    "folder that can be written"
                ) from error
        return self._opened[key]

    def _fill(self, parts: Dict[str, Any]) -> Optional[Callable[[Path], str]]:
        source = self._source_of(parts)
        return None if source is None else lambda path: take(source, flat(parts), path)

    def _source_of(self, parts: Dict[str, Any]) -> Optional[Path]:
        return None if self._shared is None else carried(Path(self._shared), parts["mode"])

    def _nearest(self, parts: Dict[str, Any]) -> str:
        """The stored configuration of the same mode that differs least, and in what."""
        best: Optional[List[str]] = None
        nearest: Dict[str, Any] = {}
        for root in [self._root] + ([self._source] if self._source is not None else []):
            for record in sorted(root.glob(f"*/{RECORD}")):
                stored = read_record(record.parent).get("parts", {})
                names = differing(stored, parts)
                if stored.get("mode") != parts.get("mode"):
                    continue  # a training program says nothing about one of inference
                if names and (best is None or len(names) < len(best)):
                    best, nearest = names, stored
        if best is None:
            return "no executable yet"
        return f"no executable yet; the nearest stored one differs in {difference(nearest, parts)}"


def _writable(root: Path, say: Say) -> Path:
    """`root`, or a folder of the user's own when it is read-only: PopTorch insists on writing."""
    existing = next(folder for folder in [root, *root.absolute().parents] if folder.exists())
    if os.access(str(existing), os.W_OK):
        return root
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = home / "podium" / "executables"
    say(f"executables: {root} is read-only; what it holds is linked into {own}, what is new stays there")
    return own


def _amount(sizes: Sizes) -> str:
    count = len(sizes)
    return f"{count} file{'s' if count > 1 else ''}, {sum(sizes.values()) / 1e6:.1f} MB"


def main() -> int:
    """list or prune; the work is in ipu_model/ipu/pruning.py."""
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
