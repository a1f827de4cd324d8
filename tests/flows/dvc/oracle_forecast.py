"""An oracle of tasks/plan/dvc_records.py, as it was before: what a run would do with each stage, and why.

DVC decides by the command of a stage, the hashes of what it reads, and its parameters. The same is worked out here for
a whole plan: where a stage would be restored, the hashes of what it makes are known from DVC's run-cache, so that the
stages after it are forecast too; where it would run they are not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from flows.runs.checkout import Checkout
from ipu_model.files import read_json
from tasks.params.strict_yaml import value_at
from tasks.plan.dvc_records import LOCK, cache_of
from tasks.plan.plan_file import COMPOSED_FILE, PARAMS_FILE, differences, read_dvc_file, stages_of
from tasks.stage.errors import ParamsError

IGNORED = Path(".dvcignore")
BLOCK = 1 << 20

Record = dict[str, Any]
"""A stage as dvc.lock and the run-cache state it: cmd, deps, params, outs."""
Hashes = dict[str, str | None]
"""Path -> MD5 as DVC states it; None: not known before the run."""


@dataclass(frozen=True)
class StageForecast:
    """One stage of a plan."""

    stage: str
    status: str
    """skipped (nothing changed), restored (a cache of this host has it), or runs."""
    why: tuple[str, ...]


@dataclass(frozen=True)
class _Needs:
    """A stage with everything filled in: what decides whether it runs."""

    cmd: str
    deps: Hashes
    params: dict[str, dict[str, Any] | None]
    """File -> key -> value; None: the file is not known before the run."""
    outs: tuple[str, ...]

    def differ(self, record: Record) -> list[str]:
        """In words, why DVC would not take what `record` made; empty where it would."""
        found = [] if record.get("cmd") == self.cmd else ["its command changed"]
        known = {dep["path"]: dep.get("md5") for dep in record.get("deps", ())}
        found += [f"{path} changed" for path, md5 in self.deps.items() if md5 is not None and known.get(path) != md5]
        stated = record.get("params", {})
        for file, values in self.params.items():
            before = stated.get(file, {})
            for name, value in (values or {}).items():
                for place, was, now in differences(name, before.get(name), value):
                    found.append(f"{place} {json.dumps(was)} -> {json.dumps(now)}")
        if set(known) != set(self.deps):
            found.append("its inputs changed")
        if {out["path"] for out in record.get("outs", ())} != set(self.outs):
            found.append("its outputs changed")
        return found

    def unknown(self) -> list[str]:
        """What it reads that is not known before the run."""
        found = [path for path, md5 in self.deps.items() if md5 is None]
        return found + [file for file, values in self.params.items() if values is None]


class _Run:
    """What is known of a run before it begins.

    Args:
        checkout: where the run would work; need not be there.
    """

    def __init__(self, checkout: Checkout) -> None:
        project, root = checkout.project.resolve(), checkout.folder.resolve()
        self._project, self._root, self._plan = project, root, checkout.plan
        self._stated = {PARAMS_FILE: checkout.values, COMPOSED_FILE: checkout.composed}
        self._cache = cache_of(project)
        self._ignored = _ignored(project)
        self._lock = stages_of(root / LOCK)
        self._reference = self._lock or stages_of(project / LOCK)
        self._records = _run_cache(self._cache)
        done = [(name, out) for name, one in self._lock.items() for out in one.get("outs", ())]
        self._made = {out["path"]: (name, out.get("md5")) for name, out in done}
        """Path that a stage makes -> that stage, and the MD5 that it will have."""
        self._hashed: dict[Path, str | None] = {}

    def tell(self, stage: str) -> StageForecast:
        """What happens to the next stage of the plan."""
        needs = self._needs(stage)
        found = self._decide(stage, needs)
        status, record, why = found
        made = {} if record is None else {out["path"]: out.get("md5") for out in record.get("outs", ())}
        self._made |= {path: (stage, made.get(path)) for path in needs.outs}
        return StageForecast(stage, status, tuple(why))

    def _decide(self, stage: str, needs: _Needs) -> tuple[str, Record | None, list[str]]:
        before = self._lock.get(stage)
        if unknown := needs.unknown():
            makers = dict.fromkeys(self._maker(path) for path in unknown)
            reference = self._reference.get(stage)
            return "runs", None, [f"after {', '.join(makers)}", *(needs.differ(reference) if reference else [])]
        if before is not None and not needs.differ(before):
            if missing := [path for path in needs.outs if not (self._root / path).exists()]:
                why = f"{', '.join(missing)} is missing"
                return ("restored" if self._is_kept(before) else "runs"), before, [why]
            return "skipped", before, []
        for record in self._records.get(needs.cmd, ()):
            if not needs.differ(record) and self._is_kept(record):
                return "restored", record, ["same code, data and parameters as an earlier run"]
        reference = self._reference.get(stage)
        if reference is None:
            return "runs", None, ["never ran here"]
        return "runs", None, needs.differ(reference) or ["its outputs are in no cache of this host"]

    def _maker(self, path: str) -> str:
        """The stage that makes a path, or the path where no stage of the plan does."""
        return next((self._made[folder][0] for folder in _folders(path) if folder in self._made), path)

    def _is_kept(self, record: Record) -> bool:
        """Whether the cache of this host has everything that a stage made."""
        return all(self._object(out["md5"]).exists() for out in record.get("outs", ()) if out.get("md5"))

    def _object(self, md5: str) -> Path:
        return self._cache / "files" / "md5" / md5[:2] / md5[2:]

    def _needs(self, stage: str) -> _Needs:
        defined = self._plan[stage]
        params: dict[str, dict[str, Any] | None] = {}
        for file, names in defined.params.items():
            content = self._stated[file] if file in self._stated else self._json(file)
            params[file] = None if content is None else {name: value_at(content, name) for name in names}
        deps: Hashes = {path: self._hash(path) for path in defined.deps}
        return _Needs(defined.cmd, deps, params, defined.outs)

    def _hash(self, path: str) -> str | None:
        """The MD5 that a path will have when the stage begins."""
        for folder in _folders(path):
            if folder in self._made:
                md5 = self._made[folder][1]
                return md5 if folder == path or md5 is None else self._inside(md5, path[len(folder) + 1 :])
        place, ignored = Path(os.path.normpath(self._root / path)), []
        if place.is_relative_to(self._root):
            place, ignored = self._project / place.relative_to(self._root), self._ignored
        if place not in self._hashed:
            self._hashed[place] = _md5_of(place, ignored)
        return self._hashed[place]

    def _inside(self, md5: str, name: str) -> str | None:
        """The MD5 of a file in a folder that the cache has."""
        return next((found for path, found in self._files(md5) if path == name), None)

    def _files(self, md5: str) -> list[tuple[str, str]]:
        """Name and MD5 of each file of a folder that the cache has; none of one that it has not."""
        listing = self._object(md5)
        return [(entry["relpath"], entry["md5"]) for entry in read_json(listing)] if listing.is_file() else []

    def kept(self, name: str) -> dict[str, Path]:
        """Files of that name in folders that are made, as they will be -> where the cache has them."""
        return {
            f"{folder}/{path}": self._object(found)
            for folder, (_, md5) in self._made.items()
            if md5 is not None and md5.endswith(".dir")
            for path, found in self._files(md5)
            if path.rpartition("/")[2] == name and self._object(found).is_file()
        }

    def _json(self, path: str) -> dict[str, Any] | None:
        """A JSON file that a stage makes, where the cache has it."""
        md5 = self._hash(path)
        if md5 is None or not self._object(md5).is_file():
            return None
        content: dict[str, Any] = read_json(self._object(md5))
        return content


def forecast(checkout: Checkout, target: Sequence[str]) -> list[StageForecast]:
    """What a run would do with the stages of its target, one after the other.

    It is right where outs are as DVC last saw them; one that was changed by hand is found by DVC alone.
    """
    return forecast_with_files(checkout, target, "")[0]


def forecast_with_files(
    checkout: Checkout, target: Sequence[str], name: str
) -> tuple[list[StageForecast], dict[str, Path]]:
    """As `forecast`, and files called `name` in folders that will be as a cache of this host has them, with where."""
    run = _Run(checkout)
    told = [run.tell(stage) for stage in target]
    return told, run.kept(name) if name else {}


def _folders(path: str) -> Iterator[str]:
    """The path, and the folders it is in."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def _run_cache(cache: Path) -> dict[str, list[Record]]:
    """Command -> what DVC remembers of stages that ran it, newest first."""
    found: dict[str, list[tuple[float, Record]]] = {}
    for path in (cache / "runs").glob("??/*/*"):
        try:
            record = read_dvc_file(path)
        except ParamsError:
            continue  # half of an entry, which flows/dvc/leftovers.py removes
        if isinstance(record, dict) and "cmd" in record:
            found.setdefault(record["cmd"], []).append((path.stat().st_mtime, record))
    return {cmd: [one for _, one in sorted(every, key=lambda pair: -pair[0])] for cmd, every in found.items()}


def _ignored(project: Path) -> list[str]:
    """The names that .dvcignore hides."""
    path = project / IGNORED
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _md5_of(path: Path, ignored: Sequence[str]) -> str | None:
    """The MD5 of a file, or of a folder as DVC makes it: of the list of its files."""
    if path.is_file():
        return _md5(path)
    if not path.is_dir():
        return None
    files = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not any(fnmatch(name, pattern) for pattern in ignored)]
        files += [Path(folder) / name for name in names if not any(fnmatch(name, pattern) for pattern in ignored)]
    entries = [{"md5": _md5(file), "relpath": file.relative_to(path).as_posix()} for file in files]
    entries.sort(key=lambda entry: entry["relpath"])
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
