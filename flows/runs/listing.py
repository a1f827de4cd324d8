"""The runs of a project: the one in its own folder, and each that has a checkout under runs/checkouts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.runs import locks, report
from flows.runs.checkout import own_folder
from ipu_model.strict import nearest
from tasks.plan.composing import FOLDERS
from tasks.plan.dvc_records import LOCK
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

PROJECT = "."
"""The name of the run in the project's own folder, which no other can have."""
RUNNING, NEVER = "running", "never started"
STATUSES = (
    RUNNING,
    "finished",
    "published",
    "proposed",
    "rejected",
    "failed",
    "paused",
    "cancelled",
    "interrupted",
    NEVER,
)
BLOCK = 512
"""Bytes of a block as `stat` counts them, whatever the file system's own are."""
NOT_ITS_OWN = ("bench", "checkouts", "home", "locks", "logs", "server", "sweeps")
"""In the project's runs/: what no single run made."""


@dataclass(frozen=True)
class Size:
    """In bytes of whole blocks."""

    own: int = 0
    """Of files that have no name elsewhere: what is free when they are removed."""
    shared: int = 0
    """Of files that have one: DVC links its outs to its cache. Each counts once, however many names it has."""


def size_of(paths: Iterable[Path]) -> Size:
    """The room of files and folders together. Links are not followed; what goes meanwhile is not counted.

    A copy-on-write clone (reflink) of a file counts in full, as file systems tell them apart from copies in no common
    way.
    """
    seen: dict[tuple[int, int], int] = {}
    own = shared = 0
    for status in (status for path in paths for status in _statuses(str(path))):
        size = status.st_blocks * BLOCK
        if status.st_nlink == 1:
            own += size
            continue
        node = (status.st_dev, status.st_ino)
        names = seen[node] = seen.get(node, 0) + 1
        if names == 1:
            shared += size
        if names == status.st_nlink:  # all of them lie here
            own, shared = own + size, shared - size
    return Size(own, shared)


def _statuses(path: str) -> Iterator[os.stat_result]:
    """What lstat says of a file, or of every file below a folder."""
    try:
        if not os.path.isdir(path) or os.path.islink(path):
            yield os.lstat(path)
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _statuses(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return


@dataclass(frozen=True)
class Run:
    """A run that there is, or was."""

    name: str
    folder: Path
    record: report.RunReport | None
    """What it said of itself last."""
    at_work: bool

    @property
    def status(self) -> str:
        """One of STATUSES."""
        if self.at_work:
            return RUNNING
        return NEVER if self.record is None else report.outcome(self.record)

    @property
    def was_killed(self) -> bool:
        """Whether it began, is not at work, and said nothing of its end."""
        record = self.record
        return not self.at_work and record is not None and record.began is not None and record.ended is None

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Entry -> metric -> percent."""
        results = self.record.results.values() if self.record is not None else ()
        return {one["name"]: one["scores"] for one in results}

    @property
    def last(self) -> float:
        """When it ended, or else began; seconds since 1970."""
        said = (self.record.ended or self.record.began) if self.record is not None else None
        return datetime.fromisoformat(said).timestamp() if said else self.folder.stat().st_mtime

    @property
    def began(self) -> float:
        """When it was started last, as `last` counts."""
        said = self.record.began if self.record is not None else None
        return datetime.fromisoformat(said).timestamp() if said else self.last

    def parts(self) -> list[Path]:
        """The files and folders that are its own."""
        if self.name != PROJECT:
            return [self.folder]
        runs = self.folder / artifacts.RUNS
        made = [*(self.folder / name for name in FOLDERS), self.folder / LOCK]
        return made + [path for path in (runs.iterdir() if runs.is_dir() else ()) if path.name not in NOT_ITS_OWN]

    def size(self) -> Size:
        """The room that it takes."""
        return size_of(self.parts())

    def as_values(self) -> dict[str, Any]:
        """For programs."""
        record, size = self.record, self.size()
        return {
            "name": self.name,
            "folder": str(self.folder),
            "status": self.status,
            "began": record and record.began,
            "ended": record and record.ended,
            "command": record and record.command,
            "scores": self.scores,
            "bytes": size.own,
            "bytes_shared": size.shared,
        }


def called(name: str) -> str:
    """The name of a run on a page, where a point would hardly be seen."""
    return "own folder" if name == PROJECT else name


def href(project: Path, run: Run) -> str:
    """Where the page of a run lies from those in the project's reports/; empty where it has none."""
    page = run.folder / artifacts.RUN_PAGE
    return quote(os.path.relpath(page, project / artifacts.REPORTS)) if page.is_file() else ""


def folder_of(project: Path, name: str) -> Path:
    """Where the run of a name works."""
    return project if name == PROJECT else own_folder(project, name)


def every(project: Path) -> list[Run]:
    """All runs of a project, the one that was started last first."""
    return sorted(_found(project), key=lambda run: run.began, reverse=True)


def _found(project: Path) -> Iterator[Run]:
    if (project / report.OWN_RECORD).is_file() or (project / LOCK).is_file() or locks.at_work(project, PROJECT):
        yield _run(project, PROJECT)
    folder = own_folder(project, "")
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.name.startswith("."):
            yield _run(project, path.name)


def _run(project: Path, name: str) -> Run:
    # The lock is looked at before the record: one that ends meanwhile counts as running then, and not as killed.
    at_work = locks.at_work(project, name)
    folder = folder_of(project, name)
    return Run(name, folder, report.read(project, folder), at_work)


def named(project: Path, names: Sequence[str]) -> list[Run]:
    """The runs of these names, in this order.

    Raises:
        ParamsError: there is none of one of them.
    """
    known = {run.name: run for run in _found(project)}
    if PROJECT in names and PROJECT not in known:
        known[PROJECT] = _run(project, PROJECT)
    if missing := [name for name in names if name not in known]:
        raise ParamsError(f"there is no run {missing[0]}{nearest(missing[0], list(known))}: podium runs lists them")
    return [known[name] for name in dict.fromkeys(names)]


def holding(runs: Sequence[Run], words: Sequence[str], statuses: Sequence[str]) -> list[Run]:
    """Those whose name, command, status or entries hold every word, whatever its case, and that have such a status."""
    return [run for run in runs if (not statuses or run.status in statuses) and _holds(run, words)]


def _holds(run: Run, words: Sequence[str]) -> bool:
    said = " ".join([run.name, (run.record and run.record.command) or "", run.status, *run.scores]).lower()
    return all(word.lower() in said for word in words)
