"""reports/run.html: a run on one page, with the loss curves; a single file without outside resources."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from flows.report import RunReport, outcome, read_json_object, where_published
from tasks.jobs.device_job import figures_in_words
from tasks.pages.markup import html_text
from tasks.project import artifacts

CURVES = (
    ("pretrain-phase1", "Pre-training, phase 1"),
    ("pretrain-phase2", "Pre-training, phase 2"),
    ("finetune", "Fine-tuning"),
)
WIDTH, HEIGHT, MARGIN = 320, 170, 34
STYLE = """
:root { color-scheme: light dark; --line: #8884; --ink: #4a78c0; --held: #b3560a; }
@media (prefers-color-scheme: dark) { :root { --held: #f0a35e; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; max-width: 42rem; }
td, th { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { background: var(--ink); height: .6rem; border-radius: 2px; min-width: 1px; }
figure { margin: 0; max-width: 320px; } figure p { margin: 0; font-size: .85rem; }
.curves { display: flex; flex-wrap: wrap; gap: 1rem; } svg { max-width: 100%; height: auto; }
text { font: 11px system-ui, sans-serif; fill: currentColor; } pre { white-space: pre-wrap; }
"""


def page(report: RunReport, root: Path) -> str:
    """The run as an HTML page.

    Args:
        report: the finished (or failed) run.
        root: its checkout, where plots/*.csv lie.
    """
    curves = _curves_of(report)
    rings = any((root / artifacts.held_out_plot(name)).is_file() for name, _ in curves)
    body = [
        f"<h1>Podium run: {html_text(outcome(report))}</h1>",
        _results(report),
        f"<h2>Loss</h2><p>Line: training.{' Rings: rows held out of it.' if rings else ''}</p>",
        f'<div class="curves">{"".join(_figure(root, name, title) for name, title in curves)}</div>',
        *_packing(report),
        "<h2>Stages</h2>",
        _stages(report),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Podium run</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body>\n{''.join(body)}\n</body></html>\n"
    )


def _curves_of(report: RunReport) -> list[tuple[str, str]]:
    """Names and titles of the trainings of a run; of one that is all about GLUE without that on questions."""
    shown = [curve for curve in CURVES if curve[0] != "finetune" or report.metrics is not None or not report.glue]
    return [*shown, *((f"glue-{task}-finetune", f"Fine-tuning, {task}") for task in report.glue)]


def _results(report: RunReport) -> str:
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
    lines += [f"Program of {stage}: {how}." for stage, how in report.programs.items()]
    why = "".join(f"<pre>{html_text(text)}</pre>" for text in (report.error, report.paused) if text is not None)
    return "".join(f"<p>{html_text(line)}</p>" for line in lines) + why


def _published(receipt: dict[str, Any]) -> str:
    how = "Proposed for review" if receipt.get("pull_request") else "Published"
    return f"{how}: {where_published(receipt)}."


def _packing(report: RunReport) -> list[str]:
    if not report.packing:
        return []
    rows = "".join(
        f'<tr><td>{html_text(stage)}</td><td class="number">{found["packing_factor"]:.2f}</td>'
        f'<td class="number">{100 * found["packing_efficiency"]:.1f}%</td></tr>'
        for stage, found in report.packing.items()
    )
    heads = "<tr><th>stage</th><th>sequences in a row</th><th>tokens that are no padding</th></tr>"
    return ["<h2>Packing</h2>", f"<table>{heads}{rows}</table>"]


def _stages(report: RunReport) -> str:
    longest = max((stage.seconds for stage in report.stages), default=1.0)
    hosts = any(stage.host for stage in report.stages)
    rows = "".join(
        f"<tr><td>{html_text(stage.name)}</td><td>{html_text(stage.status)}</td>"
        + (f"<td>{html_text(stage.host or '')}</td>" if hosts else "")
        + f'<td class="number">{stage.seconds:.1f}</td>'
        f'<td style="width:40%"><div class="bar" style="width:{100 * stage.seconds / longest:.1f}%"></div></td></tr>'
        for stage in report.stages
    )
    host = "<th>host</th>" if hosts else ""
    return f"<table><tr><th>stage</th><th>status</th>{host}<th>seconds</th><th></th></tr>{rows}</table>"


def _figure(root: Path, name: str, title: str) -> str:
    points = read_curve(root / artifacts.PLOTS / f"{name}.csv")
    held_out = read_curve(root / artifacts.held_out_plot(name))
    drawing = _curve(points, held_out) if points else "<p>no update was made</p>"
    return f"<figure><figcaption>{html_text(title)}</figcaption>{drawing}{_held_out(root, name)}</figure>"


def _held_out(root: Path, name: str) -> str:
    """The figures of the saved weights on rows that the training did not see."""
    found = (read_json_object(root / artifacts.METRICS / f"{name}.json") or {}).get("held_out")
    if not found:
        return ""
    after = f"held-out rows, after update {found['step']:,}"
    early = ", stopped early" if found["stopped_early"] else ""
    return f"<p>{html_text(after + early)}: {html_text(figures_in_words(found))}</p>"


def read_curve(path: Path) -> list[tuple[float, float]]:
    """(update, loss) of each line of a stage's history; empty when the stage has not run."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [(float(line["step"]), float(line["loss"])) for line in csv.DictReader(stream)]


def _curve(points: list[tuple[float, float]], held_out: list[tuple[float, float]]) -> str:
    """A line over updates that ends in a dot, all there is of a short run, and rings for the loss on held-out rows; the
    loss axis begins at zero, so that curves of runs can be compared by eye."""
    last, top = points[-1][0], max(loss for _, loss in (*points, *held_out)) or 1.0
    across, down = (WIDTH - MARGIN - 8) / last, (HEIGHT - MARGIN - 8) / top
    base = HEIGHT - MARGIN
    drawn = [(MARGIN + step * across, base - loss * down) for step, loss in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
    rings = "".join(
        f'<circle cx="{MARGIN + step * across:.1f}" cy="{base - loss * down:.1f}" r="3" fill="none" '
        f'stroke="var(--held)" stroke-width="1.5"><title>held out, update {step:.0f}: {loss:.4f}</title></circle>'
        for step, loss in held_out
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="loss from {points[0][1]:.2f} '
        f'to {points[-1][1]:.2f}">'
        f'<path d="M{MARGIN} 8V{base}H{WIDTH - 8}" fill="none" stroke="var(--line)"/>'
        f'<polyline points="{line}" fill="none" stroke="var(--ink)" stroke-width="1.5"/>'
        f'<circle cx="{drawn[-1][0]:.1f}" cy="{drawn[-1][1]:.1f}" r="2" fill="var(--ink)"/>{rings}'
        f'<text x="{MARGIN - 4}" y="14" text-anchor="end">{top:.1f}</text>'
        f'<text x="{MARGIN - 4}" y="{base}" text-anchor="end">0</text>'
        f'<text x="{WIDTH - 8}" y="{base + 14}" text-anchor="end">{last:.0f} updates</text>'
        f'<text x="{MARGIN}" y="{base + 14}">final loss {points[-1][1]:.3f}</text></svg>'
    )
