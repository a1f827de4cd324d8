"""A run as people see it: its page, its artifacts on a Prefect server and terminals are templates over one view.

A floor counts as lowered where the run was told of a lower one than its preset or params.yaml states, or states a lower
one than the kind of its entry has by default.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from flows.runs import report, run_params
from flows.runs.listing import PROJECT, RUNNING, called
from flows.runs.report import RunReport, StageRecord, metrics_of
from ipu_model.files import find_object, read_json, sha256_of
from ipu_model.units import format_duration
from tasks.downstream.gate.recipe_words import WITHOUT_FLOOR, recipe_in_words
from tasks.plan.plan_file import Plan, Stage, read_plan
from tasks.stage import artifacts

AGAIN = "Run the same command again: what was done is not done again, and a training goes on from its last checkpoint."
NEXT = {
    "failed": "Mend what is named above, then run the same command again: stages that are done are not done again.",
    "paused": "Run the same command again: it goes on from its checkpoint.",
    "cancelled": AGAIN,
    "interrupted": AGAIN,
    "rejected": "Nothing was published. The table of the gate says which check did not hold, and the page of the "
    "evaluation shows the answers. Train again with more data or other parameters; --set "
    "downstream.NAME.gate.LIMIT=VALUE sets another limit.",
}
"""Outcome -> what to do about it."""
FLOOR = "min_"
"""How the parameter of a floor begins; the name of its check follows."""
MARKS = 4
"""Stretches of the axis of the timeline."""
NICE = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
"""Seconds that the axis may be marked every so many of."""
WAITING, NOT_REACHED = "waiting", "not reached"
NOT_BEGUN = (WAITING, NOT_REACHED)
FIGURES = ("seconds", "began", "cpu", "peak", "host", "made", "maker", "resumed", "least")
"""Of a stage; each None where it is not known."""


class RunView:
    """A run. What its record does not hold is read from the files of the run when it is first asked for."""

    def __init__(self, record: RunReport, root: Path, project: Path | None = None, at_work: bool = False) -> None:
        """View a run.

        Args:
            record: what is known of it.
            root: its checkout.
            project: where its checkout belongs; None: the same.
            at_work: it goes on.
        """
        self.record, self.root, self.project, self.at_work = record, root, project or root, at_work
        self.outcome = RUNNING if at_work else report.outcome(record)
        self.next = NEXT.get(self.outcome, "")
        self.killed = not at_work and record.began is not None and record.ended is None
        self.results = [ResultView(self, gate, result) for gate, result in record.results.items()]

    @property
    def name(self) -> str:
        """What its page is headed by."""
        folder = self.record.folder.removeprefix(f"{artifacts.CHECKOUTS}/")
        return "in this project's folder" if self.record.name == PROJECT else folder

    @property
    def places(self) -> list[str]:
        """Its pages, from the project's folder; several of one folder are one pattern."""
        pages = [str(artifacts.RUN_PAGE), *self.record.pages]
        return [os.path.normpath(os.path.join(self.record.folder, page)) for page in pages]

    def list_lines(self, intervals: bool = False) -> list[str]:
        """Return programs, scores, verdicts, and where the models went."""
        found = ([one.score_line(intervals), *one.verdict_lines] for one in self.results)
        programs = (f"program of {stage}: {how}" for stage, how in self.record.programs.items())  # of stages on IPUs
        return [*programs, *(line for lines in found for line in lines)]

    @property
    def leading_score(self) -> tuple[str, str] | None:
        """Name and value of the score that says most of it: of its first gate, the one that this looks at first."""
        for one in self.results:
            known = dict(one.scores)
            names = [name for name in (*(check.check for check in one.checks), *known) if name in known]
            if names:
                return names[0], known[names[0]]
        return None

    @cached_property
    def plan(self) -> Plan:
        """All stages of its parameters."""
        return read_plan(self.root)

    @cached_property
    def settings(self) -> run_params.Settings:
        """What it was told."""
        return run_params.settings_of(self.record, self.root, self.project)

    @cached_property
    def moment(self) -> float:
        """Seconds since 1970: when it was heard of last if it was killed, else now."""
        file = report.record_of(self.project, self.root)  # which a run writes again and again, until it is killed
        return file.stat().st_mtime if self.killed and file.is_file() else time.time()

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """Every stage: what became of it, and what it took; of one that was skipped, as its maker measured that."""
        record = self.record
        found = [_make_stage_row(stage, self.root) for stage in record.stages]
        named = {row["name"] for row in found}
        for name, began in record.at_work.items():
            if name not in named:  # else it was killed with the run
                status = {"status": RUNNING} if self.at_work else {"status": "interrupted", "least": True}
                found.append({"name": name, "began": began, "seconds": max(0.0, self.moment - began), **status})
        named |= {*record.at_work}
        later = WAITING if self.at_work else NOT_REACHED
        found += [{"name": name, "status": later} for name in record.plan if name not in named]
        return [{**dict.fromkeys(FIGURES), **row} for row in found]

    @property
    def makers(self) -> list[tuple[tuple[str, str], int]]:
        """When the runs began that made what this one found done, their names, and how many stages each made."""
        return sorted(Counter((row["made"], row["maker"]) for row in self.stages if row["made"]).items())

    @property
    def timeline(self) -> dict[str, Any]:
        """Stages as bars on one axis: those that this run did, or where it did none, those of the newest maker."""
        timed = [row for row in self.stages if row["began"] is not None and row["seconds"] is not None]
        own, title = [row for row in timed if not row["made"]], ""
        if timed and not own:
            newest = max(timed, key=lambda row: row["began"])["made"]
            own = [row for row in timed if row["made"] == newest]
            title = f"Of the run of {newest}, which made what this one found up to date."
        if not own:
            return {"rows": [], "title": "", "marks": []}
        first = min(row["began"] for row in own)
        long = max(max(row["began"] + row["seconds"] for row in own) - first, 0.01)
        placed = [
            {**row, "left": 100 * (row["began"] - first) / long, "wide": 100 * row["seconds"] / long}
            for row in sorted(own, key=lambda row: row["began"])
        ]
        every = next((one for one in NICE if long / one <= MARKS), 3600 * (1 + int(long / MARKS / 3600)))
        marks = [{"at": 100 * mark / long, "said": format_mark(mark)} for mark in range(0, int(long) + 1, every)]
        return {"rows": placed, "title": title, "marks": marks}

    @cached_property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Stage -> what its device job says of itself: its result where that lies here, else its figures."""
        names = [stage.name for stage in self.record.stages if stage.name in self.plan]
        stages = [stage for stage in map(self.plan.__getitem__, names) if stage.holds_device]
        return {stage.name: found for stage in stages if (found := _read_job_result(stage, self.root, self.project))}

    @property
    def devices(self) -> tuple[str, list[str]]:
        """Where device jobs ran, as asked while none has ended; and with which versions."""
        asked = self.settings.values.get("device", {}).get("runtime")
        none = f"{asked}, as asked; no device job has said more" if asked else "no device job has said it"
        names: list[str] = []
        runtimes: list[str] = []
        versions: list[str] = []
        for result in self.jobs.values():
            device, precision = _describe_device(result), result.get("precision")
            words = ", ".join(str(one) for one in (device or result.get("runtime"), precision) if one)
            (names if device else runtimes).append(words)
            versions += [f"{what} {version}" for what, version in (result.get("versions") or {}).items()]
        shown = [one for one in dict.fromkeys(versions) if one.split()[0] in ("torch", "poptorch", "python")]
        own = f"python {self.record.python}"
        return "; ".join(dict.fromkeys(names or runtimes)) or none, [
            one.replace("python", "the device's Python") for one in shown if one != own
        ]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Who, when, where and with what; what was not kept is said to be so."""
        record, took = self.record, self._seconds()
        ended = f"killed, heard of last {format_clock(self.moment)}" if self.killed else "not yet"
        commit = "not known: git does not keep this project"
        if record.commit is not None:
            commit = f"{record.commit}{', with changes of its own' if record.changed else ''}"
        hosts = sorted({one for one in (record.host, *(stage.host for stage in record.stages)) if one})
        device, versions = self.devices
        found = [
            ("began", format_moment(record.began)),
            ("ended", format_moment(record.ended) if record.ended else ended),
            ("took", "not known" if took is None else "at least " * self.killed + format_duration(took)),
            ("started by", record.user),
            ("preset", record.preset or "none: params.yaml"),
            ("hosts" if len(hosts) > 1 else "host", ", ".join(hosts) or "not kept"),
            ("device", device),
            ("commit", commit),
            ("versions", ", ".join(filter(None, [record.python and f"Python {record.python}", *versions]))),
        ]
        return [(name, said) for name, said in found if said]

    def _seconds(self) -> float | None:
        """Return how long it took, or takes so far."""
        if self.record.began is None:
            return None
        ended = self.record.ended
        end = self.moment if ended is None else datetime.fromisoformat(ended).timestamp()
        return max(0.0, end - datetime.fromisoformat(self.record.began).timestamp())

    @cached_property
    def pages(self) -> dict[str, dict[str, Any]]:
        """Stage -> name and path of the page that it wrote, and Great Expectations' own page of the same verdict."""
        found = {}
        for name in (stage.name for stage in self.record.stages if stage.name in self.plan):
            page = self.root / str(self.plan[name].meta.get("page", ""))
            if page.is_file():
                own = page.stem == "report"
                title = f"evaluation of {page.parent.name}" if own else f"{page.parent.name} of {page.stem}"
                found[name] = {"name": title, "path": page, "data_docs": _find_data_docs(page, self.root)}
        return found

    @property
    def files(self) -> list[tuple[str, Path]]:
        """Name and path of the page of all runs, and of the log."""
        named = {"all runs": artifacts.INDEX_PAGE, "log": Path(self.record.log or "")}
        return [(name, self.project / path) for name, path in named.items() if (self.project / path).is_file()]


@dataclass(frozen=True)
class GateRow:
    """One check."""

    check: str
    found: str
    required: str
    margin: str
    """How far a number lies above its floor, with its sign; empty where the two are no numbers."""
    ok: bool
    lowered_from: str | None = None
    """The floor that was stated before."""


@dataclass(frozen=True, eq=False)
class ResultView:
    """What a run found and decided of one entry."""

    run: RunView
    gate: str
    """The stage that decided."""
    result: Mapping[str, Any]
    """Of the record: name, scores, intervals, checks, decision, published."""

    @property
    def name(self) -> str:
        """What was judged."""
        return str(self.result["name"])

    @property
    def scores(self) -> list[tuple[str, str]]:
        """Name and percent of each."""
        return [(name, f"{value:.2f}") for name, value in self.result["scores"].items()]

    @property
    def entry(self) -> str:
        """Whose model was judged; names its files."""
        return self.gate.partition("@")[2]

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Score -> low and high of its 95% interval, where it has one."""
        return dict(self.result.get("intervals", {}))

    @property
    def verdict(self) -> str | None:
        """accepted or rejected; None where no gate decided."""
        decision = self.result["decision"]
        return None if decision is None else "accepted" if decision["accepted"] else "rejected"

    @property
    def reasons(self) -> list[str]:
        """Why its gate rejected."""
        return list((self.result["decision"] or {}).get("reasons", ()))

    @property
    def recipe(self) -> str | None:
        """What a verdict on several seeds says of all of them; None of one on a single model."""
        published = self.published is not None and self.published["how"] == "published"
        return recipe_in_words(self.result["decision"] or {}, published)

    @property
    def without_floor(self) -> str | None:
        """That no score was required of the model, in words."""
        return (self.result["decision"] or {}).get(WITHOUT_FLOOR)

    @property
    def published(self) -> dict[str, Any] | None:
        """How and where the model was published: its address as a link where it is one, and the file of its card."""
        if (receipt := self.result["published"]) is None:
            return None
        card = self.run.project / str(receipt.get("folder") or ".") / "README.md"
        url = str(receipt.get("url") or "")
        return {
            "how": report.how_published(receipt),
            "where": report.where_published(receipt),
            "url": url if url.startswith(("https://", "http://")) else "",
            "card": card if "folder" in receipt and card.is_file() else None,
        }

    def score_line(self, intervals: bool) -> str:
        """Return the name of the entry and its scores as a line of text."""
        known = self.intervals if intervals else {}
        bounds = {name: f" ({low:.2f} to {high:.2f})" for name, (low, high) in known.items()}
        scores = [f"{name} {value}{bounds.get(name, '')}" for name, value in self.scores]
        return f"{self.name}: {', '.join(scores) or 'no scores'}"

    @property
    def verdict_lines(self) -> list[str]:
        """The verdict with its reasons, and where the model went, as lines of text."""
        lines, published = [], self.published
        if self.verdict is not None:
            word = self.verdict if self.verdict == "accepted" else "rejected, nothing was published"
            lines = [f"{self.name} gate: {word}", *(f"  - {reason}" for reason in self.reasons)]
            lines += [] if self.recipe is None else [self.recipe]
        if published is not None:
            lines.append(f"{published['how']}: {published['where']}")
            lines += [] if self.without_floor is None else [self.without_floor]
        return lines

    @cached_property
    def _parameters(self) -> tuple[list[run_params.Row], list[run_params.Row]]:
        """Those of the gate that the run was told, and those that are not as by default; none if it did not run."""
        if not self.result.get("checks"):
            return [], []
        section = f"downstream.{self.entry}.gate."
        told, unusual = (
            [(name.removeprefix(section), *both) for name, *both in rows if name.startswith(section)]
            for rows in (self.run.settings.told, self.run.settings.unusual)
        )
        return told, unusual

    @cached_property
    def checks(self) -> list[GateRow]:
        """All checks of the gate."""
        highest: dict[str, float] = {}
        for name, before, floor in (row for rows in self._parameters for row in rows):
            if name.startswith(FLOOR) and _is_number(before) and (floor is None or floor < before):
                check = name.removeprefix(FLOOR)
                highest[check] = max(before, highest.get(check, before))
        return [_make_gate_row(check, highest.get(check["name"])) for check in self.result.get("checks", ())]

    @property
    def unusual(self) -> list[tuple[str, str, str]]:
        """Name, default and own value of each parameter of the gate that is not as the kind of the entry has it."""
        return [(name, format_value(default), format_value(value)) for name, default, value in self._parameters[1]]

    @property
    def floors(self) -> dict[str, float]:
        """Score -> what its gate requires of it."""
        required = {str(check["name"]): check["required"] for check in self.result.get("checks", ())}
        return {name: required[name] for name in self.result["scores"] if _is_number(required.get(name))}

    @property
    def lowered(self) -> bool:
        """Whether a floor of its gate was lowered."""
        return any(check.lowered_from is not None for check in self.checks)


def _make_gate_row(check: Mapping[str, Any], lowered: float | None) -> GateRow:
    name, found, required = str(check["name"]), check["found"], check["required"]
    figures = _is_number(found) and _is_number(required)
    margin = f"{'+' if found >= required else '-'}{format_value(abs(found - required))}" if figures else ""
    before = None if lowered is None else format_value(lowered)
    return GateRow(name, format_value(found), format_value(required), margin, bool(check["ok"]), before)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def format_value(value: object) -> str:
    """Return a value as people read it; of a number four places at the most."""
    if value is None:
        return "none"
    return f"{value:,.4f}".rstrip("0").rstrip(".") if _is_number(value) else str(value)


def _make_stage_row(stage: StageRecord, root: Path) -> dict[str, Any]:
    """Return what a stage took: by the record of the run, or of one that was skipped, by its own."""
    row: dict[str, Any] = {"name": stage.name, "status": stage.status}
    if stage.status not in ("skipped", "restored"):
        figures = {"seconds": stage.seconds, "cpu": stage.cpu_seconds, "peak": stage.peak_memory_mb}
        return {**row, **figures, "began": stage.began, "host": stage.host}
    if (made := find_object(root / artifacts.stage_run_file(stage.name))) is None:
        return row
    process, run = made["process"], made["run"]
    figures = {"seconds": process["ended"] - process["began"], "began": process["began"]}
    figures |= {"cpu": process["cpu_seconds"], "peak": process["peak_memory_mb"]}
    when, maker = ("dvc repro", "") if run is None else (format_moment(run["began"]), called(run["name"]))
    return {**row, **figures, "made": when, "maker": maker}


def _read_job_result(stage: Stage, root: Path, project: Path) -> dict[str, Any]:
    """Return what the device job of a stage says of itself; its figures where its own file is not here."""
    if not (values := metrics_of(stage, root)):
        return {}
    for folder in (place / artifacts.RUNS / Path(stage.metrics[0]).stem for place in (root, project)):
        path = folder / str(values.get("fingerprint")) / "result.json"
        if path.is_file():
            return dict(read_json(path))
        if (found := _read_prediction_result(values, folder)) is not None:
            return found
    return values


def _read_prediction_result(values: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """Return that of the first set that these figures are of; another run may have written it again."""
    for path in sorted(folder.glob("*/result.json")):
        figures, result = values.get(path.parent.name, values), read_json(path)
        same = (result["sequences"], round(result["train_seconds"], 2))
        if result["kind"] == "predict" and same == (figures.get("features"), figures.get("predict_seconds")):
            return dict(result)
    return None


def _describe_device(result: Mapping[str, Any]) -> str | None:
    """Return the device as it was estimated; IPUs as they were laid out, since estimates are of Mk2 on any IPU."""
    device = (result.get("plan") or {}).get("device") or {}
    if (placed := device.get("placement")) is None:
        return (result.get("foretold") or {}).get("device")
    replicas = device["ipus"] // placed["ipus_per_replica"]
    return f"{device['ipus']} IPUs, {replicas} replica{'s' * (replicas > 1)} of {placed['ipus_per_replica']}"


def _find_data_docs(page: Path, root: Path) -> Path | None:
    """Return Great Expectations' own page of the verdict that a page shows; None where it is missing or of another."""
    folder, verdict = root / artifacts.DATA_DOCS / page.stem, page.with_suffix(".json")
    said = folder / artifacts.SPEAKS_OF
    if page.parent != root / artifacts.VALIDATION or not said.is_file() or not verdict.is_file():
        return None
    return folder / "index.html" if said.read_text(encoding="utf-8") == sha256_of(verdict) else None


def format_mark(seconds: int) -> str:
    """Return a figure of the axis, as short as it can be."""
    unit, length = ("s", 1) if seconds < 60 else ("min", 60) if seconds < 3600 else ("h", 3600)
    return f"{seconds / length:g} {unit}"


def format_moment(time_of_record: str | None) -> str:
    """Return a time of a record for people; with the offset of its host, as others may be elsewhere."""
    if time_of_record is None:
        return "a time that was not kept"
    try:
        return datetime.fromisoformat(time_of_record).strftime("%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return time_of_record


def format_clock(seconds: float) -> str:
    """Return a moment of this host as records have it; `seconds` are since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))
