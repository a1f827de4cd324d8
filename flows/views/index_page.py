"""reports/index.html: all runs of a project on one page, with their scores and curves in shared plots.

Everything on it comes from the records of the runs, however many there are.
"""

import contextlib
import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.runs import listing, report, run_params
from flows.views.curves import read_curve
from flows.views.page_links import make_head_links
from flows.views.run_view import BADGE_COLORS, RunView
from flows.views.sweep_plots import SweepView, read_sweeps
from ipu_model.core.files import find_object, write_text
from ipu_model.core.units import format_duration
from tasks.pages.plots import COLORS, Plot, PlotLine, plot_lines
from tasks.pages.render import render_html
from tasks.params.schema import default_values
from tasks.params.tables import ABSENT
from tasks.stage import artifacts

MAX_POINTS = 30
"""Maximum points of a curve."""
MAX_RUNS = 500
"""Maximum runs on the page, the newest; `podium runs` lists all."""
MAX_DRAWN = 100
"""Maximum runs in plots: more lines cannot be told apart, and take a second to draw."""
MAX_COLUMNS, MAX_PLOTS, MAX_COMPARISONS, MAX_PARAMETERS = 4, 8, 20, 3
MAX_VERTICES, MAX_DOTS = 4_000, 300
"""Maximum vertices and tooltips of all curves together."""
SPARK, MAX_SPARKS = (96, 18), 12
"""Width and height of a loss in the table, and its points."""
UNTYPICAL = (".folder", "_path", ".path", ".title", ".repository")
"""Ends of parameters that differ between runs without being a choice to compare."""
MAX_BYTES = 950_000
"""Maximum bytes of the page; with very long names it shows fewer runs."""

Point = tuple[float, float]


def describe_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of a run's record that its parameters determine."""
    rows = run_params.diff_params(default_values(), values)
    return {
        "runtime": values["device"]["runtime"],
        "entries": {name: entry["kind"] for name, entry in values["downstream"].items()},
        "changed": {name: json.dumps(value, ensure_ascii=False) for name, (_, value) in rows if value is not ABSENT},
    }


def read_curves(folder: Path) -> dict[str, list[Point]]:
    """Return training and held-out losses from a folder of plots; the held-out table identifies a training."""
    curves: dict[str, list[Point]] = {}
    for held_out in sorted(folder.glob(artifacts.held_out_plot("*").name)):
        training = held_out.stem.removesuffix(artifacts.held_out_plot("").stem)
        for name, path in ((training, folder / f"{training}.csv"), (f"{training}, held-out", held_out)):
            with contextlib.suppress(OSError, ValueError):
                points = [(step, float(f"{loss:.5g}")) for step, loss in read_curve(path)]
                apart = -(-len(points) // MAX_POINTS) or 1
                curves[name] = points[:-1:apart] + points[-1:]
    return {name: points for name, points in curves.items() if points}


def read_runtime(folder: Path) -> str:
    """Return the kinds of device that the jobs of a run had: cpu, cuda or ipu; empty if none has ended."""
    metrics = [find_object(path) or {} for path in sorted((folder / artifacts.METRICS).glob("*.json"))]
    return ", ".join(sorted({str(job["runtime"]) for job in metrics if "runtime" in job}))


def write_index(project: Path, ended: str = "") -> None:
    """Write the page; the run `ended` has ended but still has its lock."""
    runs = [replace(run, at_work=run.at_work and run.name != ended) for run in listing.list_shown(project)]
    write_text(project / artifacts.INDEX_PAGE, render_index(project, runs))


def render_index(project: Path, runs: Sequence[listing.Run]) -> str:
    """Return the page of these runs, the newest first."""
    comparisons = sorted((project / artifacts.REPORTS).glob("compare-*.html"), key=lambda path: -path.stat().st_mtime)
    most = MAX_RUNS
    while True:
        view = IndexView(project, runs[:most])
        html = render_html(
            __file__,
            "index.html.j2",
            view=view,
            statuses=Counter(run.status for run in runs if run.name not in view.grouped).most_common(),
            links=make_head_links(project / artifacts.REPORTS, project, "runs.md"),
            left_out=len(runs[most:]),
            kinds=BADGE_COLORS,
            drawn=MAX_DRAWN,
            most_parameters=MAX_PARAMETERS,
            colors=COLORS,
            quote=shlex.quote,
            duration=format_duration,
            spark=SPARK,
            minute=lambda seconds: time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)),
            comparisons=[
                (page.stem.removeprefix("compare-"), quote(page.name)) for page in comparisons[:MAX_COMPARISONS]
            ],
            written=time.strftime("%Y-%m-%d %H:%M %Z"),
        )
        if (size := len(html.encode())) <= MAX_BYTES or most <= 1:
            return html
        most = int(most * min(0.9, MAX_BYTES / size))


class IndexedRun:
    """A run as the index shows it."""

    def __init__(self, run: listing.Run) -> None:
        self.run, self.title = run, listing.display_name(run.name)
        details = {} if run.record is None else run.record.details
        runtime: str = details.get("runtime", "")
        self.runtime = (read_runtime(run.folder) if runtime == "auto" else "") or runtime.replace("auto", "")
        self.entries: dict[str, str] = details.get("entries", {})
        self.changed: dict[str, str] = details.get("changed", {})
        self.curves: dict[str, list[Point]] = details.get("curves", {})
        self.leading = None if run.record is None else run.record.leading_score
        self.view = None if run.record is None else RunView(run.record, run.folder)
        self.results = {} if self.view is None else {result.name: result for result in self.view.results}
        """Entry -> result."""

    @property
    def spark(self) -> dict[str, Any] | None:
        """Path of the loss of its last training in a box of SPARK units, with its first and last value."""
        owner = "" if self.leading is None else self.leading.owner
        names = [name for name in self.curves if not name.endswith(", held-out") and len(self.curves[name]) > 1]
        if not names:
            return None
        name = max(names, key=lambda curve: (owner in curve.split("-"), "finetune" in curve, curve))
        start, *others = self.curves[name]
        points, (width, height) = [start, *_thin(others, MAX_SPARKS)], SPARK
        (first, last), values = (points[0][0], points[-1][0]), [y for _, y in points]
        low, span = min(values), (max(values) - min(values)) or 1.0
        places = (
            f"{width * (x - first) / (last - first):.0f} {height - height * (y - low) / span:.0f}" for x, y in points
        )
        label = f"loss {values[0]:.3f} to {values[-1]:.3f}"
        return {"path": "M" + "L".join(places), "label": label, "last": values[-1]}

    def score(self, entry: str, metric: str) -> dict[str, Any] | None:
        """Return a score with its interval, the floor of its gate, and the verdict on the entry."""
        if entry not in self.results or metric not in (result := self.results[entry]).result["scores"]:
            return None
        value, interval = result.result["scores"][metric], result.intervals.get(metric)
        return {"value": value, "interval": interval, "floor": result.floors.get(metric), "verdict": result.verdict}


class IndexView:
    """Index of runs, the newest first."""

    def __init__(self, project: Path, runs: Sequence[listing.Run]) -> None:
        self.project, self.sweeps = project, read_sweeps(project)
        self._changes = listing.find_changes(runs)
        self._best = {sweep.best: sweep for sweep in self.sweeps if sweep.best}
        self.grouped = {trial["name"] for sweep in self.sweeps for trial in sweep.trials} - {*self._best}
        self.shown = [IndexedRun(run) for run in runs if run.name not in self.grouped or run.at_work]
        """Runs without the trials of sweeps that have ended and are not the best."""
        self._found = {run.name: run for run in runs}
        self._shared = Counter(both for row in self.shown for both in row.changed.items())
        """Name and value of each changed parameter, with the number of runs that have it."""
        entries = Counter(entry for row in self.shown for entry, result in row.results.items() if result.scores)
        self._columns = [(entry, self._leading(entry)) for entry, _ in entries.most_common(MAX_COLUMNS)]
        """The most frequent entries, each with its leading metric."""
        self.columns = [f"{entry} {metric.replace('_', ' ')}" for entry, metric in self._columns]
        values = {name: {row.changed.get(name) for row in self.shown} for row in self.shown for name in row.changed}
        differ = sorted((name for name in values if len(values[name]) > 1), key=lambda name: (-len(values[name]), name))
        self._differ = [name for name in differ if not name.endswith(UNTYPICAL)][:MAX_PARAMETERS]
        users = {row.run.record.user for row in self.shown if row.run.record is not None and row.run.record.user}
        self.optional = ["task", "device", *(["user"] if users else []), *self._more, *self._differ]
        """Names of the columns that are not shown by default."""

    @property
    def _more(self) -> list[str]:
        """Scores with columns of their own."""
        return self.columns if len(self.columns) > 1 else []

    def _leading(self, entry: str) -> str:
        results = [row.results[entry] for row in self.shown if entry in row.results and row.results[entry].scores]
        return next(name for result in results if (name := report.leading_metric(result.result)))

    @property
    def rows(self) -> Iterator[dict[str, Any]]:
        """Table rows; each lists its rarest parameter values first."""
        for row in self.shown:
            run, record = row.run, row.run.record
            kinds = [f"{name} ({kind})" if name != kind else name for name, kind in row.entries.items()]
            changed = [both for both in row.changed.items() if self._shared[both] < len(self.shown)]
            user = [] if "user" not in self.optional else [(record and record.user) or ""]
            scores = [row.score(*column) for column in self._columns]
            more = [f"{score['value']:.2f}" if score else "" for score in scores] if self._more else []
            yield {
                "run": run,
                "name": row.title,
                "href": listing.page_link(self.project, run),
                "sweep": self._best.get(run.name),
                "score": self._format_score(row),
                "change": self._changes.get(run.name),
                "spark": row.spark,
                "task": ", ".join([(record and record.preset) or "params.yaml", *kinds]),
                "device": row.runtime,
                "optional": [*user, *more, *(row.changed.get(name, "") for name in self._differ)],
                "results": [] if row.view is None else row.view.results,
                "pretraining": [] if row.view is None else row.view.pretraining,
                "changed": sorted(changed, key=lambda both: self._shared[both]),
            }

    def _format_score(self, row: IndexedRun) -> tuple[float, str, str] | None:
        """Return value, text and remark of the score of a run: its leading one, or as a trial its held-out one."""
        if (score := row.leading) is not None:
            text, _, more = listing.format_score(score).removeprefix(f"{score.title} ").partition(" ")
            remark = f"{more} {score.title}" if score.perplexity is None else f"{score.title}, {more}"
            return score.value, text.rstrip(","), remark.strip()
        if (sweep := self._best.get(row.run.name)) is not None:
            best = sweep.scored[-1]
            return sweep.value(best), sweep.format(best), f"held-out {sweep.title}"
        return None

    def trials(self, sweep: SweepView) -> Iterator[dict[str, Any]]:
        """Rows of the trials of a sweep, the best first."""
        unscored = [trial for trial in sweep.trials if trial["score"] is None]
        for trial in (*reversed(sweep.scored), *unscored):
            run = self._found.get(trial["name"])
            seconds = None if run is None else run.seconds
            yield {
                "name": trial["name"],
                "href": "" if run is None else listing.page_link(self.project, run),
                "state": trial["state"],
                "values": [f"{trial['values'][name]:.4g}" for name in sweep.parameters],
                "score": "" if trial["score"] is None else sweep.format(trial),
                "duration": "" if seconds is None else format_duration(seconds),
            }

    @property
    def scores(self) -> Iterator[tuple[str, Plot]]:
        """Plots of scores: dots with whiskers, the oldest run first."""
        shown = self.shown[:MAX_DRAWN]
        for name, (entry, metric) in zip(self.columns, self._columns, strict=True):
            lines, names = [], {}
            scored = [(number, row, score) for number, row in enumerate(shown) if (score := row.score(entry, metric))]
            for position, (number, row, score) in enumerate(reversed(scored)):
                names[float(position)], both = row.title, score["interval"]
                whisker = [(float(position), bound) for bound in both] if both else []
                more = f"\n95% interval {both[0]:.2f} to {both[1]:.2f}" if both else ""
                dot = (float(position), score["value"], f"{row.title}\n{name} {score['value']:.2f}{more}")
                lines.append(PlotLine("", whisker, marks=True, color=number, key=number, dots=[dot]))
            label = f"{name} of each run with its 95% interval"
            yield name, plot_lines(lines, "run", "percent", label, from_zero=False, room=0.5, names=names)

    @property
    def curves(self) -> Iterator[tuple[str, Plot]]:
        """Plots of the most frequent training and held-out losses that several runs have on the same data."""
        groups: dict[tuple[Any, ...], list[tuple[int, IndexedRun]]] = {}
        for number, row in enumerate(self.shown[:MAX_DRAWN]):
            for name in row.curves:
                job = name.removesuffix(", held-out")
                owner = job.removesuffix("-finetune").removeprefix("pretrain-")
                groups.setdefault((name, row.run.describe_data(owner)), []).append((number, row))
        largest = sorted((group for group in groups.items() if len(group[1]) > 1), key=lambda group: -len(group[1]))
        drawn_groups = {name: runs for (name, _), runs in reversed(largest)}  # the largest of each name
        names = sorted(drawn_groups, key=lambda name: (-len(drawn_groups[name]), name))[:MAX_PLOTS]
        drawn = sum(len(drawn_groups[name]) for name in names) or 1
        for name in sorted(names):
            lines = []
            for number, row in drawn_groups[name]:
                points = row.curves[name]
                dots = [
                    (x, y, f"{row.title}\nupdate {x:,.0f}\nloss {y:.4g} nats")
                    for x, y in _thin(points, max(1, MAX_DOTS // drawn))
                ]
                line = _thin(points, max(8, MAX_VERTICES // drawn))
                marks = len(points) == 1  # a point is not a line
                lines.append(PlotLine("", line, marks, number, number, dots))
            yield name, plot_lines(lines, "update", "loss (nats)", f"loss of {name} in each run")


def _thin(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points at equal distances, with the last one."""
    apart = -(-len(points) // most)
    return list(points[::-1][::apart][::-1])
