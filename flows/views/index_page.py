"""reports/index.html: all runs of a project on one page, with their scores and curves in shared plots.

Details that are not in a run's record are read from its files once and cached in its folder. The end of a run
therefore reads only its own files, however many other runs there are.
"""

import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.runs import listing, report, run_params
from flows.views.curves import read_curve
from flows.views.run_view import BADGE_COLORS, UNREADABLE, ResultView, RunView
from ipu_model.files import read_json, write_json, write_text
from ipu_model.units import format_duration
from tasks.pages.plots import COLORS, Plot, PlotLine, plot_lines
from tasks.pages.render import render_html
from tasks.params.schema import default_values
from tasks.params.tables import ABSENT
from tasks.stage import artifacts

CACHE = artifacts.RUNS / "index.json"
"""Cache in the folder of a run: its details, and when the files they came from were written."""
MAX_POINTS = 30
"""Maximum points of a curve."""
MAX_RUNS = 500
"""Maximum runs on the page, the newest; `podium runs` lists all."""
MAX_DRAWN = 200
"""Maximum runs with curves: more lines cannot be told apart, and take a second to draw."""
MAX_COLUMNS, MAX_PLOTS, MAX_COMPARISONS, MAX_PARAMETERS = 4, 8, 20, 4
MAX_VERTICES, MAX_DOTS, MAX_SCORES = 12_000, 1_200, 1_000
"""Maximum vertices and tooltips of all curves together, and dots of all score plots together."""
MAX_VALUE = 100
"""Maximum characters of a parameter's value."""
MAX_BYTES = 950_000
"""Maximum bytes of the page; with very long names it shows fewer runs."""

Point = tuple[float, float]


@dataclass(frozen=True)
class RunDetails:
    """Details from the files of a run that are not in its record; empty if they cannot be read."""

    runtime: str = ""
    entries: dict[str, str] = field(default_factory=dict)
    """Entry -> kind."""
    changed: dict[str, str] = field(default_factory=dict)
    """Name -> value as JSON, for each parameter that differs from its default."""
    curves: dict[str, list[Point]] = field(default_factory=dict)
    """Plot -> (update, loss)."""


@dataclass(frozen=True)
class IndexedRun:
    """A run with its details, as the index shows it."""

    run: listing.Run
    details: RunDetails

    @cached_property
    def results(self) -> dict[str, ResultView]:
        """Entry -> result."""
        if self.run.record is None:
            return {}
        return {one.name: one for one in RunView(self.run.record, self.run.folder).results}

    def score(self, entry: str, metric: str) -> dict[str, Any] | None:
        """Return a score with its interval, the floor of its gate, and the verdict on the entry."""
        if entry not in self.results or metric not in (result := self.results[entry]).result["scores"]:
            return None
        value, interval = result.result["scores"][metric], result.intervals.get(metric)
        return {"value": value, "interval": interval, "floor": result.floors.get(metric), "verdict": result.verdict}


def read_runs(project: Path, ended: str = "", max_new: int | None = None) -> list[IndexedRun]:
    """Return all runs, the newest first.

    Args:
        ended: the run that has ended but still has its lock.
        max_new: maximum number of runs to read that are not cached; the others have only their record.
    """
    found: list[IndexedRun] = []
    for run in listing.list_all(project):
        one = replace(run, at_work=run.at_work and run.name != ended)
        record = report.OWN_RECORD if one.name == listing.PROJECT else artifacts.RUN_REPORT
        stamp = [_stamp(one.folder / path) for path in (record, artifacts.PARAMS)]
        details = _read_cache(one.folder / CACHE, stamp)
        if details is None and max_new != 0:
            details, max_new = _read_details(project, one.folder), None if max_new is None else max_new - 1
            if one.folder.is_dir() and not one.at_work:  # the curves of a running run grow without a new stamp
                write_json(one.folder / CACHE, {"stamp": stamp, **asdict(details)})
        found.append(IndexedRun(one, details or RunDetails()))
    return found


def _stamp(path: Path) -> list[int]:
    """Return the modification time and the size of a file; empty if it does not exist."""
    return [path.stat().st_mtime_ns, path.stat().st_size] if path.is_file() else []


def _read_cache(path: Path, stamp: list[list[int]]) -> RunDetails | None:
    """Return cached details; None if they are of other files, or cannot be read."""
    try:
        cached = read_json(path)
        return RunDetails(**cached) if cached.pop("stamp") == stamp else None
    except UNREADABLE:  # it is written again
        return None


def _read_details(project: Path, folder: Path) -> RunDetails:
    curves = _read_curves(folder / artifacts.PLOTS)
    try:
        params = run_params.read_run_params(project, folder)
        entries = {name: entry["kind"] for name, entry in params["downstream"].items()}
        rows = run_params.diff_params(default_values(), params)
        changed = {name: json.dumps(value, ensure_ascii=False) for name, (_, value) in rows if value is not ABSENT}
        return RunDetails(params["device"]["runtime"], entries, changed, curves)
    except UNREADABLE:
        return RunDetails(curves=curves)


def _read_curves(folder: Path) -> dict[str, list[Point]]:
    """Return training and held-out losses; the held-out table identifies a training."""
    found = {}
    for held_out in sorted(folder.glob(artifacts.held_out_plot("*").name)):
        training = held_out.stem.removesuffix(artifacts.held_out_plot("").stem)
        for name, path in ((training, folder / f"{training}.csv"), (f"{training}, held-out", held_out)):
            if points := _read_points(path):
                found[name] = points
    return found


def _read_points(path: Path) -> list[Point]:
    """Return at most MAX_POINTS points of a curve, with its ends; empty if it cannot be read."""
    try:
        points = [(step, float(f"{loss:.5g}")) for step, loss in read_curve(path)]
    except (OSError, ValueError):
        return []
    apart = -(-len(points) // MAX_POINTS) or 1
    return points[:-1:apart] + points[-1:]


def write_index(project: Path, ended: str = "", max_new: int | None = None) -> None:
    """Write the page.

    Args:
        ended, max_new: see `read_runs`.
    """
    write_text(project / artifacts.INDEX_PAGE, render_index(project, read_runs(project, ended, max_new)))


def render_index(project: Path, found: Sequence[IndexedRun]) -> str:
    """Return the page of these runs, the newest first."""
    most = MAX_RUNS
    while (size := len((html := _render(project, found, most)).encode())) > MAX_BYTES and most > 1:
        most = int(most * min(0.9, MAX_BYTES / size))
    return html


def _render(project: Path, found: Sequence[IndexedRun], most: int) -> str:
    comparisons = sorted((project / artifacts.REPORTS).glob("compare-*.html"), key=lambda path: -path.stat().st_mtime)
    return render_html(
        __file__,
        "index.html.j2",
        view=IndexView(project, found[:most]),
        left_out=len(found[most:]),
        statuses=Counter(one.run.status for one in found).most_common(),
        kinds=BADGE_COLORS,
        drawn=MAX_DRAWN,
        most_parameters=MAX_PARAMETERS,
        colors=COLORS,
        display_name=listing.display_name,
        quote=shlex.quote,
        duration=format_duration,
        minute=lambda seconds: time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)),
        comparisons=[(path.stem.removeprefix("compare-"), quote(path.name)) for path in comparisons[:MAX_COMPARISONS]],
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
    )


class IndexView:
    """Index of runs, the newest first."""

    def __init__(self, project: Path, shown: Sequence[IndexedRun]) -> None:
        self.project, self.shown = project, shown
        self._shared = Counter(both for one in shown for both in one.details.changed.items())
        """Name and value of each changed parameter, with the number of runs that have it."""
        entries = Counter(entry for one in shown for entry, result in one.results.items() if result.scores)
        self._columns = [(entry, self._leading(entry)) for entry, _ in entries.most_common(MAX_COLUMNS)]
        """The most frequent entries, each with the first score that its gate checks."""
        self.columns = [f"{entry} {metric.replace('_', ' ')}" for entry, metric in self._columns]
        self.dotted = MAX_SCORES // max(1, len(self._columns))
        """Number of runs whose scores are drawn."""

    def _leading(self, entry: str) -> str:
        results = [one.results[entry] for one in self.shown if entry in one.results and one.results[entry].scores]
        return next(iter(next((one.floors for one in results if one.floors), results[0].result["scores"])))

    @property
    def rows(self) -> Iterator[dict[str, Any]]:
        """Table rows; each lists its rarest parameter values first."""
        for one in self.shown:
            run, details, record = one.run, one.details, one.run.record
            ended = record is not None and record.ended is not None and record.began is not None
            kinds = [f"{name} ({kind})" if name != kind else name for name, kind in details.entries.items()]
            own = [both for both in details.changed.items() if self._shared[both] < len(self.shown)]
            yield {
                "run": run,
                "href": listing.page_link(self.project, run),
                "seconds": run.last - run.began if ended else None,
                "what": [(record and record.preset) or "params.yaml", *kinds, details.runtime or "unreadable"],
                "scores": [one.score(entry, metric) for entry, metric in self._columns],
                "changed": [(name, _cut(value)) for name, value in sorted(own, key=lambda both: self._shared[both])],
                "published": [receipt["where"] for result in one.results.values() if (receipt := result.published)],
            }

    @property
    def scores(self) -> Iterator[tuple[str, Plot]]:
        """Plots of scores: dots with whiskers, the oldest run first."""
        shown = self.shown[: self.dotted]
        for name, (entry, metric) in zip(self.columns, self._columns, strict=True):
            lines = []
            for number, one in enumerate(shown):
                if (score := one.score(entry, metric)) is not None:
                    place, both = float(len(shown) - number), score["interval"]
                    whisker = [(place, bound) for bound in both] if both else []
                    more = f"\n95% interval {both[0]:.2f} to {both[1]:.2f}" if both else ""
                    title = listing.display_name(one.run.name)
                    dot = (place, score["value"], f"{title}\n{name} {score['value']:.2f}{more}")
                    lines.append(PlotLine("", whisker, marks=True, color=number, key=number, dots=[dot]))
            label = f"{name} of each run with its 95% interval"
            yield name, plot_lines(lines, "run, oldest first", "percent", label, from_zero=False, room=0.5)

    @property
    def curves(self) -> Iterator[tuple[str, Plot]]:
        """Plots of the most frequent training and held-out losses, ordered by name."""
        shown = self.shown[:MAX_DRAWN]
        counts = Counter(name for one in shown for name in one.details.curves)
        names = [name for name, _ in counts.most_common(MAX_PLOTS)]
        drawn = sum(counts[name] for name in names) or 1
        for name in sorted(names):
            lines = []
            for number, one in enumerate(shown):
                if points := one.details.curves.get(name):
                    dots = [
                        (x, y, f"{listing.display_name(one.run.name)}\nupdate {x:,.0f}\nloss {y:.4g} nats")
                        for x, y in _thin(points, max(1, MAX_DOTS // drawn))
                    ]
                    line = _thin(points, max(8, MAX_VERTICES // drawn))
                    marks = len(points) == 1  # a point is not a line
                    lines.append(PlotLine("", line, marks, number, number, dots))
            yield name, plot_lines(lines, "update", "loss (nats)", f"loss of {name} in each run")


def _cut(value: str) -> str:
    return value if len(value) <= MAX_VALUE else f"{value[: MAX_VALUE - 1]}…"


def _thin(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points at equal distances, with the last one."""
    apart = -(-len(points) // most)
    return list(points[::-1][::apart][::-1])
