"""reports/index.html: all runs of a project on one page, with their scores and curves over each other."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows import report, runs
from flows.pages import index_facts
from flows.pages.index_facts import Shown
from ipu_model.files import write_text
from ipu_model.units import format_duration
from tasks.pages.plots import COLORS, Plot, Trace, overlay_plot
from tasks.pages.render import html_page
from tasks.project import artifacts

MOST_RUNS = 500
"""On the page: the newest; `podium runs` lists all."""
MOST_DRAWN = 200
"""Of these the curves of the newest: more lines over each other say nothing, and take a second to draw."""
MOST_COLUMNS, MOST_PLOTS, MOST_COMPARISONS, MOST_STATED = 4, 8, 20, 4
MOST_PLACES, MOST_DOTS, MOST_SCORES = 12_000, 1_200, 1_000
"""Of all curves together: corners that are drawn, and values that can be looked at; and of all plots of scores."""
LONGEST_VALUE = 100
"""Characters of a parameter; what is longer is cut."""
LARGEST = 950_000
"""Bytes of the page: with names so long that it would have more, it shows fewer runs."""
NONE = "–"
KINDS = {"finished": "good", "published": "good", "rejected": "bad", "failed": "bad", runs.NEVER: "", runs.RUNNING: ""}
"""Status -> colour of its badge; of others that of a warning."""


def write(project: Path, ended: str = "", anew: int | None = None) -> None:
    """Write the page.

    Args:
        ended, anew: as of `index_facts.every`.
    """
    write_text(project / artifacts.INDEX_PAGE, page(project, index_facts.every(project, ended, anew)))


def page(project: Path, found: Sequence[Shown]) -> str:
    """Return the page of these runs, the newest first."""
    most = MOST_RUNS
    while (size := len((html := _draw(project, found, most)).encode())) > LARGEST and most > 1:
        most = int(most * min(0.9, LARGEST / size))
    return html


def _draw(project: Path, found: Sequence[Shown], most: int) -> str:
    comparisons = sorted((project / artifacts.REPORTS).glob("compare-*.html"), key=lambda path: -path.stat().st_mtime)
    return html_page(
        __file__,
        "index.html.j2",
        view=IndexView(project, found[:most]),
        left_out=len(found[most:]),
        statuses=Counter(one.run.status for one in found).most_common(),
        kinds=KINDS,
        drawn=MOST_DRAWN,
        stated=MOST_STATED,
        comparisons=[(path.stem.removeprefix("compare-"), quote(path.name)) for path in comparisons[:MOST_COMPARISONS]],
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
    )


class IndexView:
    """Runs next to each other, the newest first."""

    def __init__(self, project: Path, shown: Sequence[Shown]) -> None:
        self.project, self.shown = project, shown
        names = sorted({name for one in shown for name in one.details.parameters})
        self.varied = [name for name in names if len({_value(one, name) for one in shown} - {NONE}) > 1]
        """The parameters that not all of these runs have alike, among those that have them at all."""
        self._shared = Counter((name, both[1]) for one in shown for name, both in one.details.parameters.items())
        entries = Counter(entry for one in shown for entry, scores in one.run.scores.items() if scores)
        self._columns = [(entry, self._leading(entry)) for entry, _ in entries.most_common(MOST_COLUMNS)]
        """The entries that most runs have, each with the score that its gate asks for first."""
        self.columns = [f"{entry} {metric.replace('_', ' ')}" for entry, metric in self._columns]
        self.dotted = MOST_SCORES // max(1, len(self._columns))
        """Of how many runs the scores are drawn."""

    def _leading(self, entry: str) -> str:
        required = next((floors for one in self.shown if (floors := one.details.floors.get(entry))), None)
        return next(iter(required or next(scores for one in self.shown if (scores := one.run.scores.get(entry)))))

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Name and default of each that varies."""
        known = {name: both[0] for one in self.shown for name, both in one.details.parameters.items()}
        return [(name, _cut(known[name])) for name in self.varied]

    @property
    def rows(self) -> Iterator[dict[str, Any]]:
        """What the table says of each run; of its parameters first those that it shares with the fewest others."""
        for number, one in enumerate(self.shown):
            run, details, record = one.run, one.details, one.run.record
            seconds = None if record is None or record.ended is None or record.began is None else run.last - run.began
            kinds = [f"{name} ({kind})" if name != kind else name for name, kind in details.entries.items()]
            own = [(name, details.parameters[name][1]) for name in self.varied if name in details.parameters]
            yield {
                "number": number,
                "name": runs.called(run.name),
                "word": shlex.quote(run.name),
                "href": runs.href(self.project, run),
                "color": number % COLORS,
                "status": run.status,
                "kind": KINDS.get(run.status, "warn"),
                "began": time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began)),
                "began_s": round(run.began),
                "seconds": seconds,
                "took": NONE if seconds is None else format_duration(seconds),
                "what": ", ".join(
                    [(record and record.preset) or "params.yaml", *kinds, details.runtime or "not readable"]
                ),
                "scores": [_score(one, entry, metric) for entry, metric in self._columns],
                "stated": [(name, _cut(value)) for name, value in sorted(own, key=lambda both: self._shared[both])],
                "values": "\n".join(
                    f"{place} {_cut(value)}" for place, name in enumerate(self.varied) if (value := _value(one, name))
                ),
                "published": _published(record),
            }

    @property
    def scores(self) -> Iterator[tuple[str, Plot]]:
        """A plot for each score: dots with whiskers, the oldest run first."""
        shown = self.shown[: self.dotted]
        for name, (entry, metric) in zip(self.columns, self._columns, strict=True):
            traces = []
            for number, one in enumerate(shown):
                if (score := _score(one, entry, metric)) is not None:
                    place, both = float(len(shown) - number), score["interval"]
                    whisker = [(place, bound) for bound in both] if both else []
                    more = f"\n95% interval {both[0]:.2f} to {both[1]:.2f}" if both else ""
                    dot = (place, score["value"], f"{runs.called(one.run.name)}\n{name} {score['value']:.2f}{more}")
                    traces.append(Trace(number, number, whisker, [dot], marks=True))
            label = f"{name} of each run with its 95% interval"
            yield name, overlay_plot(traces, "run, the oldest first", "percent", label, from_zero=False, room=0.5)

    @property
    def curves(self) -> Iterator[tuple[str, Plot]]:
        """A plot for each training and each table of held-out losses, those that most runs have, ordered by name."""
        shown = self.shown[:MOST_DRAWN]
        counts = Counter(name for one in shown for name in one.details.curves)
        names = [name for name, _ in counts.most_common(MOST_PLOTS)]
        drawn = sum(counts[name] for name in names) or 1
        for name in sorted(names):
            traces = []
            for number, one in enumerate(shown):
                if points := one.details.curves.get(name):
                    told = [
                        (x, y, f"{runs.called(one.run.name)}\nupdate {x:,.0f}\nloss {y:.4g} nats")
                        for x, y in _some(points, max(1, MOST_DOTS // drawn))
                    ]
                    line = _some(points, max(8, MOST_PLACES // drawn))
                    traces.append(Trace(number, number, line, told, marks=len(points) == 1))  # which is no line
            yield name, overlay_plot(traces, "update", "loss (nats)", f"loss of {name} in each run")


def _value(one: Shown, name: str) -> str:
    """A parameter of a run as JSON; NONE where it has no such entry, or its parameters cannot be read."""
    if (stated := one.details.parameters.get(name)) is not None:
        return stated[1]
    words = name.split(".")
    there = one.details.entries if words[0] == "downstream" else [""]
    if not one.details.runtime or (words[0] == "downstream" and words[1] not in there):
        return NONE
    return ""


def _cut(value: str) -> str:
    return value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 1]}…"


def _score(one: Shown, entry: str, metric: str) -> dict[str, Any] | None:
    """A score with its interval, what its gate requires of it, and the verdict on the entry."""
    value = one.run.scores.get(entry, {}).get(metric)
    if value is None or one.run.record is None:
        return None
    decision = next((r["decision"] for r in one.run.record.results.values() if r["name"] == entry), None)
    return {
        "value": value,
        "interval": one.details.intervals.get(entry, {}).get(metric),
        "floor": one.details.floors.get(entry, {}).get(metric),
        "accepted": None if decision is None else decision["accepted"],
    }


def _published(record: report.RunReport | None) -> str:
    receipts = [one["published"] for one in (record.results.values() if record else ()) if one["published"]]
    return ", ".join(report.where_published(receipt) for receipt in receipts)


def _some(points: Sequence[index_facts.Point], most: int) -> list[index_facts.Point]:
    """At most so many, evenly apart, the last among them."""
    apart = -(-len(points) // most)
    return list(points[::-1][::apart][::-1])
