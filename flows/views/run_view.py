"""View of a run; its page, its artifacts on a Prefect server and its terminal output are templates over this view.

A floor counts as lowered if an override of the run is below the value of its preset or params.yaml, or if the run's
value is below the default of the entry's kind. Browsers open no file:// links from the server's pages. Pages of a run
are therefore linked below PODIUM_PAGES_URL if it is set, and otherwise named by host and full path.
"""

import contextlib
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.runs import listing, report, run_params
from flows.runs.listing import PROJECT, RUNNING, display_name
from flows.runs.next_step import suggest_next
from flows.runs.report import RunReport, StageRecord, read_metrics
from flows.views.score_changes import Note, list_changes
from ipu_model.core.files import find_object, read_json
from ipu_model.core.units import format_count, format_duration
from tasks.downstream.gate.verdict_text import COMPARED, WITHOUT_FLOOR, format_recipe
from tasks.jobs.original import describe_change
from tasks.pages.render import render_markdown, render_text
from tasks.params.strict_yaml import read_yaml
from tasks.plan.plan_file import Plan, Stage, read_plan
from tasks.stage import artifacts
from tasks.stage.errors import PodiumError
from tasks.tracking.trackers import list_places

RERUN = "{resume} continues it. Completed stages are not repeated, and training resumes from its last checkpoint."
ADVICE = {
    "failed": "Fix the problem above; then {resume} continues it. Completed stages are not repeated.",
    "paused": "{resume} continues from the checkpoint.",
    "cancelled": RERUN,
    "interrupted": RERUN,
    "killed": RERUN,
}
"""Outcome -> advice; `resume` is the command for the run."""
UNREADABLE = (PodiumError, OSError, ValueError, KeyError, TypeError, AttributeError)
"""Errors from files that are incomplete, damaged or from another revision."""
PAGES_URL = "PODIUM_PAGES_URL"
"""Base URL at which a web server serves the project's folder; unset: pages are named by their paths."""
FLOOR_PREFIX = "min_"
"""Prefix of a floor's parameter; the name of its check follows."""
WAITING, NOT_REACHED = "waiting", "not reached"
NOT_STARTED = (WAITING, NOT_REACHED)
BADGE_COLORS = {
    **{"published": "good", "finished": "good", "proposed": "good", "accepted": "good", "ran": "good"},
    **{"running": "info", "failed": "bad", "rejected": "bad", "paused": "warn"},
    **{"cancelled": "warn", "interrupted": "warn", "killed": "warn"},
}
"""Status -> color of its badge."""
FIGURES = ("seconds", "began", "cpu", "peak", "host", "produced", "producer", "resumed", "least", "maps")
"""Figures of a stage; None: unknown."""


class RunView:
    """View of a run; details that are not in its record are read from its files on first use."""

    def __init__(self, record: RunReport, root: Path, project: Path | None = None, at_work: bool = False) -> None:
        """View the run in the checkout `root`, which without a project is the project itself."""
        self.record, self.root, self.project, self.at_work = record, root, project or root, at_work
        self.outcome = RUNNING if at_work else report.run_outcome(record)
        resume = "podium run" if record.name == PROJECT else f"podium resume {record.name}"
        done = self.outcome in listing.FINISHED
        self.next = suggest_next(record) if done else ADVICE.get(self.outcome, "").format(resume=resume)
        self.killed = not at_work and record.began is not None and record.ended is None
        self.results = [ResultView(self, gate, result) for gate, result in record.results.items()]
        self.pretraining = [PretrainingView(self, result) for result in record.pretraining.values()]

    @property
    def name(self) -> str:
        """Title of its page."""
        folder = self.record.folder.removeprefix(f"{artifacts.CHECKOUTS}/")
        return "in this project's folder" if self.record.name == PROJECT else folder

    @property
    def page_paths(self) -> list[str]:
        """Its pages, relative to the project's folder; several in one folder are one pattern."""
        pages = [str(artifacts.RUN_PAGE), *self.record.pages]
        return [os.path.normpath(os.path.join(self.record.folder, page)) for page in pages]

    def list_lines(self) -> list[str]:
        """Return lines with programs, scores, changes, verdicts and published models."""
        lines = [f"program of {stage}: {how}" for stage, how in self.record.programs.items()]  # IPU executables
        lines += [line for phase in self.pretraining for line in phase.lines]
        lines += [f"model: {phase.model}" for phase in self.pretraining[-1:]]
        for result in self.results:
            lines += [
                result.score_line,
                *(f"  {text}" for text, _ in result.changes),
                *result.remarks,
                *result.verdict_lines,
            ]
        return lines

    @property
    def leading_score(self) -> tuple[str, str] | None:
        """Name and value of the leading score of its first result."""
        return next((score for result in self.results if (score := result.leading_score)), None)

    @cached_property
    def plan(self) -> Plan:
        """Stages of its parameters."""
        return read_plan(self.root)

    @cached_property
    def settings(self) -> run_params.RunSettings:
        """Its parameters."""
        return run_params.read_run_settings(self.record, self.root, self.project)

    @cached_property
    def last_seen(self) -> float:
        """Time of its last sign of life if it was killed, else now; seconds since 1970."""
        file = report.record_file(self.project, self.root)  # a run updates it until it is killed
        return file.stat().st_mtime if self.killed and file.is_file() else time.time()

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """Status and figures of every stage; a skipped stage has the figures of the run that produced it."""
        rows = {stage.name: _make_stage_row(stage, self.root) for stage in self.record.stages}
        status = {"status": RUNNING} if self.at_work else {"status": "killed", "least": True}
        for name, began in self.record.at_work.items():
            rows.setdefault(name, {"began": began, "seconds": max(0.0, self.last_seen - began), **status})
        for name in self.record.plan:
            rows.setdefault(name, {"status": WAITING if self.at_work else NOT_REACHED})
        return [{**dict.fromkeys(FIGURES), "name": name, **row} for name, row in rows.items()]

    @property
    def producers(self) -> list[tuple[tuple[str, str], int]]:
        """Start and name of each run that produced reused stages, with the number of its stages."""
        return sorted(Counter((row["produced"], row["producer"]) for row in self.stages if row["produced"]).items())

    @property
    def timeline(self) -> dict[str, tuple[float, float]]:
        """Start and length of each stage that this run computed, in percent of the whole."""
        timed = [row for row in self.stages if row["began"] is not None and row["seconds"] is not None]
        rows = [row for row in timed if not row["produced"]]
        first = min((row["began"] for row in rows), default=0.0)
        long = max((row["began"] + row["seconds"] - first for row in rows), default=0.0) or 1.0
        return {row["name"]: (100 * (row["began"] - first) / long, 100 * row["seconds"] / long) for row in rows}

    @cached_property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Stage -> result of its device job, or its metrics if the result is not on this host."""
        names = [stage.name for stage in self.record.stages if stage.name in self.plan]
        stages = [stage for stage in map(self.plan.__getitem__, names) if stage.holds_device]
        return {stage.name: result for stage in stages if (result := _read_job_result(stage, self.root, self.project))}

    @property
    def devices(self) -> tuple[str, list[str]]:
        """Devices of its device jobs, or the requested runtime before any has ended; and software versions."""
        runtime = self.settings.values.get("device", {}).get("runtime")
        unresolved = "not resolved yet" if runtime == "auto" else "no device job has ended yet"
        names, versions = [], list[str]()
        for result in self.jobs.values():
            device = _describe_device(result) or result.get("runtime")
            names.append(", ".join(str(value) for value in (device, result.get("precision")) if value))
            versions += [f"{what} {version}" for what, version in (result.get("versions") or {}).items()]
        python, parts = f"python {self.record.python}", ("torch", "poptorch", "python")
        shown = [version for version in dict.fromkeys(versions) if version.split()[0] in parts and version != python]
        none = f"{runtime} ({unresolved})" if runtime else "unknown"
        return "; ".join(dict.fromkeys(names)) or none, [
            version.replace("python", "the device's Python") for version in shown
        ]

    @property
    def tracked(self) -> list[str]:
        """Commands and addresses that show what its trackers recorded."""
        with contextlib.suppress(*UNREADABLE):
            section = read_yaml(self.root / artifacts.PARAMS)["tracking"]
            folder = os.path.normpath(os.path.join(self.record.folder, section["folder"]))
            return list_places(section["backends"], section["project"], folder)
        return []

    @property
    def duration(self) -> str:
        """Time from its start to its end, or to its last sign of life, with its earlier starts."""
        if self.record.began is None:
            return "unknown"
        seconds = self.record.earlier_seconds + self.record.measure_seconds(self.last_seen)
        return "at least " * self.killed + format_duration(seconds)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Name and value of each fact: times, user, host, device, commit, versions."""
        record = self.record
        ended = f"killed; last update {format_clock(self.last_seen)}" if self.killed else "still running"
        commit = "unknown: the project is not in a git repository"
        if record.commit is not None:
            commit = f"{record.commit}{', with uncommitted changes' if record.changed else ''}"
        hosts = sorted({host for host in (record.host, *(stage.host for stage in record.stages)) if host})
        device, versions = self.devices
        facts = [
            ("started", format_moment(record.began)),
            ("ended", format_moment(record.ended) if record.ended else ended),
            ("duration", self.duration),
            ("user", record.user),
            ("preset", record.preset or "none: params.yaml"),
            ("hosts" if len(hosts) > 1 else "host", ", ".join(hosts) or "not recorded"),
            ("device", device),
            ("commit", commit),
            ("model", self.pretraining[-1].model if self.pretraining else None),
            ("trackers", "; ".join(self.tracked)),
            ("versions", ", ".join(filter(None, [record.python and f"Python {record.python}", *versions]))),
        ]
        return [(name, value) for name, value in facts if value]

    @cached_property
    def pages(self) -> dict[str, dict[str, Any]]:
        """Stage -> name and path of its page."""
        pages = {}
        for name in (stage.name for stage in self.record.stages if stage.name in self.plan):
            page = self.root / str(self.plan[name].meta.get("page", ""))
            if page.is_file():
                folder = page.parent if page.stem == "report" else page.with_suffix("")
                pages[name] = {"name": f"{folder.parent.name} of {folder.name}", "path": page}
        return pages


@dataclass(frozen=True, eq=False)
class PretrainingView:
    """Result of one phase of pre-training; the last of a run is the result of the whole."""

    run: RunView
    result: Mapping[str, Any]
    """Result in the record, see RunReport.pretraining."""

    @property
    def name(self) -> str:
        """Name of the phase."""
        return str(self.result["name"])

    @cached_property
    def values(self) -> dict[str, float]:
        """Scores on held-out rows, as in RunReport.pretraining; the first is the leading one."""
        return report.sort_scores(self.result["scores"])

    @property
    def scores(self) -> list[tuple[str, str]]:
        """Title and value of each score as text; empty without held-out rows."""
        return [
            (report.PRETRAINING_SCORES[name], format_pretraining(name, value)) for name, value in self.values.items()
        ]

    @property
    def model(self) -> str:
        """Folder of its model with its tokenizer, relative to the project."""
        return os.path.normpath(os.path.join(self.run.record.folder, self.result["model"]))

    @property
    def note(self) -> str:
        """Number of updates, training loss, and number of held-out rows that it was evaluated on."""
        loss, rows = self.result["training_loss"], self.result["rows"]
        trained = f"{self.result['steps']:,} updates" + ("" if loss is None else f" to training loss {loss:.4f}")
        return f"{trained}; {'evaluated on ' + format_count(rows, 'held-out rows') if rows else 'no held-out rows'}"

    @property
    def score_line(self) -> str:
        """Name of the phase and its scores as one line of text."""
        scores = ", ".join(f"{title} {value}" for title, value in self.scores)
        return f"{self.name}: {scores or 'no scores'} ({self.note})"

    @property
    def change(self) -> str:
        """Change from the model that it continues; empty if there is none."""
        return format_change(self.result)

    @property
    def lines(self) -> list[str]:
        """Its scores and their change as lines of text."""
        return [self.score_line, *([f"{self.name}: {self.change}"] if self.change else [])]


def format_change(result: Mapping[str, Any]) -> str:
    """Return how the held-out loss of a phase of pre-training (RunReport.pretraining) changed; empty if unknown."""
    before, after = result.get("before"), result["scores"]
    if not before or "mlm_loss" not in after:
        return ""
    return describe_change(before, after, result["rows"])


def format_pretraining(name: str, value: float) -> str:
    """Return a score of a pre-training as text; `name` is a key of report.PRETRAINING_SCORES."""
    return f"{value:.2f} %" if name.endswith("accuracy") else f"{value:,.4f}" if name == "mlm_loss" else f"{value:,.2f}"


@dataclass(frozen=True, eq=False)
class ResultView:
    """Result of one entry of a run."""

    run: RunView
    gate: str
    """Name of its gate stage."""
    result: Mapping[str, Any]
    """Result in the record: name, scores, intervals, checks, decision, published."""

    @property
    def name(self) -> str:
        """Name of the evaluated model."""
        return str(self.result["name"])

    @property
    def scores(self) -> list[tuple[str, str]]:
        """Name and percent of each score, the leading one first."""
        scores, leading = self.result["scores"], report.leading_metric(self.result)
        return [(name, f"{scores[name]:.2f}") for name in sorted(scores, key=lambda name: name != leading)]

    @property
    def leading_score(self) -> tuple[str, str] | None:
        """Name and value of its leading score."""
        return next(iter(self.scores), None)

    @property
    def changes(self) -> list[Note]:
        """Changes of its leading score."""
        if self.leading_score is None:
            return []
        previous = self.run.record.previous
        began = format_moment(previous.get("began"))[:16]
        return list_changes(self.result, self.leading_score[0], previous, began)

    @property
    def exports(self) -> list[tuple[str, str, str]]:
        """Exported files, each with its verdict and the reasons against it."""
        exports = self.result.get("exports", {}).items()
        return [
            (name, "accepted" if export["accepted"] else "rejected", " ".join(export["reasons"]))
            for name, export in exports
        ]

    @property
    def page(self) -> Path | None:
        """Page of its evaluation, if it is there."""
        path = self.run.root / artifacts.evaluation_page(self.name)
        return path if path.is_file() else None

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Score -> bounds of its 95% interval."""
        return dict(self.result.get("intervals", {}))

    @property
    def verdict(self) -> str | None:
        """accepted or rejected; None without a decision."""
        decision = self.result["decision"]
        return None if decision is None else "accepted" if decision["accepted"] else "rejected"

    @property
    def reasons(self) -> list[str]:
        """Reasons of the gate for a rejection."""
        return list((self.result["decision"] or {}).get("reasons", ()))

    @property
    def recipe(self) -> str | None:
        """Summary of a verdict on several seeds; None for a single model."""
        published = self.published is not None and self.published["how"] == "published"
        return format_recipe(self.result["decision"] or {}, published)

    @property
    def compared(self) -> str | None:
        """Text that names the released model that the gate compared with; None: a run of an older version."""
        return (self.result["decision"] or {}).get(COMPARED)

    @property
    def without_floor(self) -> str | None:
        """Note that the gate required no score of the model."""
        return (self.result["decision"] or {}).get(WITHOUT_FLOOR)

    @property
    def published(self) -> dict[str, Any] | None:
        """Publication of the model, with its URL and the file of its card; None: not published."""
        if (receipt := self.result["published"]) is None:
            return None
        card = self.run.project / str(receipt.get("folder") or ".") / "README.md"
        url = str(receipt.get("url") or "")
        return {
            "how": f"{report.release_status(receipt)}{' before' * (self.verdict == 'rejected')}",
            "where": report.release_location(receipt),
            "url": url if url.startswith(("https://", "http://")) else "",
            "card": card if "folder" in receipt and card.is_file() else None,
        }

    @property
    def remarks(self) -> list[str]:
        """Lines of text: metrics next to those of the compared entry; development examples with near-duplicates."""
        compared = [
            f"{row['entry']}: {row['title']} {row['before']:.2f}; {self.name}: {row['score']:.2f}; {row['mean']:+.2f} "
            f"({row['low']:+.2f} to {row['high']:+.2f}), {row['verdict']}"
            for row in self.result.get("against", ())
        ]
        return compared + [f"{self.name}: {text}" for text in (self.result.get("near"),) if text]

    @property
    def score_line(self) -> str:
        """Name of the entry and its scores with their 95% intervals as one line of text."""
        bounds = {name: f" ({low:.2f} to {high:.2f})" for name, (low, high) in self.intervals.items()}
        scores = [f"{name} {value}{bounds.get(name, '')}" for name, value in self.scores]
        return f"{self.name}: {', '.join(scores) or 'no scores'}"

    @property
    def verdict_lines(self) -> list[str]:
        """Lines of text: the verdict with its reasons, and where the model was published."""
        lines, published = [], self.published
        if self.verdict is not None:
            kept = "" if self.verdict == "accepted" or published is not None else ", not published"
            lines = [f"{self.name} gate: {self.verdict}{kept}", *(f"  - {reason}" for reason in self.reasons)]
            lines += filter(None, (self.compared, self.recipe))
        if published is not None:
            lines.append(f"{published['how']}: {published['where']}")
            lines += [] if self.without_floor is None else [self.without_floor]
        return lines + [f"  {name}: {' '.join(filter(None, details))}" for name, *details in self.exports]

    @cached_property
    def checks(self) -> list[dict[str, Any]]:
        """All checks of the gate, with the margin and the higher floor (`lowered_from`) that the run overrides."""
        checks = self.result.get("checks", ())
        prefix, highest = f"downstream.{self.gate.partition('@')[2]}.gate.{FLOOR_PREFIX}", dict[str, float]()
        for name, before, floor in (*self.run.settings.told, *self.run.settings.unusual) if checks else ():
            if name.startswith(prefix) and _is_number(before) and (floor is None or floor < before):
                check = name.removeprefix(prefix)
                highest[check] = max(before, highest.get(check, before))
        return [
            {**row, "margin": _format_margin(row["found"], row["required"]), "lowered_from": highest.get(row["name"])}
            for row in checks
        ]

    @property
    def floors(self) -> dict[str, float]:
        """Score -> floor of its gate."""
        required = {str(check["name"]): check["required"] for check in self.result.get("checks", ())}
        return {name: required[name] for name in self.result["scores"] if _is_number(required.get(name))}

    @property
    def has_lowered_floor(self) -> bool:
        """True if a floor of its gate was lowered."""
        return any(check["lowered_from"] is not None for check in self.checks)


def _format_margin(value: Any, required: Any) -> str:
    """Return the signed distance of a number from its floor; empty for other values."""
    if not (_is_number(value) and _is_number(required)):
        return ""
    return f"{'+' if value >= required else '-'}{format_value(abs(value - required))}"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def format_value(value: object) -> str:
    """Return a value as text; numbers have at most four decimals."""
    if value is None:
        return "none"
    return f"{value:,.4f}".rstrip("0").rstrip(".") if _is_number(value) else str(value)


def _make_stage_row(stage: StageRecord, root: Path) -> dict[str, Any]:
    """Return status and figures of a stage: from the run's record, or for a skipped stage from its own."""
    row: dict[str, Any] = {"status": stage.status}
    made = find_object(root / artifacts.stage_run_file(stage.name))
    if stage.status not in ("skipped", "restored"):
        figures = {"seconds": stage.seconds, "cpu": stage.cpu_seconds, "peak": stage.peak_memory_mb}
        if made and stage.began and 0 <= made["process"]["began"] - stage.began <= stage.seconds:  # not of a later run
            row["maps"] = _describe_maps(made["process"])
        return {**row, **figures, "began": stage.began, "host": stage.host}
    if made is None:
        return row
    process, run = made["process"], made["run"]
    row["maps"] = _describe_maps(process)
    figures = {"seconds": process["ended"] - process["began"], "began": process["began"]}
    figures |= {"cpu": process["cpu_seconds"], "peak": process["peak_memory_mb"]}
    when, producer = ("dvc repro", "") if run is None else (format_moment(run["began"]), display_name(run["name"]))
    return {**row, **figures, "produced": when, "producer": producer}


def _describe_maps(process: Mapping[str, Any]) -> str | None:
    """Return the time of a stage's parallel maps and of the rest as text; None if one process did all."""
    maps = [record for record in process.get("maps", ()) if record["processes"] > 1]
    if not maps:
        return None
    seconds, parts = sum(record["seconds"] for record in maps), sum(record["items"] for record in maps)
    rest = max(0.0, process["ended"] - process["began"] - seconds)
    most = max(record["processes"] for record in maps)
    return f"{format_duration(seconds)} in {parts} parts on {most} processes, {format_duration(rest)} for the rest"


def _read_job_result(stage: Stage, root: Path, project: Path) -> dict[str, Any]:
    """Return the result of a stage's device job, or its metrics if the result is not on this host."""
    if not (values := read_metrics(stage, root)):
        return {}
    folders = [base / artifacts.RUNS / Path(stage.figures[0]).stem for base in (root, project)]
    for path in (path for folder in folders for path in sorted(folder.glob("*/result.json"))):
        result, figures = read_json(path), values.get(path.parent.name, values)
        if path.parent.name == values.get("fingerprint"):
            return dict(result)
        # Metrics of a prediction do not identify its job, whose result another run may have overwritten.
        figures = figures.get("features"), figures.get("predict_seconds")
        if result["kind"] == "predict" and figures == (result["sequences"], round(result["train_seconds"], 2)):
            return dict(result)
    return values


def _describe_device(result: Mapping[str, Any]) -> str | None:
    """Return the device of the estimate; for IPUs that of the placement, because estimates always assume Mk2."""
    device = (result.get("plan") or {}).get("device") or {}
    if (placed := device.get("placement")) is None:
        return (result.get("foretold") or {}).get("device")
    replicas = device["ipus"] // placed["ipus_per_replica"]
    return f"{device['ipus']} IPUs, {format_count(replicas, 'replicas')} of {placed['ipus_per_replica']}"


def format_moment(time_of_record: str | None) -> str:
    """Return a time of a record as text, with its UTC offset, because hosts may be in different time zones."""
    try:
        return datetime.fromisoformat(time_of_record or "").strftime("%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return time_of_record or "unknown"


def format_clock(seconds: float) -> str:
    """Return a local time in the format of records; `seconds` are since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


def format_end(run: RunView) -> str:
    """Return the outcome, results and pages of a run, for a terminal."""
    return render_text(__file__, "ending.txt.j2", run=run)


def format_run(listed: listing.Run, project: Path, origin: str, parameters: Sequence[tuple[str, list[Any]]]) -> str:
    """Return all details of a run, for a terminal, with the parameters that differ from those named `origin`."""
    table = run_params.format_differences(parameters, (origin, listed.name)).rstrip() if parameters else ""
    run, rows = None, list[str]()
    if (record := listed.record) is not None:
        run = RunView(record, listed.folder, project)
        lines = map(report.format_stage, record.stages)
        rows = [report.HEADER, *lines, report.format_total(record)] if record.stages else []
    folder, values = listed.folder.relative_to(project), {"origin": origin, "parameters": table}
    return render_text(__file__, "full.txt.j2", listed=listed, folder=folder, run=run, rows=rows, **values)


def render_summary(run: RunView) -> str:
    """Return a run as Markdown: facts, stages, pages and logs."""
    record = run.record
    run_page, *others = run.page_paths
    named = [("run", run_page), *(("page", path) for path in others), *([("log", record.log)] if record.log else [])]
    places = [(name, *_locate(run, path)) for name, path in named]
    places += [
        (result.published["how"], *_locate_release(run, result.result["published"]))
        for result in run.results
        if result.published
    ]
    return render_markdown(
        __file__,
        "summary.md.j2",
        run=run,
        record=record,
        parameters=" ".join([record.preset or str(artifacts.PARAMS), *(f"--set {text}" for text in record.overrides)]),
        total=sum(stage.seconds for stage in record.stages),
        places=places,
    )


def render_metrics(run: RunView) -> str:
    """Return every score with its interval and floor as Markdown; empty if the run evaluated nothing."""
    results = [result for result in run.results if result.scores]
    return render_markdown(__file__, "metrics.md.j2", results=results, format_value=format_value) if results else ""


def render_gates(run: RunView) -> str:
    """Return the checks and verdict of every gate as Markdown; empty without gates."""
    return render_markdown(
        __file__, "gates.md.j2", results=[result for result in run.results if result.verdict], format_value=format_value
    )


def _locate(run: RunView, path: str) -> tuple[str, str | None]:
    """Return the name of a project file on another host, and its URL; empty if unknown."""
    address = os.environ.get(PAGES_URL)
    if address and "*" not in path and not path.startswith(".."):
        return path, f"{address.rstrip('/')}/{quote(path)}"
    return _format_host_path(run, path), ""


def _format_host_path(run: RunView, path: str) -> str:
    return f"{socket.gethostname()}:{os.path.normpath(run.project.resolve() / path)}"


def _locate_release(run: RunView, receipt: dict[str, Any]) -> tuple[str, str | None]:
    """Return place and URL of a release; None: the place is a plain name."""
    if url := receipt.get("url"):
        return url, url
    if folder := receipt.get("folder"):
        return _format_host_path(run, folder), ""
    return report.release_location(receipt), None
