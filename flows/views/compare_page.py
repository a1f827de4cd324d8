"""Comparison of runs: parameters that differ, scores with paired tests, and loss curves; for the terminal and as
reports/compare-A-B.html."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.runs import listing, run_params
from flows.runs.report import PRETRAINING_SCORES, sort_scores
from flows.views.curves import is_training, read_curve
from flows.views.page_links import make_head_links
from flows.views.run_view import format_change, format_pretraining
from ipu_model.core.files import sha256_of
from tasks.downstream.run_comparison import EvaluatedRun, compare_runs, compare_scores, read_run, select_figures
from tasks.pages.plots import COLORS, Plot, PlotLine, plot_lines
from tasks.pages.render import render_html
from tasks.params.entries import find_entry, released_entries
from tasks.params.schema import validate_params
from tasks.params.tables import find_differing, format_table
from tasks.plan.plan_file import read_plan
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

BARS = " ▁▂▃▄▅▆▇█"
COLUMNS = 40
"""Width of a curve on the terminal, in characters."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a run, or one entry of it, or a folder with the scores of a release."""

    label: str
    root: Path
    run: listing.Run | None
    values: dict[str, Any] = field(default_factory=dict)
    """Parameters of the run, with paths as in the project."""
    entry: str = ""


def resolve_sides(project: Path, base: Path, words: Sequence[str]) -> list[Side]:
    """Return the sides that these words name; relative paths start from `base`.

    Raises:
        ParamsError: a word is neither a run nor a folder, or the first is not a run.
    """
    sides = []
    for word in words:
        name, _, entry = word.partition(":")
        if (base / word).is_dir() and name not in {run.name for run in listing.list_all(project)}:
            sides.append(Side(word, base / word, None))
        else:
            [run] = listing.find_runs(project, [name])
            run_params.require_known_params(project, run)
            sides.append(Side(word, run.folder, run, run_params.read_run_params(project, run.folder), entry))
    if sides[0].run is None:
        raise ParamsError(f"{sides[0].label} is not a run. Name a run first; the others are evaluated on its examples")
    return sides


def compare_sides(sides: Sequence[Side]) -> dict[str, Any]:
    """Return the comparison of these runs as plain values.

    Raises:
        ParamsError: they have no entry in common, and none was named.
        InputError: files of an evaluation are damaged.
    """
    runs = [side for side in sides if side.run is not None]
    rows = find_differing([side.values for side in runs])
    return {
        "runs": [side.label for side in sides],
        "parameters": {
            "runs": [side.label for side in runs],
            "rows": [{"name": name, "values": values} for name, values in rows],
        },
        "entries": [_compare_entry(names, sides) for names in _match_entries(runs)],
        "pretraining": _compare_pretraining(runs),
        "notes": _list_notes(runs),
        "curves": _read_curves(runs),
    }


def _match_entries(runs: Sequence[Side]) -> list[list[str]]:
    """Return the entries to compare: for each comparison, one entry of every run."""
    if not all(side.entry or side.values["downstream"] for side in runs):  # a pre-training has no entry
        return []
    named = ((side.entry, released_entries(validate_params(side.values))) for side in runs)
    known = [[entry] if entry else [other.name for other in others] for entry, others in named]
    if all(len(names) == 1 for names in known):
        return [[names[0] for names in known]]
    common = [name for name in known[0] if all(name in names for names in known)]
    if not common:
        raise ParamsError(
            f"{' and '.join(side.label for side in runs)} have no entry in common. Name the entries to compare, "
            f"such as {runs[0].label}:{known[0][0] if known[0] else 'ENTRY'}"
        )
    return [[name] * len(runs) for name in common]


def _compare_entry(names: Sequence[str], sides: Sequence[Side]) -> dict[str, Any]:
    """Return the scores of an entry, and a paired test of each run against the first."""
    left = iter(names)
    runs: list[EvaluatedRun | None] = [
        read_run(find_entry(validate_params(side.values), next(left)), side.root) if side.run is not None else None
        for side in sides
    ]
    pairs: list[dict[str, Any]] = []
    for other, second in list(zip(sides, runs, strict=True))[1:]:
        missing = [
            side.label for side, run in ((sides[0], runs[0]), (other, second)) if run is None and side.run is not None
        ]
        if missing or runs[0] is None:
            comparison = {"why": f"{' and '.join(missing)} has no scores: its evaluation did not run."}
        else:
            comparison = compare_scores(runs[0], other.root) if second is None else compare_runs(runs[0], second)
        pairs.append({"first": sides[0].label, "second": other.label, **comparison})
    scores = [(side.label, run) for side, run in zip(sides, runs, strict=True) if run is not None]
    return {
        "entry": names[0],
        "titles": {name: title for _, run in scores[:1] for name, title in run.task.metrics.titles.items()},
        "scores": {label: select_figures(run.task, run.figures) for label, run in scores},
        "pairs": pairs,
    }


def _compare_pretraining(runs: Sequence[Side]) -> list[dict[str, Any]]:
    """Return the scores of each phase of pre-training that several of these runs evaluated on held-out rows.

    `same_rows` says whether their rows are equal; None: the rows of a run are not on this host. There is no paired
    test, because a training records one figure for all rows.
    """
    by_phase: dict[str, list[tuple[Side, Mapping[str, Any]]]] = {}
    for side in runs:
        record = side.run.record if side.run is not None else None
        for phase in record.pretraining.values() if record is not None else ():
            if phase["scores"]:
                by_phase.setdefault(phase["name"], []).append((side, phase))
    phases = []
    for name, results in by_phase.items():
        if len(results) > 1:
            rows = [_read_held_out_rows(side.root, name, phase["rows"]) for side, phase in results]
            same = None if None in rows else all(content == rows[0] for content in rows)
            scores = {side.label: sort_scores(phase["scores"]) for side, phase in results}
            names = {key for figures in scores.values() for key in figures}
            titles = {key: title for key, title in PRETRAINING_SCORES.items() if key in names}
            changes = {side.label: text for side, phase in results if (text := format_change(phase))}
            values = {"rows": results[0][1]["rows"], "same_rows": same, "titles": titles, "scores": scores}
            phases.append({"phase": name, **values, "changes": changes})
    return phases


def _read_held_out_rows(root: Path, phase: str, rows: int) -> tuple[Any, ...] | None:
    """Return the contents of the held-out rows of a phase and how many were evaluated; None if they are missing."""
    held_out = (root / artifacts.rows_folder(phase) / artifacts.HELD_OUT).glob("*")
    files = sorted(path for path in held_out if path.suffix in (".arrow", ".json"))  # older runs have no documents.npy
    return (rows, [(path.name, sha256_of(path)) for path in files]) if files else None


def _list_notes(runs: Sequence[Side]) -> list[str]:
    """Return what cannot be compared: a run that was only pre-trained has no scores of a fine-tuned one."""
    trained = [side.label for side in runs if not (side.entry or side.values["downstream"])]
    if len(trained) in (0, len(runs)):
        return []
    return [
        f"{run} was only pre-trained and has no downstream scores to compare. Fine-tune it first: podium finetune KIND "
        f"--model {run} --train FILE"
        for run in trained
    ]


def _read_curves(runs: Sequence[Side]) -> list[dict[str, Any]]:
    """Return training and held-out losses, grouped by stage."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for side in runs:
        for stage in read_plan(side.root).values():
            if is_training(stage):
                loss, held_out = (read_curve(side.root / plot) for plot in stage.plots)
                if loss:
                    stages.setdefault(stage.name, []).append({"run": side.label, "loss": loss, "held_out": held_out})
    return [{"stage": stage, "lines": lines} for stage, lines in stages.items()]


def format_comparison(values: dict[str, Any]) -> str:
    """Return a comparison as text for a terminal."""
    labels, rows = values["parameters"]["runs"], values["parameters"]["rows"]
    parts = []
    if rows:
        differing = [(row["name"], row["values"]) for row in rows]
        parts = [f"parameters that differ\n{run_params.format_differences(differing, labels)}"]
    elif len(labels) > 1:
        parts = ["no parameters differ\n"]
    for entry in values["entries"]:
        cells = [
            (run, *(format_interval(figures[name], "value") if name in figures else "-" for name in entry["titles"]))
            for run, figures in entry["scores"].items()
        ]
        parts.append(f"{entry['entry']}\n" + (format_table([("", *entry["titles"].values()), *cells]) if cells else ""))
        parts += [_format_pair(pair, entry["titles"]) for pair in entry["pairs"]]
    parts += map(_format_pretraining, values["pretraining"])
    parts += [f"{note}\n" for note in values["notes"]]
    parts += [_format_curve(curve) for curve in values["curves"]]
    return "\n".join(parts)


def format_interval(interval: dict[str, float], middle: str, sign: str = "") -> str:
    """Return a value with the bounds of its interval."""
    return f"{interval[middle]:{sign}.2f} ({interval['low']:{sign}.2f} to {interval['high']:{sign}.2f})"


def _format_pair(pair: dict[str, Any], titles: dict[str, str]) -> str:
    if "why" in pair:
        return f"{pair['second']} against {pair['first']}: no paired test. {pair['why']}\n"
    ours, theirs = pair["examples"]
    lines = [f"{pair['second']} against {pair['first']}: {format_examples(pair, ours, theirs)}"]
    for name, gain in pair["differences"].items():
        test = f"{'McNemar' if name in pair['mcnemar'] else 'bootstrap'} {format_p_value(gain['p_value'])}"
        lines.append(f"  {titles[name]} {format_interval(gain, 'mean', '+')} points, {gain['verdict']}; {test}")
    return "\n".join(lines) + "\n"


def format_examples(pair: dict[str, Any], ours: int, theirs: int | None) -> str:
    """Return the number of examples that two sides are compared on, and how many each of them has."""
    if pair["common"] == ours == theirs:
        return f"on the same {ours} examples"
    return f"on {pair['common']} common examples (of {ours} and {'?' if theirs is None else theirs})"


def format_p_value(p_value: float) -> str:
    """Return a p-value with two digits, or that it is very small."""
    return f"p = {p_value:.2g}" if p_value >= 0.0001 else "p < 0.0001"


def describe_rows(phase: Mapping[str, Any]) -> str:
    """Return whether the figures of a phase of pre-training can be compared."""
    if phase["same_rows"] is None:
        return "The held-out rows of a run are not on this host, so the runs may have different ones."
    if not phase["same_rows"]:
        return "Not comparable: the runs have different held-out rows (text, vocabulary, masks or number)."
    return f"On the same {phase['rows']:,} held-out rows. No paired test: a training records one figure for all rows."


def _format_pretraining(phase: dict[str, Any]) -> str:
    rows = [("", *phase["titles"].values())]
    for run, scores in phase["scores"].items():
        cells = (format_pretraining(name, scores[name]) if name in scores else "-" for name in phase["titles"])
        rows.append((run, *cells))
    changes = "".join(f"{run}: {text}\n" for run, text in phase["changes"].items())
    return f"pre-training {phase['phase']}. {describe_rows(phase)}\n{format_table(rows)}{changes}"


def _format_curve(curve: dict[str, Any]) -> str:
    """Return curves as rows of bars on one scale, as wide as the longest curve."""
    lines = curve["lines"]
    top = max(value for line in lines for _, value in line["loss"]) or 1.0
    last = max(line["loss"][-1][0] for line in lines)
    width = max(len(line["run"]) for line in lines)
    rows = [f"{curve['stage']}: loss over {last:.0f} updates, 0 to {top:.2f}"]
    for line in lines:
        held = f", held-out {line['held_out'][-1][1]:.3f}" if line["held_out"] else ""
        rows.append(f"  {line['run']:<{width}}  {_draw_bars(line['loss'], last, top)}  {line['loss'][-1][1]:.3f}{held}")
    return "\n".join(rows) + "\n"


def _draw_bars(points: Sequence[tuple[float, float]], last: float, top: float) -> str:
    """Return a loss curve as bars; each column shows the last value measured before its end."""
    cells = []
    for column in range(1, COLUMNS + 1):
        before = [value for step, value in points if step <= column / COLUMNS * last]
        cells.append(BARS[max(1, round(before[-1] / top * (len(BARS) - 1)))] if before else BARS[0])
    return "".join(cells)


def page_links(project: Path, sides: Sequence[Side]) -> dict[str, str]:
    """Return links from the project's reports/ to the pages of these runs; runs without a page are left out."""
    links = {side.label: listing.page_link(project, side.run) for side in sides if side.run is not None}
    return {label: href for label, href in links.items() if href}


def render_comparison(values: dict[str, Any], project: Path, pages: Mapping[str, str]) -> str:
    """Return a comparison (`compare_sides`) as a self-contained page in the project's reports/, with `page_links`."""
    return render_html(
        __file__,
        "compare.html.j2",
        **values,
        colors={run: number % COLORS for number, run in enumerate(values["runs"])},
        links=make_head_links(project / artifacts.REPORTS, project, "runs.md"),
        pages=pages,
        display_name=listing.display_name,
        drawn=[(curve["stage"], _plot_curve(curve, values["runs"])) for curve in values["curves"]],
        format_interval=format_interval,
        format_p_value=format_p_value,
        format_examples=format_examples,
        format_pretraining=format_pretraining,
        describe_rows=describe_rows,
    )


def _plot_curve(curve: dict[str, Any], names: Sequence[str]) -> Plot:
    """Return curves on one scale that starts at zero: training loss as lines, held-out loss as rings."""
    lines = []
    for line in curve["lines"]:
        color = names.index(line["run"])
        name = listing.display_name(line["run"])
        lines.append(PlotLine(name, line["loss"], color=color))
        if line["held_out"]:
            lines.append(PlotLine(f"{name}, held-out", line["held_out"], marks=True, color=color))
    return plot_lines(lines, "update", "loss (nats)", f"loss of {curve['stage']} in each run")
