"""What the page of all runs says of each: parameters, intervals, floors and curves, read once for as long as they stay.

What was read is kept in runs/index.json beside when the files of the run were written, so that the end of a run reads
its own alone, whatever number of others there is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flows import report, run_params, runs
from flows.pages.curves import read_curve
from flows.run_view import RunView
from ipu_model.files import read_json, write_text
from tasks.project import artifacts
from tasks.project.errors import PodiumError
from tasks.project.params import default_values
from tasks.project.params_command import ABSENT

KEPT = artifacts.RUNS / "index.json"
LAYOUT = 2
"""Of what is kept; another number is read anew."""
MOST_POINTS = 30
"""Of a curve."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Details:
    """What the files of a run say beside its record; empty where they cannot be read."""

    runtime: str = ""
    entries: dict[str, str] = field(default_factory=dict)
    """Entry -> its kind."""
    parameters: dict[str, list[str]] = field(default_factory=dict)
    """Name -> default and value as JSON, of each that is not as the defaults have it."""
    intervals: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Entry -> metric -> low and high."""
    floors: dict[str, dict[str, float]] = field(default_factory=dict)
    """Entry -> metric -> what its gate requires of it."""
    curves: dict[str, list[Point]] = field(default_factory=dict)
    """Plot -> (update, loss)."""


@dataclass(frozen=True)
class Shown:
    """A run, and what there is to be shown of it."""

    run: runs.Run
    details: Details


def every(project: Path, ended: str = "", anew: int | None = None) -> list[Shown]:
    """All runs, the newest first.

    Args:
        ended: the run that has come to its end and holds its lock still.
        anew: so many are read at most that were not read before; of others there is the record alone, this time.
    """
    known, kept, read = _kept(project), {}, 0
    found: list[Shown] = []
    for run in runs.every(project):
        one = replace(run, at_work=run.at_work and run.name != ended)
        stamp, before = _stamp(one), known.get(one.name)
        details = before[1] if before is not None and before[0] == stamp else None
        if details is None and (anew is None or read < anew):
            details, read = _details(project, one), read + 1
        if details is not None and not one.at_work:  # then its scores and curves grow, and no stamp says so
            kept[one.name] = (stamp, details)
        found.append(Shown(one, details or Details()))
    if kept != known:
        values = {name: {"stamp": stamp, **asdict(details)} for name, (stamp, details) in kept.items()}
        write_text(project / KEPT, json.dumps({"layout": LAYOUT, "runs": values}, ensure_ascii=False))
    return found


def _kept(project: Path) -> dict[str, tuple[list[int], Details]]:
    """What was read before; nothing where that cannot be read."""
    try:
        values = read_json(project / KEPT)
        if values["layout"] != LAYOUT:
            return {}
        return {name: (one.pop("stamp"), Details(**one)) for name, one in values["runs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # it is made again
        return {}


def _stamp(run: runs.Run) -> list[int]:
    """When the record and the parameters of a run were written, and their sizes."""
    found = []
    record = report.OWN_RECORD if run.name == runs.PROJECT else artifacts.RUN_REPORT
    for path in (run.folder / record, run.folder / artifacts.PARAMS):
        try:
            said = path.stat()
            found += [said.st_mtime_ns, said.st_size]
        except FileNotFoundError:
            found += [0, 0]
    return found


def _details(project: Path, run: runs.Run) -> Details:
    try:
        params = run_params.params_of(project, run.folder)
        entries = {name: entry["kind"] for name, entry in params["downstream"].items()}
        rows = run_params.against(default_values(), params)
        known = Details(params["device"]["runtime"], entries, {name: _as_json(both) for name, both in rows})
    except (PodiumError, OSError, ValueError, KeyError, TypeError, AttributeError):  # of another revision, or damaged
        known = Details()
    record = run.record or report.RunReport(".")
    results = RunView(record, run.folder, project).results
    return replace(
        known,
        intervals={one.name: {name: list(both) for name, both in one.intervals.items()} for one in results},
        floors={one.name: one.floors for one in results},
        curves=_curves(run.folder / artifacts.PLOTS),
    )


def _as_json(values: Sequence[Any]) -> list[str]:
    return ["" if value is ABSENT else json.dumps(value, ensure_ascii=False) for value in values]


def _curves(folder: Path) -> dict[str, list[Point]]:
    """The loss of each training, and that on its held-out rows, which tells that a table is of a training."""
    found = {}
    for held_out in sorted(folder.glob(artifacts.held_out_plot("*").name)):
        training = held_out.stem.removesuffix(artifacts.held_out_plot("").stem)
        for name, path in ((training, folder / f"{training}.csv"), (f"{training}, held out", held_out)):
            if points := _points(path):
                found[name] = points
    return found


def _points(path: Path) -> list[Point]:
    """Some points of a curve, its ends among them; none where it cannot be read."""
    try:
        points = [(step, float(f"{loss:.5g}")) for step, loss in read_curve(path)]
    except (OSError, ValueError):
        return []
    apart = -(-len(points) // MOST_POINTS) or 1
    return points[:-1:apart] + points[-1:]
