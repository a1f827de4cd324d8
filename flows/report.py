"""What a run says of itself at its end: reports/run.json and a summary for people."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.pages.markup import markdown_block
from tasks.project import artifacts

HEADER = f"{'stage':<24} {'status':<9} seconds"


@dataclass(frozen=True)
class StageRecord:
    """One stage of a run."""

    name: str
    status: str
    """ran, skipped (nothing had changed), restored (from a cache), paused, stopped (Ctrl-C, SIGTERM) or failed."""
    seconds: float
    """Wall time, the orchestration's own included."""
    host: str | None = None
    """Of a run on workers: where it was."""


@dataclass
class RunReport:
    """reports/run.json, filled while the run goes on."""

    folder: str
    """Where the run's files are, from the project's folder; "." unless it has a checkout of its own."""
    preset: str | None = None
    overrides: list[str] = field(default_factory=list)
    stages: list[StageRecord] = field(default_factory=list)
    metrics: dict[str, float] | None = None
    gate: dict[str, Any] | None = None
    published: dict[str, Any] | None = None
    error: str | None = None
    programs: dict[str, str] = field(default_factory=dict)
    """How the stages that ran on IPUs came by their programs: built and why, loaded, or restored."""
    packing: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of each stage that ran on a device: packing_factor and packing_efficiency of its rows."""
    glue: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each GLUE task: metrics (percent), gate, and published, the receipt or None."""
    paused: str | None = None
    """Why a stage stopped at a checkpoint; the run continues when it is started again."""
    interrupted: str | None = None
    """What ended the run where no checkpoint was made: Ctrl-C, or a signal; `error` says more."""

    def enter(self, record: StageRecord) -> None:
        """Add a stage; of one that is entered again, because a worker was lost or another host needs its outs, what it
        cost is kept, and where it ran."""
        for index, before in enumerate(self.stages):
            if before.name == record.name:
                spent = before.seconds + record.seconds
                kept = record.status == "skipped" or (record.status == "restored" and before.status == "ran")
                made = before if kept else record
                self.stages[index] = StageRecord(record.name, made.status, round(spent, 2), made.host)
                return
        self.stages.append(record)

    def read_results(self, root: Path) -> None:
        """Take the scores and the gate's decision from the files the stages wrote."""
        names = [stage.name for stage in self.stages]
        tasks = [name.partition("@")[2] for name in names if name.startswith("glue_gate@")]
        if "gate" in names or not tasks:  # a run of GLUE alone does not speak of older answers
            scores = read_json_object(root / artifacts.SQUAD_METRICS)
            if scores is not None:
                self.metrics = {name: scores[name] for name in ("exact_match", "f1")}
            self.gate = _gate(root / artifacts.GATE)
        for task in tasks:
            scores = read_json_object(root / artifacts.glue_metrics(task)) or {}
            metrics = {name: scores[name] for name in scores if f"{name}_low" in scores}
            gate = _gate(root / artifacts.glue_metrics(task, "gate"))
            self.glue[task] = {"metrics": metrics, "gate": gate, "published": None}
        self._read_figures(root, (*artifacts.DEVICE_METRICS, *(name for name in names if name.startswith("glue_"))))

    def _read_figures(self, root: Path, stages: Iterable[str]) -> None:
        ran = {stage.name for stage in self.stages if stage.status == "ran"}
        for stage in stages:
            name = artifacts.device_metrics(stage)
            figures = {} if name is None else read_json_object(root / artifacts.METRICS / f"{name}.json") or {}
            if "packing_factor" in figures:
                self.packing[stage] = {name: figures[name] for name in ("packing_factor", "packing_efficiency")}
            if stage in ran and "program" in figures:
                self.programs[stage] = figures["program"]

    def enter_receipt(self, receipt: dict[str, Any], task: str = "") -> None:
        """Take what publish says of itself; its folder is stated from the checkout, ours from the project.

        Args:
            task: of GLUE, "" for questions.
        """
        published = dict(receipt)
        if "folder" in receipt:
            published["folder"] = os.path.normpath(os.path.join(self.folder, receipt["folder"]))
        if task:
            self.glue[task]["published"] = published
        else:
            self.published = published

    def write(self, *roots: Path) -> None:
        """Write reports/run.json in each of `roots`."""
        for root in roots:
            artifacts.write_json(root / artifacts.RUN_REPORT, self.as_values())

    def as_values(self) -> dict[str, Any]:
        """The report as plain values; what only runs on workers, of GLUE, or paused ones have is left out of others."""
        values = asdict(self)
        for stage in values["stages"]:
            if stage["host"] is None:
                del stage["host"]
        for name in ("paused", "interrupted", "glue"):
            if not values[name]:
                del values[name]
        return values


def read_json_object(path: Path) -> dict[str, Any] | None:
    """What a stage wrote; None where it has not run."""
    if not path.is_file():
        return None
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _gate(path: Path) -> dict[str, Any] | None:
    gate = read_json_object(path)
    return None if gate is None else {"accepted": gate["accepted"], "reasons": gate["reasons"]}


def outcome(report: RunReport) -> str:
    """The run in one word: interrupted, failed, paused, rejected, proposed (for review), published, finished."""
    if report.interrupted is not None:
        return "interrupted"
    if report.error is not None:
        return "failed"
    if report.paused is not None:
        return "paused"
    gates = [report.gate, *(task["gate"] for task in report.glue.values())]
    if any(gate is not None and not gate["accepted"] for gate in gates):
        return "rejected"
    receipts = [report.published, *(task["published"] for task in report.glue.values())]
    found = [_how_published(receipt) for receipt in receipts if receipt is not None]
    return min(found, key=("proposed", "published").index, default="finished")


def _how_published(receipt: dict[str, Any]) -> str:
    return "proposed" if receipt.get("pull_request") else "published"


def summary(report: RunReport) -> str:
    """The run for people, as lines of text."""
    why = [text for text in (report.error, report.paused) if text is not None]
    stages = [HEADER, *(row(stage) for stage in report.stages), total(report)]
    return "\n".join([headline(report), "", *stages, "", *results(report), *why, "", to_look_at(report)])


def headline(report: RunReport) -> str:
    """How the run ended."""
    return f"Podium run: {outcome(report)}"


def row(stage: StageRecord) -> str:
    """A stage in one line."""
    return f"{stage.name:<24} {stage.status:<9} {stage.seconds:7.1f}{_place(stage)}"


def total(report: RunReport) -> str:
    """The last line below the rows of all stages."""
    return f"{'all stages':<24} {'':<9} {sum(stage.seconds for stage in report.stages):7.1f}"


def results(report: RunReport) -> list[str]:
    """Scores, verdicts, and where the models went."""
    lines = [f"program of {stage}: {how}" for stage, how in report.programs.items()]
    if report.metrics is not None:
        lines.append(f"exact match {report.metrics['exact_match']:.2f}, F1 {report.metrics['f1']:.2f} (dev questions)")
    lines += _decided("gate", report.gate, report.published)
    for task, found in report.glue.items():
        scores = ", ".join(f"{name} {value:.2f}" for name, value in found["metrics"].items())
        lines += [f"{task}: {scores}", *_decided(f"{task} gate", found["gate"], found["published"])]
    return lines


def to_look_at(report: RunReport) -> str:
    """The pages of the run."""
    prefix = "" if report.folder == "." else f"{report.folder}/"
    pages = ["reports/run.html"]
    if report.metrics is not None:
        pages += ["evaluation/report.html", "reports/validation/*.html"]
    pages += [f"{artifacts.glue_evaluation(task)}/report.html" for task in report.glue]
    return "to look at: " + ", ".join(prefix + page for page in pages)


def _decided(name: str, gate: dict[str, Any] | None, receipt: dict[str, Any] | None) -> list[str]:
    """A gate's verdict with its reasons, and where the model went."""
    lines = []
    if gate is not None:
        lines.append(f"{name}: {'accepted' if gate['accepted'] else 'rejected, nothing was published'}")
        lines += [f"  - {reason}" for reason in gate["reasons"]]
    if receipt is not None:
        lines.append(f"{_how_published(receipt)}: {where_published(receipt)}")
    return lines


def _place(stage: StageRecord) -> str:
    return "" if stage.host is None else f"  {stage.host}"


def read(root: Path) -> RunReport | None:
    """The report of the run that wrote reports/run.json in `root`, None if there is none."""
    values = read_json_object(root / artifacts.RUN_REPORT)
    if values is None:
        return None
    values["stages"] = [StageRecord(**stage) for stage in values["stages"]]
    return RunReport(**values)


def markdown(report: RunReport) -> str:
    """The summary as a Prefect artifact."""
    return f"{markdown_block(summary(report))}\n"


def where_published(published: dict[str, Any]) -> str:
    """The place of a publish receipt, in words."""
    place = published.get("url") or published.get("repository") or published.get("folder")
    return f"{place}{' (unchanged)' if published.get('unchanged') else ''}"
