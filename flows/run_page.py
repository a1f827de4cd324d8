"""reports/run.html: a run on one page, with the loss curves; a single file without outside resources."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from flows.report import RunReport, outcome, read_json_object, where_published
from tasks.jobs.device_job import figures_in_words
from tasks.pages.render import html_page
from tasks.project import artifacts

CURVES = (
    ("pretrain-phase1", "Pre-training, phase 1"),
    ("pretrain-phase2", "Pre-training, phase 2"),
    ("finetune", "Fine-tuning"),
)
WIDTH, HEIGHT, MARGIN = 320, 170, 34


def page(report: RunReport, root: Path) -> str:
    """The run as an HTML page.

    Args:
        report: the finished (or failed) run.
        root: its checkout, where plots/*.csv lie.
    """
    curves = [_curve(root, name, title) for name, title in _curves_of(report)]
    return html_page(
        __file__,
        "run.html.j2",
        outcome=outcome(report),
        results=_results(report),
        reasons=[text for text in (report.error, report.paused) if text is not None],
        curves=curves,
        rings=any(curve["rings"] for curve in curves),
        packing=report.packing,
        stages=report.stages,
        longest=max((stage.seconds for stage in report.stages), default=0.0) or 1.0,
        width=WIDTH,
        height=HEIGHT,
        margin=MARGIN,
    )


def _curves_of(report: RunReport) -> list[tuple[str, str]]:
    """Names and titles of the trainings of a run; of one that is all about GLUE without that on questions."""
    shown = [curve for curve in CURVES if curve[0] != "finetune" or report.metrics is not None or not report.glue]
    return [*shown, *((f"glue-{task}-finetune", f"Fine-tuning, {task}") for task in report.glue)]


def _results(report: RunReport) -> list[str]:
    lines = []
    if report.metrics is not None:
        lines.append(
            f"Exact match {report.metrics['exact_match']:.2f}, F1 {report.metrics['f1']:.2f} on dev questions."
        )
    if report.gate is not None:
        lines.append("Gate: accepted." if report.gate["accepted"] else "Gate: rejected, nothing was published.")
        lines += report.gate["reasons"]
    if report.published is not None:
        lines.append(_published(report.published))
    for task, found in report.glue.items():
        scores = ", ".join(f"{name} {value:.2f}" for name, value in found["metrics"].items())
        verdict = "no decision" if found["gate"] is None else "accepted" if found["gate"]["accepted"] else "rejected"
        lines.append(f"GLUE {task}: {scores}; gate: {verdict}.")
        lines += found["gate"]["reasons"] if found["gate"] is not None else []
        lines += [_published(found["published"])] if found["published"] is not None else []
    return lines + [f"Program of {stage}: {how}." for stage, how in report.programs.items()]


def _published(receipt: dict[str, Any]) -> str:
    how = "Proposed for review" if receipt.get("pull_request") else "Published"
    return f"{how}: {where_published(receipt)}."


def _curve(root: Path, name: str, title: str) -> dict[str, Any]:
    """The loss over the updates, as a line that ends in a dot, all there is of a short run, and rings for the loss on
    held-out rows; the axis begins at zero, so that curves of runs can be compared by eye."""
    points, rings = read_curve(root / artifacts.PLOTS / f"{name}.csv"), read_curve(root / artifacts.held_out_plot(name))
    curve: dict[str, Any] = {"title": title, "line": [], "rings": [], "held_out": _held_out(root, name)}
    if not points:
        return curve
    (_, first), (updates, loss) = points[0], points[-1]
    top = max(value for _, value in (*points, *rings)) or 1.0
    across, down, base = (WIDTH - MARGIN - 8) / updates, (HEIGHT - MARGIN - 8) / top, HEIGHT - MARGIN
    return {
        **curve,
        **{"first": first, "loss": loss, "updates": updates, "top": top},
        "line": [(MARGIN + step * across, base - value * down) for step, value in points],
        "rings": [
            {"x": MARGIN + step * across, "y": base - value * down, "step": step, "loss": value}
            for step, value in rings
        ],
    }


def _held_out(root: Path, name: str) -> str:
    """The figures of the saved weights on rows that the training did not see."""
    found = (read_json_object(root / artifacts.METRICS / f"{name}.json") or {}).get("held_out")
    if not found:
        return ""
    after = f"held-out rows, after update {found['step']:,}"
    early = ", stopped early" if found["stopped_early"] else ""
    return f"{after}{early}: {figures_in_words(found)}"


def read_curve(path: Path) -> list[tuple[float, float]]:
    """(update, loss) of each line of a stage's history; empty when the stage has not run."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [(float(line["step"]), float(line["loss"])) for line in csv.DictReader(stream)]
