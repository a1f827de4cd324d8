"""Compiled programs on disk: one folder per configuration, so that a hit can be foretold and a miss explained.

PopART keys its cache by a hash that nobody can read, and one folder with many `*.popef` is slow. So every
configuration gets `<root>/<fingerprint>/`, with PopART's `*.popef` and a `podium.json` that says what they were
built for. The fingerprint is ours and only foretells; PopART decides, and `outcome` says when the two disagree.

`python -m ipu_model.ipu.executables list|prune` shows and cleans a cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ipu_model.dotted import flat
from ipu_model.errors import ConfigError
from ipu_model.ipu.config import CACHE_OFF
from ipu_model.ipu.program_folder import RECORD, ProgramFolder, Say, Sizes, link, read_record, states

CACHE_VARIABLE = "PODIUM_EXECUTABLE_CACHE"
VERSIONS = ("poptorch", "poplar_sdk", "torch")
"""Parts, by the last word of their name, that name a version."""
SHOWN = 4
"""Differences that a line names."""


def cache_root(environ: Mapping[str, str], configured: Optional[str], say: Say) -> Optional[Path]:
    """Where executables are kept: PODIUM_EXECUTABLE_CACHE, else executable_cache_dir, else nowhere (None).

    Args:
        configured: executable_cache_dir of the ipu_config; "" and "disabled" mean none, as in Optimum.
    """
    configured = None if configured in (None, *CACHE_OFF) else configured
    chosen = environ.get(CACHE_VARIABLE) or None
    if chosen is not None:
        also = f", not executable_cache_dir {configured}" if configured not in (None, chosen) else ""
        say(f"executables: {chosen} ({CACHE_VARIABLE}{also})")
    elif configured is not None:
        chosen = configured
        say(f"executables: {chosen} (executable_cache_dir of the ipu_config)")
    else:
        say(f"executables: not kept, every run compiles; set {CACHE_VARIABLE} or executable_cache_dir to a folder")
    return None if chosen is None else Path(chosen).expanduser()


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of what decides an executable; the order of the keys does not matter."""
    text = json.dumps(flat(parts), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


class ExecutableCache:
    """The executables under one root, for one job.

    Args:
        root: From cache_root.
        say: Takes lines for people.
    """

    def __init__(self, root: Path, say: Say) -> None:
        self._root, self._say = _writable(Path(root), say), say
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
        if opened.before:
            return True, f"hit, {_amount(opened.sizes)} in {opened.path}"
        if opened.damage:
            return False, f"miss, {opened.damage}: discarded, built anew"
        return False, f"miss, {self._nearest(flat(parts))}"

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
            return text
        if opened.before:
            opened.touch()
            return "loaded from the cache, nothing was compiled"
        return "built, but PopART kept nothing (the IPU Model has no cache): the next run compiles again"

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
                self._opened[key] = ProgramFolder(path, self._say)
            except OSError as error:
                raise ConfigError(
                    f"the executable cache {self._root} cannot be used ({error.strerror}): set {CACHE_VARIABLE} to a "
                    "folder that can be written"
                ) from error
        return self._opened[key]

    def _nearest(self, parts: Dict[str, Any]) -> str:
        """The stored configuration of the same mode that differs least, and in what."""
        best: Optional[List[str]] = None
        for root in [self._root] + ([self._source] if self._source is not None else []):
            for record in sorted(root.glob(f"*/{RECORD}")):
                stored = read_record(record.parent).get("parts", {})
                differing = sorted(name for name in {*stored, *parts} if stored.get(name) != parts.get(name))
                if stored.get("mode") != parts.get("mode"):
                    continue  # a training program says nothing about one of inference
                if differing and (best is None or len(differing) < len(best)):
                    best, nearest = differing, stored
        if best is None:
            return "no executable yet"
        words = [f"{name} {_shown(nearest.get(name))} -> {_shown(parts.get(name))}" for name in best[:SHOWN]]
        more = f" and {len(best) - SHOWN} more" if len(best) > SHOWN else ""
        other_sdk = all(name.rpartition(".")[2] in VERSIONS for name in best)
        sdk = "; executables do not load under another SDK" if other_sdk else ""
        return f"no executable yet; the nearest stored one differs in {', '.join(words)}{more}{sdk}"


def _writable(root: Path, say: Say) -> Path:
    """`root`, or a folder of the user's own when it is read-only: PopTorch insists on writing."""
    existing = next(folder for folder in [root, *root.absolute().parents] if folder.exists())
    if os.access(str(existing), os.W_OK):
        return root
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = home / "podium" / "executables"
    say(f"executables: {root} is read-only; what it holds is linked into {own}, what is new stays there")
    return own


def _shown(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."


def _amount(sizes: Sizes) -> str:
    count = len(sizes)
    return f"{count} file{'s' if count > 1 else ''}, {sum(sizes.values()) / 1e6:.1f} MB"


def main() -> int:
    """list or prune; the work is in ipu_model/ipu/pruning.py."""
    from ipu_model.ipu.pruning import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
