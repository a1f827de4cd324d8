"""Runs of a project: the one in the project folder, and those in checkouts under runs/checkouts."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.runs import locks, report
from flows.runs.checkout import checkout_folder
from ipu_model.core.strict import nearest
from tasks.plan.dvc_records import LOCK
from tasks.plan.writing import FOLDERS
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

PROJECT = "."
"""Name of the run in the project folder. No other run can have it."""
RUNNING, NEVER = "running", "never started"
FINISHED = ("finished", "published", "proposed", "rejected")
"""Statuses of runs whose stages are all up to date."""
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
    "killed",
    NEVER,
)
BLOCK = 512
"""Bytes of a block in the result of `stat`, for any file system."""
SHARED_FOLDERS = ("bench", "checkouts", "home", "locks", "logs", "server", "sweeps")
"""Folders in runs/ that do not belong to the run in the project folder."""
SWEEPS = artifacts.RUNS / "sweeps"
"""Folder with a file for each sweep: its trials, their scores, and the best run."""


@dataclass(frozen=True)
class DiskUsage:
    """Disk use, in bytes of whole blocks."""

    own: int = 0
    """Bytes of files without hard links elsewhere, which are freed when the files are removed."""
    shared: int = 0
    """Bytes of files with hard links elsewhere, such as outs linked to DVC's cache. Each file counts once."""


def measure_disk(paths: Iterable[Path]) -> DiskUsage:
    """Measure the disk use of files and folders together. Symbolic links are not followed.

    A copy-on-write clone (reflink) counts in full, as there is no portable way to tell it from a copy. Files removed
    meanwhile are ignored.
    """
    nodes: dict[tuple[int, int], os.stat_result] = {}
    exclusive, names = 0, Counter[tuple[int, int]]()
    for status in (status for path in paths for status in _statuses(str(path))):
        if status.st_nlink == 1:
            exclusive += status.st_blocks * BLOCK
        else:
            node = (status.st_dev, status.st_ino)
            nodes[node], names[node] = status, names[node] + 1
    sizes = {node: status.st_blocks * BLOCK for node, status in nodes.items()}
    whole = sum(size for node, size in sizes.items() if names[node] == nodes[node].st_nlink)  # all links are here
    return DiskUsage(exclusive + whole, sum(sizes.values()) - whole)


def _statuses(path: str) -> Iterator[os.stat_result]:
    """Yield the lstat result of a file, or of every file below a folder."""
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
    """Run of a project, active or ended."""

    name: str
    folder: Path
    record: report.RunReport | None
    """Its last record."""
    at_work: bool

    @property
    def status(self) -> str:
        """One of STATUSES."""
        if self.at_work:
            return RUNNING
        return NEVER if self.record is None else report.run_outcome(self.record)

    @property
    def status_text(self) -> str:
        """Status for people, which names a run of another version of Podium."""
        is_other = self.record is not None and self.record.of_other_version
        return f"{self.status} (other version)" if is_other else self.status

    @property
    def was_killed(self) -> bool:
        """True if the run ended without recording it."""
        record = self.record
        return not self.at_work and record is not None and record.began is not None and record.ended is None

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Entry -> metric -> percent; phase of the pre-training -> score (report.PRETRAINING_SCORES)."""
        if self.record is None:
            return {}
        trained = {phase["name"]: report.sort_scores(phase["scores"]) for phase in self.record.pretraining.values()}
        return trained | {result["name"]: result["scores"] for result in self.record.results.values()}

    @property
    def last(self) -> float:
        """Its end, or else its start; seconds since 1970."""
        when = (self.record.ended or self.record.began) if self.record is not None else None
        return datetime.fromisoformat(when).timestamp() if when else self.folder.stat().st_mtime

    @property
    def began(self) -> float:
        """Its last start; seconds since 1970."""
        began = self.record.began if self.record is not None else None
        return datetime.fromisoformat(began).timestamp() if began else self.last

    @property
    def seconds(self) -> float | None:
        """Its duration with its earlier starts; None if it has not ended."""
        record = self.record
        if record is None or record.ended is None or record.began is None:
            return None
        return record.earlier_seconds + record.measure_seconds(self.last)

    @property
    def evaluated_on(self) -> tuple[Any, ...] | None:
        """Facts that runs must share for their leading scores to be comparable: the metric, the kind of the entry and
        its development data, or the phase and the text of a pre-training; None: not known."""
        score = self.record.leading_score if self.record is not None else None
        data = None if score is None else self.describe_data(score.owner)
        if score is None or data is None:
            return None
        ignored: tuple[str, ...] = ()
        if score.owner in self.entries:  # a score on development data, which may be a part of the training data
            ignored = ("rows.", "distill.", *(() if ("data.dev_path", "null") in data else ("data.train",)))
        return score.metric, data[0], *(item for item in data[1:] if not item[0].startswith(ignored))

    @property
    def entries(self) -> dict[str, str]:
        """Name -> kind of its entries."""
        return {} if self.record is None else dict(self.record.details.get("entries", {}))

    def describe_data(self, owner: str) -> tuple[Any, ...] | None:
        """Return the kind of an entry, or a phase, and the parameters that determine the data of its training and what
        its loss is; runs with equal ones have comparable losses. None: not known."""
        if self.record is None or not self.record.details:
            return None
        kind, entry = self.entries.get(owner), f"downstream.{owner}."
        parts = ("data.", "task", "rows.", "distill.")
        data = (*(f"{entry}{part}" for part in parts),) if kind else ("corpus.", "tokenizer.", "pretrain_rows.")
        changed = self.record.details["changed"].items()
        return kind or owner, *sorted(
            (name.removeprefix(entry), value) for name, value in changed if name.startswith(data)
        )

    def parts(self) -> list[Path]:
        """Return the files and folders of the run."""
        if self.name != PROJECT:
            return [self.folder]
        runs = self.folder / artifacts.RUNS
        made = [*(self.folder / name for name in FOLDERS), self.folder / LOCK]
        return made + [path for path in (runs.iterdir() if runs.is_dir() else ()) if path.name not in SHARED_FOLDERS]

    def size(self) -> DiskUsage:
        """Measure its disk use."""
        return measure_disk(self.parts())

    def as_values(self) -> dict[str, Any]:
        """Return the values that `podium runs --json` prints."""
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


@dataclass(frozen=True)
class ScoreChange:
    """Change of the leading score of a run since the run before it."""

    before: str
    """Name of the run before it that was evaluated on the same data."""
    text: str
    """Difference with its sign."""
    is_better: bool | None
    """None: the paired test shows no difference; if there is none, the score before is within this one's interval."""


def find_changes(runs: Sequence[Run]) -> dict[str, ScoreChange]:
    """Return name -> change of each of these runs, newest first, whose score can be compared with an earlier one."""
    last: dict[tuple[Any, ...], tuple[str, float]] = {}
    changes = {}
    for run in sorted(reversed(runs), key=lambda item: item.began):  # noqa: C414 - the sort is stable
        if run.record is None or (score := run.record.leading_score) is None or (key := run.evaluated_on) is None:
            continue
        if paired := next((result["before"] for result in run.record.results.values() if "before" in result), None):
            is_better = {"better": True, "worse": False}.get(paired["verdict"])
            changes[run.name] = ScoreChange(paired["run"], f"{paired['mean']:+.2f}", is_better)
        elif key in last:
            before, value = last[key]
            falls, points = score.metric in report.LOWER_IS_BETTER, score.value - value
            low, high = score.interval or (score.value, score.value)
            is_better = None if low <= value <= high else (points < 0) == falls
            changes[run.name] = ScoreChange(before, f"{points:+.{4 if falls else 2}f}", is_better)
        last[key] = run.name, score.value
    return changes


def format_score(score: report.LeadingScore) -> str:
    """Return a leading score with its name and interval, or the loss and perplexity of a pre-training."""
    if score.metric in report.LOWER_IS_BETTER:
        more = "" if score.perplexity is None else f", perplexity {score.perplexity:,.2f}"
        return f"{score.title} {score.value:.4f}{more}"
    more = "" if score.interval is None else f" ({score.interval[0]:.1f} to {score.interval[1]:.1f})"
    return f"{score.title} {score.value:.2f}{more}"


def format_age(seconds: float) -> str:
    """Return how long ago something was, in one unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"


def display_name(name: str) -> str:
    """Return the name of a run for pages, where "." would be easy to miss."""
    return "own folder" if name == PROJECT else name


def page_link(project: Path, run: Run) -> str:
    """Return the link to a run's page from the project's reports/; empty if it has no page."""
    page = run.folder / artifacts.RUN_PAGE
    return quote(os.path.relpath(page, project / artifacts.REPORTS)) if page.is_file() else ""


def run_folder(project: Path, name: str) -> Path:
    """Return the folder of a run."""
    return project if name == PROJECT else checkout_folder(project, name)


def list_all(project: Path) -> list[Run]:
    """Return all runs of a project, last started first."""
    folder = checkout_folder(project, "")
    names = [path.name for path in (folder.iterdir() if folder.is_dir() else ()) if path.is_dir()]
    runs = [_read_run(project, name) for name in names if not name.startswith(".")]
    if (project / report.OWN_RECORD).is_file() or (project / LOCK).is_file() or locks.is_running(project, PROJECT):
        runs.append(_read_run(project, PROJECT))
    return sorted(runs, key=lambda run: run.began, reverse=True)


def list_shown(project: Path) -> list[Run]:
    """Return the runs of a project without the stages that a listed run sent to a worker of this same project."""
    runs = list_all(project)
    senders = {run.name for run in runs if run.record is not None and run.record.options.get("on_workers")}

    def is_sent(run: Run) -> bool:  # its name is that of its sender with a key of the parameters
        sender = run.name.rpartition("-")[0]
        return run.record is not None and run.record.command == report.SENT and sender in senders

    return [run for run in runs if not is_sent(run)]


def _read_run(project: Path, name: str) -> Run:
    # Check the lock before the record: a run that ends between the two counts as running, not as killed.
    at_work = locks.is_running(project, name)
    folder = run_folder(project, name)
    return Run(name, folder, report.read_report(project, folder), at_work)


def find_runs(project: Path, names: Sequence[str]) -> list[Run]:
    """Return the runs of these names, in this order.

    Raises:
        ParamsError: a name is not found.
    """
    known = {run.name: run for run in list_all(project)}
    if PROJECT in names and PROJECT not in known:
        known[PROJECT] = _read_run(project, PROJECT)
    if missing := [name for name in names if name not in known]:
        raise ParamsError(f"run {missing[0]} not found{nearest(missing[0], list(known))}")
    return [known[name] for name in dict.fromkeys(names)]


def filter_runs(runs: Sequence[Run], words: Sequence[str], statuses: Sequence[str]) -> list[Run]:
    """Return runs with one of the statuses, and with each word in name, command, status or entries, ignoring case."""
    kept = [run for run in runs if not statuses or run.status in statuses]
    for word in words:
        texts = ((run, [run.name, (run.record and run.record.command) or "", run.status, *run.scores]) for run in kept)
        kept = [run for run, text in texts if word.lower() in " ".join(text).lower()]
    return kept
