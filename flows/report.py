"""What a run says of itself at its end: reports/run.json and a summary for people."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks import artifacts


@dataclass(frozen=True)
class StageRecord:
    """One stage of a run."""

    name: str
    status: str
    """ran, skipped (nothing had changed), restored (from a cache), paused or failed."""
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
    paused: str | None = None
    """Why a stage stopped at a checkpoint; the run continues when it is started again."""

    def enter(self, record: StageRecord) -> None:
        """Add a stage; of one that is entered again, because a worker was lost, what it cost is kept."""
        for index, before in enumerate(self.stages):
            if before.name == record.name:
                spent = before.seconds + record.seconds
                status = before.status if record.status == "skipped" else record.status
                host = before.host if record.status == "skipped" else record.host
                self.stages[index] = StageRecord(record.name, status, round(spent, 2), host)
                return
        self.stages.append(record)

    def read_results(self, root: Path) -> None:
        """Take the scores and the gate's decision from the files the stages wrote."""
        scores = read_json_object(root / artifacts.SQUAD_METRICS)
        if scores is not None:
            self.metrics = {name: scores[name] for name in ("exact_match", "f1")}
        gate = read_json_object(root / artifacts.GATE)
        if gate is not None:
            self.gate = {"accepted": gate["accepted"], "reasons": gate["reasons"]}
        ran = {stage.name for stage in self.stages if stage.status == "ran"}
        for stage, name in artifacts.DEVICE_METRICS.items():
            figures = read_json_object(root / artifacts.METRICS / f"{name}.json") or {}
            if "packing_factor" in figures:
                self.packing[stage] = {name: figures[name] for name in ("packing_factor", "packing_efficiency")}
            if stage in ran and "program" in figures:
                self.programs[stage] = figures["program"]

    def enter_receipt(self, receipt: dict[str, Any]) -> None:
        """Take what publish says of itself; its folder is stated from the checkout, ours from the project."""
        self.published = dict(receipt)
        if "folder" in receipt:
            self.published["folder"] = os.path.normpath(os.path.join(self.folder, receipt["folder"]))

    def write(self, *roots: Path) -> None:
        """Write reports/run.json in each of `roots`."""
        for root in roots:
            artifacts.write_json(root / artifacts.RUN_REPORT, self.as_values())

    def as_values(self) -> dict[str, Any]:
        """The report as plain values; what only runs on workers or paused runs have is left out of others."""
        values = asdict(self)
        for stage in values["stages"]:
            if stage["host"] is None:
                del stage["host"]
        if self.paused is None:
            del values["paused"]
        return values


def read_json_object(path: Path) -> dict[str, Any] | None:
    """What a stage wrote; None where it has not run."""
    if not path.is_file():
        return None
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def outcome(report: RunReport) -> str:
    """The run in one word: failed, paused, rejected, proposed (a pull request waits), published or finished."""
    if report.error is not None:
        return "failed"
    if report.paused is not None:
        return "paused"
    if report.gate is not None and not report.gate["accepted"]:
        return "rejected"
    if report.published is None:
        return "finished"
    return _how_published(report.published)


def _how_published(receipt: dict[str, Any]) -> str:
    return "proposed" if receipt.get("pull_request") else "published"


def summary(report: RunReport) -> str:
    """The run for people, as lines of text."""
    lines = [f"Podium run: {outcome(report)}", "", f"{'stage':<24} {'status':<9} seconds"]
    lines += [f"{stage.name:<24} {stage.status:<9} {stage.seconds:7.1f}{_place(stage)}" for stage in report.stages]
    total = sum(stage.seconds for stage in report.stages)
    lines += [f"{'all stages':<24} {'':<9} {total:7.1f}", ""]
    lines += [f"program of {stage}: {how}" for stage, how in report.programs.items()]
    if report.metrics is not None:
        lines.append(f"exact match {report.metrics['exact_match']:.2f}, F1 {report.metrics['f1']:.2f} (dev questions)")
    if report.gate is not None:
        lines.append("gate: accepted" if report.gate["accepted"] else "gate: rejected, nothing was published")
        lines += [f"  - {reason}" for reason in report.gate["reasons"]]
    if report.published is not None:
        lines.append(f"{_how_published(report.published)}: {where_published(report.published)}")
    lines += [why for why in (report.error, report.paused) if why is not None]
    prefix = "" if report.folder == "." else f"{report.folder}/"
    pages = ["reports/run.html"]
    if report.metrics is not None:
        pages += ["evaluation/report.html", "reports/validation/*.html"]
    lines += ["", "to look at: " + ", ".join(prefix + page for page in pages)]
    return "\n".join(lines)


def _place(stage: StageRecord) -> str:
    return "" if stage.host is None else f"  {stage.host}"


def read_summary(root: Path) -> str | None:
    """The summary of the run that wrote reports/run.json in `root`, None if there is none."""
    values = read_json_object(root / artifacts.RUN_REPORT)
    if values is None:
        return None
    values["stages"] = [StageRecord(**stage) for stage in values["stages"]]
    return summary(RunReport(**values))


def markdown(report: RunReport) -> str:
    """The summary as a Prefect artifact."""
    return f"```\n{summary(report)}\n```\n"


def where_published(published: dict[str, Any]) -> str:
    """The place of a publish receipt, in words."""
    place = published.get("url") or published.get("repository") or published.get("folder")
    return f"{place}{' (unchanged)' if published.get('unchanged') else ''}"
