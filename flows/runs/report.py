"""What a run says of itself: reports/run.json, filled while the run goes on."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from flows.runs.environment import name_of
from ipu_model.files import read_json, write_json
from tasks.downstream.gate.recipe_words import RECIPE, WITHOUT_FLOOR
from tasks.plan.code_state import git
from tasks.plan.plan_file import Plan, Stage, read_plan
from tasks.stage import artifacts

OWN_RECORD = artifacts.RUNS / "run.json"
DECIDED = ("accepted", "reasons", *RECIPE, WITHOUT_FLOOR)
"""What a run keeps of a verdict."""
WORKER_ENDED = "the end of its worker"
"""What interrupts a run that nobody cancelled: a worker starts it again."""
UNFINISHED = ("failed", "cancelled", "interrupted", "paused")
"""Outcomes of runs that the next one of their folder goes on from."""
MOST_EARLIER = 20
NAMES = 32
"""Characters of the longest name of a stage, validate_examples@classification."""
HEADER = f"{'stage':<{NAMES}} {'status':<9} seconds"
SECONDS_FOR_GIT = 5.0
MADE_BY_RUNS = ("dvc.lock", "plan.yaml")
"""Which git may keep, and which no change of theirs makes another revision of."""


@dataclass(frozen=True)
class StageRecord:
    """One stage of a run."""

    name: str
    status: str
    """ran, skipped (nothing had changed), restored (from a cache), paused, interrupted (Ctrl-C, SIGTERM) or failed."""
    seconds: float
    """Wall time, the orchestration's own included."""
    host: str | None = None
    """The host it ran on, where the run was sent to workers."""
    began: float | None = None
    """Seconds since 1970."""
    cpu_seconds: float | None = None
    """Of its process and those that this started, by its own account (tasks/stage/process.py)."""
    peak_memory_mb: float | None = None
    """Of the largest of them."""


@dataclass
class RunReport:
    """reports/run.json, filled while the run goes on."""

    folder: str
    """Where the run's files are, from the project's folder; "." unless it has a checkout of its own."""
    preset: str | None = None
    overrides: list[str] = field(default_factory=list)
    stages: list[StageRecord] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Gate of the run -> name of what it judges, scores (in percent), their intervals (low and high of 95%), checks (as
    the gate writes them), decision (accepted, reasons, and of several seeds what RECIPE names) and published, the
    receipt; the last two None where there is none."""
    error: str | None = None
    programs: dict[str, str] = field(default_factory=dict)
    """How the stages that ran on IPUs came by their programs: built and why, loaded, or restored."""
    pages: list[str] = field(default_factory=list)
    """What stages of the run wrote for people, from its folder."""
    packing: dict[str, dict[str, float]] = field(default_factory=dict)
    """Stage that ran on a device -> packing_factor and packing_efficiency of its rows."""
    paused: str | None = None
    """Why a stage stopped at a checkpoint; the run continues when it is started again."""
    interrupted: str | None = None
    """What ended the run where no checkpoint was made: Ctrl-C, a signal, Prefect or its worker; `error` says more."""
    command: str | None = None
    """The words that started it."""
    began: str | None = None
    """Local time, ISO 8601, as is when it `ended`; None until the run has begun."""
    ended: str | None = None
    log: str | None = None
    """From the project's folder; None on a worker."""
    plan: list[str] = field(default_factory=list)
    """The stages it was to bring up to date."""
    at_work: dict[str, float] = field(default_factory=dict)
    """Stage that has begun, and not ended -> when, in seconds since 1970."""
    host: str | None = None
    """Where it was started."""
    user: str | None = None
    """Who started it."""
    python: str | None = None
    commit: str | None = None
    """Of the project, where git keeps it; short."""
    changed: bool | None = None
    """Whether files of the project were not as that commit has them."""
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """Runs of this folder, since one came to its end, that did not: began, ended, outcome and why; what they had done
    is not done again."""

    @property
    def name(self) -> str:
        """What the run is called: as its checkout, or "." for that of the project's own folder."""
        return Path(self.folder).name or "."

    @property
    def identity(self) -> str | None:
        """When it began, in UTC, and its name; None until it has begun."""
        if self.began is None:
            return None
        began = datetime.fromisoformat(self.began).astimezone(UTC)
        return f"{began.isoformat(timespec='seconds')} {self.name}"

    @property
    def reasons(self) -> list[str]:
        """Why the run did not finish."""
        return [text for text in (self.error, self.paused) if text is not None]

    def begin(self, project: Path) -> None:
        """Say in the record of the run that it is at work; a disk that is full is named by what needs it."""
        self.began = _now()
        self.host, self.python = socket.gethostname(), platform.python_version()
        self.user = name_of(os.getuid())
        self.commit, self.changed = revision_of(project)
        self.remember(project)
        with contextlib.suppress(OSError):
            self.keep(project)

    def end(self) -> None:
        """The run has come to its end, whatever that was."""
        self.ended = _now()
        self.at_work.clear()

    def remember(self, project: Path) -> None:
        """Take over how the runs of this checkout ended that did not come to their end."""
        before = read(project, project / self.folder)
        if before is not None and (ended := outcome(before)) in UNFINISHED:
            why = before.error or before.paused
            self.earlier = [
                *before.earlier,
                {"began": before.began, "ended": before.ended, "outcome": ended, "why": why},
            ][-MOST_EARLIER:]

    def enter(self, record: StageRecord) -> None:
        """Add a stage; of one that is entered again, because a worker was lost or another host needs its outs, what it
        cost is kept, and where it ran."""
        self.at_work.pop(record.name, None)
        for index, before in enumerate(self.stages):
            if before.name == record.name:
                spent = before.seconds + record.seconds
                kept = record.status == "skipped" or (record.status == "restored" and before.status == "ran")
                made = before if kept else record
                self.stages[index] = replace(made, seconds=round(spent, 2))
                break
        else:
            self.stages.append(record)

    def sort(self, plan: Sequence[str]) -> None:
        """Put the stages in the order of the plan, whenever they ended."""
        self.stages.sort(key=lambda stage: plan.index(stage.name))

    def read_results(self, root: Path) -> None:
        """Take what the stages of the run wrote: scores, decisions, figures of device jobs, pages."""
        plan = read_plan(root)
        stages = [plan[stage.name] for stage in self.stages if stage.name in plan]
        for stage in stages:
            if stage.is_gate:
                self.results[stage.name] = _result(stage, plan, root)
            elif stage.uses_device:
                figures = metrics_of(stage, root)
                if "packing_factor" in figures:
                    self.packing[stage.name] = {key: figures[key] for key in ("packing_factor", "packing_efficiency")}
                if "program" in figures and any(one.name == stage.name and one.status == "ran" for one in self.stages):
                    self.programs[stage.name] = figures["program"]
        self.pages = _together([str(stage.meta["page"]) for stage in stages if "page" in stage.meta])

    def accepts(self, gate: str) -> bool:
        """Whether a gate of the run accepted."""
        decision = self.results[gate]["decision"]
        return decision is not None and bool(decision["accepted"])

    def enter_receipt(self, receipt: dict[str, Any], gate: str) -> None:
        """Take what publish says of itself; its folder is stated from the checkout, ours from the project.

        Args:
            receipt: what it wrote.
            gate: the stage that accepted it.
        """
        published = dict(receipt)
        if "folder" in receipt:
            published["folder"] = os.path.normpath(os.path.join(self.folder, receipt["folder"]))
        self.results[gate]["published"] = published

    def write(self, project: Path) -> None:
        """Write the record of the run, and reports/run.json of the project, which is that of the last run."""
        self.keep(project)
        write_json(project / artifacts.RUN_REPORT, self.as_values())

    def keep(self, project: Path) -> None:
        """Write the record of the run."""
        write_json(record_of(project, project / self.folder), self.as_values())

    def as_values(self) -> dict[str, Any]:
        """The report as plain values; what only runs on workers or paused ones have is left out of others."""
        values = asdict(self)
        values["stages"] = [{k: v for k, v in stage.items() if v is not None} for stage in values["stages"]]
        for name in ("paused", "interrupted", "log", "at_work", "earlier"):
            if not values[name]:
                del values[name]
        return values


def read_json_object(path: Path) -> dict[str, Any] | None:
    """What a stage wrote; None where it has not run."""
    if not path.is_file():
        return None
    values: dict[str, Any] = read_json(path)
    return values


def metrics_of(stage: Stage, root: Path) -> dict[str, Any]:
    """Return the figures and the measurements of a stage; empty where it has none, or has not run."""
    found: dict[str, Any] = {}
    for path in stage.metrics:
        for name, value in (read_json_object(root / path) or {}).items():
            before = found.get(name)  # a development set, where there are several
            found[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return found


def _result(gate: Stage, plan: Plan, root: Path) -> dict[str, Any]:
    """What a gate decided, and on which scores: those with bounds that the page of an evaluation shows."""
    evaluations = [plan[name] for name in plan.needs[gate.name] if "page" in plan[name].meta and plan[name].metrics]
    files = [path for stage in evaluations for path in stage.metrics]
    figures = read_json_object(root / files[0]) or {} if files else {}
    scores = {name: value for name, value in figures.items() if f"{name}_low" in figures}
    decided = metrics_of(gate, root)
    return {
        "name": Path(files[0]).stem if files else gate.name,
        "scores": scores,
        "intervals": {
            name: [figures[f"{name}_low"], figures[f"{name}_high"]] for name in scores if f"{name}_high" in figures
        },
        "checks": decided.get("checks", []),
        "decision": {name: decided[name] for name in DECIDED if name in decided} or None,
        "published": None,
    }


def _together(pages: Sequence[str]) -> list[str]:
    """Pages of one folder as one pattern."""
    folders = [str(PurePosixPath(page).parent) for page in pages]
    found = (page if folders.count(one) == 1 else f"{one}/*.html" for page, one in zip(pages, folders, strict=True))
    return list(dict.fromkeys(found))


def outcome(report: RunReport) -> str:
    """The run in one word: cancelled, interrupted, failed, paused, rejected, proposed (to review), published, finished.

    One that says nothing of its end, interrupted, was killed, or is at work still, which its lock tells.
    """
    if report.interrupted is not None:
        return "interrupted" if report.interrupted == WORKER_ENDED else "cancelled"
    if report.began is not None and report.ended is None:
        return "interrupted"
    if report.error is not None:
        return "failed"
    if report.paused is not None:
        return "paused"
    results = report.results.values()
    if any(one["decision"] is not None and not one["decision"]["accepted"] for one in results):
        return "rejected"
    found = [how_published(one["published"]) for one in results if one["published"] is not None]
    return min(found, key=("proposed", "published").index, default="finished")


def how_published(receipt: dict[str, Any]) -> str:
    """A receipt in one word: published, or proposed (for review)."""
    return "proposed" if receipt.get("pull_request") else "published"


def row(stage: StageRecord) -> str:
    """A stage in one line."""
    place = "" if stage.host is None else f"  {stage.host}"
    return f"{stage.name:<{NAMES}} {stage.status:<9} {stage.seconds:7.1f}{place}"


def total(report: RunReport) -> str:
    """The last line below the rows of all stages."""
    return f"{'all stages':<{NAMES}} {'':<9} {sum(stage.seconds for stage in report.stages):7.1f}"


def record_of(project: Path, root: Path) -> Path:
    """The file that says what became of the run in the folder `root`.

    The project's own is not its reports/run.json, which is that of the last run, wherever that worked.
    """
    return project / OWN_RECORD if root.resolve() == project.resolve() else root / artifacts.RUN_REPORT


def read(project: Path, root: Path) -> RunReport | None:
    """The record of the run in the folder `root`; None if there is none."""
    values = read_json_object(record_of(project, root))
    if values is None:
        return None
    values["stages"] = [StageRecord(**stage) for stage in values["stages"]]
    return RunReport(**values)


def where_published(published: dict[str, Any]) -> str:
    """The place of a publish receipt, in words."""
    place = published.get("url") or published.get("repository") or published.get("folder")
    return f"{place}{' (unchanged)' if published.get('unchanged') else ''}"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def revision_of(project: Path) -> tuple[str | None, bool | None]:
    """The commit that is checked out, short, and whether files that git keeps are not as it has them; None without git,
    or where git does not say."""
    commit = git(project, "rev-parse", "--short", "HEAD", timeout=SECONDS_FOR_GIT)
    if commit is None:
        return None, None
    others = [f":(exclude){name}" for name in MADE_BY_RUNS]
    status = ("status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    return commit.strip(), git(project, *status, timeout=SECONDS_FOR_GIT) != ""
