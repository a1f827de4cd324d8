"""reports/run.html: a run on one page, with the loss curves; a single file without outside resources."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from flows.report import (
    RunReport,
    how_published,
    outcome,
    read_json_object,
    recipe_words,
    scores_in_words,
    where_published,
)
from tasks.jobs.device_job import figures_in_words
from tasks.pages.render import html_page
from tasks.project.plan_file import Stage, read_plan

WIDTH, HEIGHT, MARGIN = 320, 170, 34


def page(report: RunReport, root: Path) -> str:
    """The run as an HTML page.

    Args:
        report: the finished (or failed) run.
        root: its checkout, where plots/*.csv lie.
    """
    names, plan = {stage.name for stage in report.stages}, read_plan(root)
    curves = [_curve(root, stage) for stage in plan.values() if stage.name in names and is_training(stage)]
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


def is_training(stage: Stage) -> bool:
    """Whether it draws its loss, and that on held-out rows, which are its two plots."""
    return stage.uses_device and len(stage.plots) == 2


def _results(report: RunReport) -> list[str]:
    lines = []
    for found in report.results.values():
        decision, receipt = found["decision"], found["published"]
        verdict = "no decision" if decision is None else "accepted" if decision["accepted"] else "rejected"
        lines += [f"{scores_in_words(found)}; gate: {verdict}.", *(decision["reasons"] if decision else [])]
        lines += recipe_words(decision, receipt) if decision else []
        if receipt is not None:
            lines.append(f"{how_published(receipt).capitalize()}: {where_published(receipt)}.")
    return lines + [f"Program of {stage}: {how}." for stage, how in report.programs.items()]


def _curve(root: Path, training: Stage) -> dict[str, Any]:
    """The loss over the updates, as a line that ends in a dot, all there is of a short run, and rings for the loss on
    held-out rows; the axis begins at zero, so that curves of runs can be compared by eye."""
    points, rings = (read_curve(root / plot) for plot in training.plots)
    curve: dict[str, Any] = {"title": training.name, "line": [], "rings": [], "held_out": _held_out(root, training)}
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


def _held_out(root: Path, training: Stage) -> str:
    """The figures of the saved weights on rows that the training did not see."""
    found = (read_json_object(root / training.metrics[0]) or {}).get("held_out")
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
