"""Sweeps on the page of all runs: parallel coordinates and a table of the trials."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flows.runs.listing import SWEEPS
from flows.runs.report import PRETRAINING_SCORES
from ipu_model.core.files import read_json
from tasks.downstream.gate.recipe import SEED
from tasks.downstream.gate.verdict_text import format_figure, signed_figure
from tasks.pages.plots import ParallelAxis, Plot, format_tick, plot_parallel

MAX_SWEEPS = 10
"""Maximum sweeps on the page, the newest."""
LOG_SPREAD = 8.0
"""Ratio of the largest and the smallest value from which an axis is logarithmic."""


@dataclass(frozen=True)
class SweepView:
    """A sweep, running or ended."""

    name: str
    trials: Sequence[Mapping[str, Any]]

    @cached_property
    def scored(self) -> list[Mapping[str, Any]]:
        """Trials with a score, the best last."""
        return sorted(
            (trial for trial in self.trials if trial["score"] is not None), key=lambda trial: float(trial["score"])
        )

    @property
    def figure(self) -> str:
        """Name of the held-out figure that selects the best trial."""
        return str(self.scored[0]["held_out"]["judged_by"])

    @property
    def title(self) -> str:
        """Title of this figure."""
        return title_figure(self.figure)

    def value(self, trial: Mapping[str, Any]) -> float:
        """Return the held-out figure of a trial with a score."""
        return signed_figure(self.figure, trial["score"])

    def format(self, trial: Mapping[str, Any]) -> str:
        """Return the held-out figure of a trial with a score as text."""
        return format_figure(self.figure, self.value(trial))

    @property
    def best(self) -> str:
        """Run of the best trial; empty before any has a score."""
        return self.scored[-1]["name"] if self.scored else ""

    def describe(self, name: str) -> str:
        """Return the held-out figure of the trial with this run as text with its title; "-" if it has none."""
        score = next((self.format(trial) for trial in self.scored if trial["name"] == name), None)
        return "-" if score is None else f"held-out {self.title} {score}"

    @property
    def note(self) -> str:
        """Numbers of trials, and the best one with its values."""
        states = {
            trial["state"]: sum(other["state"] == trial["state"] for other in self.trials) for trial in self.trials
        }
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        if not self.scored:
            return f"Trials: {counts}. None has a score yet."
        best = self.scored[-1]
        values = ", ".join(f"{shorten_parameter(name)} {value:.4g}" for name, value in best["values"].items())
        return f"Trials: {counts}. Best: {best['name']} ({values}), held-out {self.title} {self.format(best)}."

    @property
    def parameters(self) -> list[str]:
        """Parameters with several values, without the seed."""
        names = self.trials[0]["values"] if self.trials else ()
        return [
            name for name in names if name != SEED and len({str(trial["values"][name]) for trial in self.trials}) > 1
        ]

    @property
    def titles(self) -> list[str]:
        """Titles of these parameters."""
        return [shorten_parameter(name) for name in self.parameters]

    @property
    def plot(self) -> Plot | None:
        """Parallel coordinates of the trials with a score: their parameters, then the held-out figure."""
        if not self.scored or not self.parameters:
            return None
        axes = []
        for name in self.parameters:
            values = [float(trial["values"][name]) for trial in self.scored]
            log = min(values) > 0 and max(values) / min(values) >= LOG_SPREAD
            axes.append(ParallelAxis(shorten_parameter(name), values, log))
        factor = 100.0 if self.figure.endswith("accuracy") else 1.0
        axes.append(ParallelAxis(self.title, [factor * self.value(trial) for trial in self.scored]))
        tips = [self._describe(trial) for trial in self.scored]
        return plot_parallel(axes, tips, len(tips) - 1, f"trials of {self.name}: parameters and held-out {self.title}")

    def _describe(self, trial: Mapping[str, Any]) -> str:
        values = [f"{shorten_parameter(name)} {format_tick(value)}" for name, value in trial["values"].items()]
        return "\n".join([trial["name"], *values, f"held-out {self.title} {self.format(trial)}"])


def title_figure(figure: str) -> str:
    """Return the title of a held-out figure that selects trials."""
    return PRETRAINING_SCORES.get(figure, figure.replace("_", " "))


def shorten_parameter(name: str) -> str:
    """Return the last part of a parameter's name for people."""
    return name.rpartition(".")[2].replace("_", " ")


def read_sweeps(project: Path) -> list[SweepView]:
    """Return the sweeps of a project, the newest first; damaged records are left out."""
    files = sorted((project / SWEEPS).glob("*.json"), key=lambda path: -path.stat().st_mtime)
    views = []
    for path in files[:MAX_SWEEPS]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            views.append(SweepView(path.stem, read_json(path)["trials"]))
    return views
