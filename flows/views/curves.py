"""Training curves by update: loss, held-out scores, learning rate, tokens per second, memory.

A finished training has its curves in plots/. A running or interrupted one has them in its run folder. Speed and memory
come from the job's log, which is always in the run folder.
"""

import contextlib
import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.runs.report import read_metrics
from ipu_model.core.files import find_object
from tasks.jobs.device_job import format_figures
from tasks.pages.plots import PlotLine, plot_lines
from tasks.plan.plan_file import Stage
from tasks.stage import artifacts

STEP, PLAN, CONTINUED = b'{"event": "step"', b'{"event": "plan"', b'"continued": '
"""Markers in lines of a job's log: the figures of an update, the start of the job, the update it resumed from."""
SPEED, MEMORY, DEVICE_MEMORY = "real_tokens_per_second", "memory_mb", "device_memory_mb"
"""Fields of a step's event."""
Columns = dict[str, list[float]]
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class TrainingCurves:
    """Curves of a training stage."""

    stage: str
    history: Columns
    held_out: Columns
    steps: Columns
    """Speed and memory from its log; empty if the log is missing or on another host."""
    scores: dict[str, Any]
    """Held-out scores of its weights; empty without held-out rows."""
    resumed: int = 0
    """Update that it was last resumed from; 0: not resumed."""
    loss_unit: str = ""
    """Unit of its loss; empty if its job is missing or on another host."""


def is_training(stage: Stage) -> bool:
    """Return whether a stage is a training: it has two plots, its loss and its held-out loss."""
    return stage.uses_device and len(stage.plots) == 2


def read_training(stage: Stage, root: Path, project: Path, began: float | None = None) -> TrainingCurves:
    """Return the curves of a training that began at `began` (seconds since 1970; files of earlier jobs are ignored).

    The project's folder has the run folders that other runs restore.
    """
    metrics, (plot, held_out_plot) = read_metrics(stage, root), (root / path for path in stage.plots)
    folder = _find_run_folder(plot.stem, metrics.get("fingerprint"), (root, project), began)
    if not plot.is_file() and folder is not None:
        plot, held_out_plot = folder / "history.csv", folder / "evaluations.csv"
    steps, resumed = ({}, 0) if folder is None else _read_log(folder / "job.log")
    resumed = int(metrics.get("resumed_from_step", resumed))
    columns = read_columns(plot), read_columns(held_out_plot)
    return TrainingCurves(stage.name, *columns, steps, metrics.get("held_out") or {}, resumed, _read_loss_unit(folder))


def find_evaluations(job: str, root: Path) -> Path:
    """Return the table of evaluations on held-out rows of a running, stopped or finished training with these plots."""
    plot, folder = root / artifacts.held_out_plot(job), _find_run_folder(job, None, [root], None)
    return plot if plot.is_file() or folder is None else folder / "evaluations.csv"


def _find_run_folder(name: str, fingerprint: str | None, places: Sequence[Path], began: float | None) -> Path | None:
    """Return the run folder of a training: by its fingerprint if it finished, else the newest in the first place."""
    if fingerprint is not None:
        folders = (root / artifacts.RUNS / name / fingerprint for root in places)
        return next((folder for folder in folders if folder.is_dir()), None)
    jobs = {job: job.stat().st_mtime for job in (places[0] / artifacts.RUNS / name).glob("*/job.json")}
    newest = max(jobs, key=lambda job: jobs[job], default=None)
    return None if newest is None or jobs[newest] < (began or 0.0) else newest.parent


def _read_loss_unit(folder: Path | None) -> str:
    """Return "nats" for a cross-entropy, "squared" for the mean squared error of a regression."""
    job = None if folder is None else find_object(folder / "job.json")
    if not job or "head" not in job:
        return ""
    return "squared" if job["head"] == "sequence_classification" and job["labels"] == 1 else "nats"


def read_columns(path: Path) -> Columns:
    """Return the columns of a stage's history without incomplete lines; empty if the stage has not run."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    names, lines = (rows[0], rows[1:]) if rows else ([], [])
    whole = [line for line in lines if len(line) == len(names) and all(line)]
    return {name: [float(line[index]) for line in whole] for index, name in enumerate(names)}


def _read_log(path: Path) -> tuple[Columns, int]:
    """Return speed and memory after each step in a job's log, and the update that the training was last resumed from.

    The last event of a repeated step counts. A job that starts from scratch discards the steps of earlier jobs in this
    folder.
    """
    steps: dict[float, dict[str, Any]] = {}
    resumed, begins = 0, False
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):  # it is being written
                break
            if line.startswith(PLAN):
                begins = True
            elif line.startswith(STEP):
                event = json.loads(line)
                if begins:
                    steps.clear()
                    resumed, begins = 0, False
                steps[event["step"]] = event
            elif begins and CONTINUED in line and (event := json.loads(line)).get("event") == "message":
                resumed, begins = event["continued"], False
    columns: Columns = {"step": sorted(steps)}
    for name in (SPEED, MEMORY, DEVICE_MEMORY):
        values: list[Any] = [steps[step].get(name) for step in columns["step"]]
        if values and None not in values:
            columns[name] = values
    return columns, resumed


def column_points(columns: Columns, name: str, factor: float = 1.0) -> Points:
    """Return (update, value) of each line of a column; empty without that column."""
    values = columns.get(name, ())
    return [(x, factor * y) for x, y in zip(columns.get("step", ()), values, strict=False)]


def make_sections(trainings: Sequence[TrainingCurves]) -> list[dict[str, Any]]:
    """Return figures by kind, those of all trainings next to each other; a single training gets one section."""
    rates = [("learning rate", "learning_rate", 2)]
    memories = [("process", MEMORY, 3), ("device, peak so far", DEVICE_MEMORY, 4)]
    kinds: list[tuple[str, str, Callable[[TrainingCurves], list[PlotLine]]]] = [
        ("Loss", "loss", _loss_lines),
        ("Scores on held-out rows", "%", _score_lines),
        ("Learning rate", "learning rate", lambda curves: _make_lines(curves.history, rates)),
        ("Speed", "tokens per second", lambda curves: _make_lines(curves.steps, [("real tokens", SPEED, 5)])),
        ("Memory", "MB", lambda curves: _make_lines(curves.steps, memories)),
    ]
    plots: list[dict[str, Any]] = []
    for title, up, lines_of in kinds:
        figures = []
        for training in trainings:
            axis = f"{up} ({training.loss_unit})" if title == "Loss" and training.loss_unit else up
            label = f"{title} of {training.stage} over its updates"
            plot = plot_lines(lines, "update", axis, label) if (lines := lines_of(training)) else None
            note = _format_note(training) if title == "Loss" else ""
            figures.append({"title": training.stage, "plot": plot, "note": note})
        if any(figure["plot"] for figure in figures):
            plots.append({"title": title, "figures": figures})
    if len(trainings) != 1 or not plots:
        return plots
    together = [{**figure, "title": section["title"]} for section in plots for figure in section["figures"]]
    return [{"title": trainings[0].stage, "figures": together}]


def _format_note(training: TrainingCurves) -> str:
    """Return the last loss, the update from which the training was resumed, and its held-out scores as text."""
    words = []
    if training.history.get("loss"):
        words.append(f"loss {training.history['loss'][-1]:.3f} after {training.history['step'][-1]:,.0f} updates")
        words += [f"resumed from update {training.resumed:,}"] if training.resumed else []
    if scores := training.scores:
        early = ", stopped early" if scores["stopped_early"] else ""
        words.append(f"held-out rows, after update {scores['step']:,}{early}: {format_figures(scores)}")
    return "; ".join(words)


def _loss_lines(training: TrainingCurves) -> list[PlotLine]:
    """Return the training loss as a line, with a teacher its parts as well, and the held-out loss as dots."""
    held_out = column_points(training.held_out, "loss")
    both = " (masked LM + next sentence)" if "nsp_loss" in training.history else ""
    history = training.history
    parts = [name for name in history if name.endswith("_loss")] if "teacher_loss" in history else []
    named = [(f"training{both}", "loss", 0), *((name.replace("_", " "), name, 2 + at) for at, name in enumerate(parts))]
    lines = _make_lines(history, named)
    return [*lines, *([PlotLine(f"held-out rows{both}", held_out, marks=True, color=1)] if held_out else [])]


def _make_lines(columns: Columns, named: Iterable[tuple[str, str, int]], factor: float = 1.0) -> list[PlotLine]:
    """Return a line for each name, column and color that has points; a single point becomes a dot."""
    lines = ((name, column_points(columns, column, factor), color) for name, column, color in named)
    return [PlotLine(name, line, marks=len(line) == 1, color=color) for name, line, color in lines if line]


def _score_lines(training: TrainingCurves) -> list[PlotLine]:
    names = [name for name in training.held_out if name.endswith("accuracy")]
    named = ((name.replace("_", " "), name, color) for color, name in enumerate(names))
    return _make_lines(training.held_out, named, 100.0)


def read_curve(path: Path) -> Points:
    """Return (update, loss) of each line of a stage's history; empty if the stage has not run."""
    return column_points(read_columns(path), "loss")
