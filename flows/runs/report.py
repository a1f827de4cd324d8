"""Record of a run, reports/run.json, which is updated during the run."""

import contextlib
import functools
import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter

from flows.runs.environment import user_name
from flows.runs.stage_plan import PRETRAINING
from ipu_model.core.files import read_json, write_json
from tasks.downstream.gate.verdict_text import ADVICE, COMPARED, EXPORTS, RECIPE, WITHOUT_FLOOR
from tasks.plan.code_state import read_head, run_git
from tasks.plan.plan_file import Plan, Stage, read_plan
from tasks.records.duplicate_report import describe_near_duplicates
from tasks.stage import artifacts

OWN_RECORD = artifacts.RUNS / "run.json"
PRETRAINING_SCORES = {
    "mlm_loss": "masked LM loss",
    "perplexity": "perplexity",
    "mlm_accuracy": "masked LM accuracy",
    "nsp_accuracy": "next-sentence accuracy",
}
"""Score of a pre-training on its held-out rows -> its title. The first selects the best run."""
LOWER_IS_BETTER = ("mlm_loss", "perplexity")
DECIDED = ("accepted", "reasons", *RECIPE, COMPARED, WITHOUT_FLOOR, ADVICE)
"""Keys of a gate's decision that the record contains."""
VERDICT = ("accepted", "reasons")
"""Keys of the verdict on an exported file that the record contains."""
SENT = "sent by another run"
"""Command of the record that a worker writes of the stages that another run sent to it."""
WORKER_ENDED = "the end of its worker"
"""Cause of an interruption that no user requested. A worker starts such a run again."""
UNFINISHED = ("failed", "cancelled", "interrupted", "killed", "paused")
"""Outcomes of runs that the next run in their folder continues."""
DONE_STAGES = ("ran", "skipped", "restored")
"""Statuses of stages that are up to date."""
OPTIONAL = (
    *("paused", "interrupted", "log", "at_work", "progress", "details"),
    *("previous", "earlier", "pretraining", "options", "seconds", "earlier_seconds"),
)
"""Fields that the record lacks if they are empty, as they are for most runs."""
MOST_EARLIER = 20
NAMES = 32
"""Width of the names of stages; the longest is predict_released@classification."""
HEADER = f"{'stage':<{NAMES}} {'status':<9} seconds"
SECONDS_FOR_GIT = 5.0
GENERATED = ("dvc.lock", "dvc.yaml")
"""Files written by runs. If git tracks them, their changes do not count as changes to the project."""


@dataclass(frozen=True)
class StageRecord:
    """One stage of a run."""

    name: str
    status: str
    """ran, skipped (nothing had changed), restored (from a cache), paused, cancelled, failed, or interrupted (by the
    end of its worker)."""
    seconds: float
    """Wall time, including the orchestration."""
    host: str | None = None
    """Host it ran on, if the run was sent to workers."""
    began: float | None = None
    """Start, in seconds since 1970."""
    cpu_seconds: float | None = None
    """CPU time of its process and the children, as the stage records it (tasks/stage/process.py)."""
    peak_memory_mb: float | None = None
    """Peak memory of the largest of these processes."""


@dataclass(frozen=True)
class LeadingScore:
    """Score that stands for a run."""

    owner: str
    """Its entry or, of a pre-training, its phase."""
    metric: str
    value: float
    interval: tuple[float, float] | None = None
    perplexity: float | None = None

    @property
    def title(self) -> str:
        """Name of the metric for users."""
        return PRETRAINING_SCORES.get(self.metric, self.metric.replace("_", " "))


@dataclass
class RunReport:
    """Contents of reports/run.json, updated during the run."""

    folder: str
    """Folder of the run, relative to the project; "." unless it has its own checkout."""
    preset: str | None = None
    overrides: list[str] = field(default_factory=list)
    stages: list[StageRecord] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Gate -> name of its entry, leading (its leading metric), scores (in percent), their 95% intervals (low and high),
    checks (as the gate writes them), decision (accepted, reasons and, for several seeds, the keys in RECIPE) and
    published, the receipt. The last two are None if there is none. If there are any: `against`, the comparison with
    another entry, as the evaluation writes it; `exports`, file -> accepted and reasons; `before`, the paired difference
    of the leading score from the run before (flows/runs/run_before.py)."""
    pretraining: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Stage that pre-trained -> name of its phase; scores on held-out rows, by the keys of PRETRAINING_SCORES (loss and
    perplexity of the masked tokens, accuracies in percent; empty without held-out rows); rows, their number; steps and
    training_loss, of the training; model, its folder relative to the run's; before, of the model that it continues
    (tasks/jobs/original.py), if there is one. Stages are in the order of training, so the last has the run's result. No
    gate decides on them: they have no checks or decision.

    Readers use RunView.pretraining (views.run_view.PretrainingView), which formats them in the order of
    PRETRAINING_SCORES, or listing.Run.scores, in which phases and entries are alike.
    """
    error: str | None = None
    programs: dict[str, str] = field(default_factory=dict)
    """Stage that ran on IPUs -> how it obtained its programs: built and why, loaded, or restored."""
    pages: list[str] = field(default_factory=list)
    """HTML pages that stages wrote, relative to the run's folder."""
    packing: dict[str, dict[str, float]] = field(default_factory=dict)
    """Stage that ran on a device -> packing_factor and packing_efficiency of its rows."""
    paused: str | None = None
    """Reason that a stage stopped at a checkpoint. Start the run again to continue."""
    interrupted: str | None = None
    """Cause of a stop without a checkpoint: Ctrl-C, a signal, Prefect or the worker. `error` has details."""
    command: str | None = None
    """Command line that started it."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options it was started with: `RunOptions.recorded`."""
    began: str | None = None
    """Local time, ISO 8601, like `ended`; None until the run has begun."""
    ended: str | None = None
    seconds: float | None = None
    """Duration since its last start, by a clock that no one sets."""
    earlier_seconds: float = 0.0
    """Duration of its earlier starts: of unfinished runs that it continues, or of a part of its stages (--to)."""
    log: str | None = None
    """Log file, relative to the project; None on a worker."""
    plan: list[str] = field(default_factory=list)
    """Stages that the run brings up to date."""
    at_work: dict[str, float] = field(default_factory=dict)
    """Stage in progress -> start, in seconds since 1970."""
    progress: dict[str, str] = field(default_factory=dict)
    """Stage in progress -> the last line in which it reported its share and the time left."""
    host: str | None = None
    """Host where it was started."""
    user: str | None = None
    """User who started it."""
    python: str | None = None
    commit: str | None = None
    """Short commit of the project, if it is in a git repository."""
    changed: bool | None = None
    """True if files of the project differed from that commit."""
    details: dict[str, Any] = field(default_factory=dict)
    """Details for the page of all runs: runtime, entries with their kinds, changed parameters, losses."""
    previous: dict[str, Any] = field(default_factory=dict)
    """Last result in this folder before this run: began, and scores and intervals by entry. Empty if there is none."""
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """Unfinished runs of this folder since the last finished one: began, ended, outcome and why. Their completed stages
    are not repeated."""
    of_other_version: bool = False
    """True if another version of Podium wrote the record: it has fields that this one does not know. Not written."""

    def __post_init__(self) -> None:
        """Begin without a start in this process."""
        self._started: float | None = None

    @property
    def name(self) -> str:
        """Name of the run, which is that of its checkout; "." in the project folder."""
        return Path(self.folder).name or "."

    @property
    def identity(self) -> str | None:
        """Start in UTC and name; None until the run has begun."""
        if self.began is None:
            return None
        began = datetime.fromisoformat(self.began).astimezone(UTC)
        return f"{began.isoformat(timespec='seconds')} {self.name}"

    @property
    def leading_score(self) -> LeadingScore | None:
        """The leading score of its first result, else the loss of its last phase of pre-training."""
        for result in self.results.values():
            if (name := leading_metric(result)) is not None:
                bounds = result.get("intervals", {}).get(name)
                return LeadingScore(result["name"], name, result["scores"][name], tuple(bounds) if bounds else None)
        for phase in reversed(self.pretraining.values()):
            if "mlm_loss" in (scores := phase["scores"]):
                return LeadingScore(phase["name"], "mlm_loss", scores["mlm_loss"], None, scores.get("perplexity"))
        return None

    @property
    def reasons(self) -> list[str]:
        """Reasons why the run did not finish."""
        return [text for text in (self.error, self.paused) if text is not None]

    def begin(self, project: Path) -> None:
        """Record that the run has begun. A full disk is ignored here; the stage that needs space reports it."""
        self.began, self._started = _now(), time.monotonic()
        self.host, self.python = socket.gethostname(), platform.python_version()
        self.user = user_name(os.getuid())
        self.commit, self.changed = read_revision(project)
        before = read_report(project, project / self.folder)
        if before is not None and self._continues(before):
            last_seen = record_file(project, project / self.folder).stat().st_mtime
            self.earlier_seconds = round(before.earlier_seconds + before.measure_seconds(last_seen), 1)
        if before is not None and (outcome := run_outcome(before)) in UNFINISHED:
            why = before.error or before.paused
            last = {"began": before.began, "ended": before.ended, "outcome": outcome, "why": why}
            self.earlier = [*before.earlier, last][-MOST_EARLIER:]
        if before is not None:
            older = {name: value for name, value in before.previous.items() if name != "previous"}
            scored = before.results or before.pretraining
            self.previous = {**before.read_scores(), "previous": older} if scored else older
        with contextlib.suppress(OSError):
            self.save(project)

    def _continues(self, before: "RunReport") -> bool:
        """Return whether this run continues the one before it in its folder, with the same parameters."""
        is_part = bool(before.options.get("to")) and {*before.plan} < {*self.plan}
        alike = before.details.get("changed") == self.details.get("changed")
        return (is_part and alike) or run_outcome(before) in UNFINISHED

    def measure_seconds(self, last_seen: float) -> float:
        """Return the duration since its last start; of a killed run until `last_seen`, in seconds since 1970."""
        if self.seconds is not None or self.began is None:
            return self.seconds or 0.0
        end = datetime.fromisoformat(self.ended).timestamp() if self.ended else last_seen
        return max(0.0, end - datetime.fromisoformat(self.began).timestamp())

    def read_scores(self) -> dict[str, Any]:
        """Return start, leading metrics, scores and intervals, for comparison with the next run in this folder."""
        results = {result["name"]: result for result in (*self.pretraining.values(), *self.results.values())}
        kept = ("leading", "scores", "intervals")
        parts = {part: {name: result.get(part, {}) for name, result in results.items()} for part in kept}
        return {"began": self.began, **parts}

    def end(self) -> None:
        """Record that the run has ended."""
        self.ended = _now()
        if self._started is not None:
            self.seconds = round(time.monotonic() - self._started, 1)
        self.at_work.clear()
        self.progress.clear()

    def add_stage(self, record: StageRecord) -> None:
        """Add a stage. If it repeats one, because a worker was lost or another host needs the outs, add up the times
        and keep the host that ran it."""
        self.at_work.pop(record.name, None)
        self.progress.pop(record.name, None)
        for index, before in enumerate(self.stages):
            if before.name == record.name:
                spent = before.seconds + record.seconds
                kept = record.status == "skipped" or (record.status == "restored" and before.status == "ran")
                made = before if kept else record
                self.stages[index] = replace(made, seconds=round(spent, 2))
                break
        else:
            self.stages.append(record)

    def read_results(self, root: Path) -> None:
        """Read the outputs of the finished stages: scores, decisions, metrics of device jobs, pages."""
        plan = read_plan(root)
        done = [stage.name for stage in self.stages if stage.status in DONE_STAGES]
        stages = [plan[name] for name in done if name in plan]
        for stage in stages:
            if stage.meta.get("part") == PRETRAINING:
                self.pretraining |= _read_pretraining(stage, root)
            if stage.is_gate:
                self.results[stage.name] = _read_result(stage, plan, root)
            elif stage.uses_device:
                figures = read_metrics(stage, root)
                if "packing_factor" in figures:
                    self.packing[stage.name] = {key: figures[key] for key in ("packing_factor", "packing_efficiency")}
                if "program" in figures and any(
                    record.name == stage.name and record.status == "ran" for record in self.stages
                ):
                    self.programs[stage.name] = figures["program"]
        older = self.previous.pop("previous", {})
        if self.previous.get("scores") == self.read_scores()["scores"]:  # the same evaluation, which did not run again
            self.previous = older
        self.pages = _group_pages([str(stage.meta["page"]) for stage in stages if "page" in stage.meta])

    def accepts(self, gate: str) -> bool:
        """Return whether a gate of the run accepted its model."""
        decision = self.results[gate]["decision"]
        return decision is not None and bool(decision["accepted"])

    def add_receipt(self, receipt: dict[str, Any], gate: str) -> None:
        """Add the receipt of a release, its folder relative to the project instead of the checkout.

        Args:
            receipt: receipt that publish wrote.
            gate: stage that accepted the model.
        """
        published = dict(receipt)
        if "folder" in receipt:
            published["folder"] = os.path.normpath(os.path.join(self.folder, receipt["folder"]))
        self.results[gate]["published"] = published

    def write(self, project: Path) -> None:
        """Write the record of the run, and reports/run.json of the project, which describes the last run."""
        self.save(project)
        write_json(project / artifacts.RUN_REPORT, self.as_values())

    def save(self, project: Path) -> None:
        """Write the record of the run."""
        write_json(record_file(project, project / self.folder), self.as_values())

    def as_values(self) -> dict[str, Any]:
        """Return the report as plain values, without empty fields that most runs do not need."""
        values = asdict(self)
        del values["of_other_version"]
        values["stages"] = [{k: v for k, v in stage.items() if v is not None} for stage in values["stages"]]
        for name in OPTIONAL:
            if not values[name]:
                del values[name]
        return values


def leading_metric(result: Mapping[str, Any]) -> str | None:
    """Return the metric that stands for the result of a gate: the leading one of its kind, or of a run that does not
    record it the first that the gate checks, else its first score."""
    scores = result["scores"]
    names = (*result.get("leading", ()), *(check["name"] for check in result.get("checks", ())), *scores)
    return next((name for name in names if name in scores), None)


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object that a stage wrote; return None if it has not run."""
    if not path.is_file():
        return None
    return read_json(path)


def read_metrics(stage: Stage, root: Path) -> dict[str, Any]:
    """Return the metrics of a stage; empty if it has none or has not run."""
    metrics: dict[str, Any] = {}
    for path in stage.figures:
        for name, value in (read_json_object(root / path) or {}).items():
            before = metrics.get(name)  # a development set, if there are several
            metrics[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return metrics


def _read_result(gate: Stage, plan: Plan, root: Path) -> dict[str, Any]:
    """Return the decision of a gate and the scores with intervals that it is based on."""
    evaluations = [plan[name] for name in plan.needs[gate.name] if "page" in plan[name].meta and plan[name].metrics]
    files = [path for stage in evaluations for path in stage.metrics]
    figures = read_json_object(root / files[0]) or {} if files else {}
    scores = {name: value for name, value in figures.items() if f"{name}_low" in figures}
    decided = read_metrics(gate, root)
    exports = {name: {key: verdict[key] for key in VERDICT} for name, verdict in decided.get(EXPORTS, {}).items()}
    return {
        "name": Path(files[0]).stem if files else gate.name,
        "leading": figures.get("leading", []),
        "scores": scores,
        "intervals": {
            name: [figures[f"{name}_low"], figures[f"{name}_high"]] for name in scores if f"{name}_high" in figures
        },
        "checks": decided.get("checks", []),
        "decision": {name: decided[name] for name in DECIDED if name in decided} or None,
        "published": None,
        **({"against": figures["against"]} if "against" in figures else {}),
        **({"near": near} if (near := describe_near_duplicates(figures)) else {}),
        **({EXPORTS: exports} if exports else {}),
    }


def _read_pretraining(stage: Stage, root: Path) -> dict[str, dict[str, Any]]:
    """Return the result of a stage that pre-trains, by its name; empty if it has not run."""
    figures = read_metrics(stage, root)
    if not {"steps", "final_loss"} <= figures.keys():
        return {}
    held_out = figures.get("held_out") or {}
    scores = sort_scores(held_out)
    models = f"{artifacts.MODELS}/"
    result = {
        "name": stage.item,
        "scores": {name: 100 * value if "accuracy" in name else value for name, value in scores.items()},
        "rows": held_out.get("rows", 0),
        "steps": figures["steps"],
        "training_loss": figures["final_loss"],
        "model": next(out for out in stage.outs if out.startswith(models)),
        **({"before": held_out["before"]} if "before" in held_out else {}),
    }
    return {stage.name: result}


def sort_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores of a pre-training in the order of PRETRAINING_SCORES; files sort them by name."""
    return {name: scores[name] for name in PRETRAINING_SCORES if name in scores}


def _group_pages(pages: Sequence[str]) -> list[str]:
    """Return the pages, those in the same folder replaced by one pattern."""
    folders = [str(PurePosixPath(page).parent) for page in pages]
    alike = zip(pages, folders, strict=True)
    return list(dict.fromkeys(page if folders.count(folder) == 1 else f"{folder}/*.html" for page, folder in alike))


def run_outcome(report: RunReport) -> str:
    """Return the outcome: cancelled, interrupted (by the end of its worker), killed, failed, paused, rejected, proposed
    (for review), published, finished.

    A run without an end counts as killed; its lock shows whether it is still running.
    """
    if report.interrupted is not None:
        return "interrupted" if report.interrupted == WORKER_ENDED else "cancelled"
    if report.began is not None and report.ended is None:
        return "killed"
    if report.error is not None:
        return "failed"
    if report.paused is not None:
        return "paused"
    results = report.results.values()
    if any(result["decision"] is not None and not result["decision"]["accepted"] for result in results):
        return "rejected"
    statuses = [release_status(result["published"]) for result in results if result["published"] is not None]
    return min(statuses, key=("proposed", "published").index, default="finished")


def release_status(receipt: dict[str, Any]) -> str:
    """Return `proposed` if a receipt is for a pull request to review, else `published`."""
    return "proposed" if receipt.get("pull_request") else "published"


def format_stage(stage: StageRecord) -> str:
    """Format a stage as a line."""
    host = "" if stage.host is None else f"  {stage.host}"
    return f"{stage.name:<{NAMES}} {stage.status:<9} {stage.seconds:7.1f}{host}"


def format_total(report: RunReport) -> str:
    """Format the total time of all stages as a line."""
    return f"{'all stages':<{NAMES}} {'':<9} {sum(stage.seconds for stage in report.stages):7.1f}"


def record_file(project: Path, root: Path) -> Path:
    """Return the file with the record of the run in the folder `root`.

    For the project folder this is not reports/run.json, which describes the last run in any folder.
    """
    return project / OWN_RECORD if root.resolve() == project.resolve() else root / artifacts.RUN_REPORT


def read_report(project: Path, root: Path) -> RunReport | None:
    """Read the record of the run in the folder `root`; return None if there is none.

    Of a damaged file, only this is known: other runs, and commands that remove this one, need no more.
    """
    path = record_file(project, root)
    if not path.is_file():
        return None
    try:
        values = read_json(path)
        values["stages"] = [_known_values(StageRecord, stage) for stage in values.get("stages", ())]
        known = _known_values(RunReport, values)
        record = _adapter().validate_python(known)
        for moment in (record.began, record.ended):
            datetime.fromisoformat(moment or _now())
    except (ValueError, TypeError, AttributeError) as error:  # pydantic's ValidationError is a ValueError
        folder = os.path.relpath(root, project)
        advice = "repeat the command of this run, or remove it with podium clean"
        return RunReport(folder, error=f"{path} is damaged ({type(error).__name__}): {advice}")
    record.of_other_version = len(known) < len(values)
    names = [stage.name for stage in record.stages]  # the file has its keys in alphabetical order
    record.pretraining = {name: record.pretraining[name] for name in names if name in record.pretraining}
    return record


@functools.cache
def _adapter() -> TypeAdapter[RunReport]:
    return TypeAdapter(RunReport)


def _known_values(record: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of a record, without those that another version of Podium wrote."""
    return {field.name: values[field.name] for field in fields(record) if field.name in values}


def release_location(published: dict[str, Any]) -> str:
    """Format the URL, repository or folder of a receipt."""
    target = published.get("url") or published.get("repository") or published.get("folder")
    return f"{target}{' (unchanged)' if published.get('unchanged') else ''}"


def model_name(published: dict[str, Any]) -> str:
    """Return the name of a published model for commands: its repository with the tag, or its folder."""
    if published.get("repository") and published.get("tag"):
        return f"{published['repository']}@{published['tag']}"
    return str(published.get("url") or published.get("folder"))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def read_revision(project: Path) -> tuple[str | None, bool | None]:
    """Return the short commit that is checked out, and whether tracked files differ from it; None if git does
    not track the project."""
    revision = read_head(project)
    commit = revision and run_git(project, "rev-parse", "--short", revision, timeout=SECONDS_FOR_GIT)
    if commit is None:
        return None, None
    others = [f":(exclude){name}" for name in GENERATED]
    status = ("status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    return commit.strip(), run_git(project, *status, timeout=SECONDS_FOR_GIT) != ""
