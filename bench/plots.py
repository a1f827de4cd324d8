"""Plots of the results: rates of every case, and cost per real token by length and by corpus size."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.results import Measurement, Results
from bench.statistics import Summary, summarise
from bench.targets import OURS

PANELS = (
    ("pretrain-tiny", "Pre-training, 2 layers of 128"),
    ("pretrain-base", "Pre-training, 12 layers of 768"),
    ("squad-tiny", "SQuAD, 2 layers of 128"),
    ("predict-tiny", "SQuAD prediction, 2 layers of 128"),
    ("prepare-squad", "Questions to features"),
    ("lamb-base", "LAMB step, 12 layers of 768"),
)
OURS_COLOUR, THEIRS_COLOUR = "#1b6ca8", "#b9b9b9"
LINES = {OURS: ("#1b6ca8", "o"), "hf fp32": ("#c0622d", "s"), "hf bf16 malloc": ("#6b7f3a", "^")}
PER_TOKEN = "CPU microseconds per real token, 1 thread"
PANEL_INCHES = (5.2, 2.7)


def write_plots(results: Results, folder: Path) -> list[str]:
    """Write the plots of measured cases as SVG and PNG; return their names."""
    plots = {
        "rates": plot_rates(results),
        "cost-by-length": plot_by_length(results),
        "cost-by-corpus": plot_by_corpus(results),
    }
    for name, figure in plots.items():
        if figure is not None:
            for ending in ("svg", "png"):
                figure.savefig(folder / f"{name}.{ending}", dpi=140, bbox_inches="tight")
    return [name for name, figure in plots.items() if figure is not None]


def plot_rates(results: Results) -> Figure | None:
    """Plot one panel per case: median units per CPU second with one thread, with the range of the rounds."""
    panels = [(title, select_case(results, case)) for case, title in PANELS]
    panels = [(title, found) for title, found in panels if found]
    if not panels:
        return None
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(PANEL_INCHES[0] * min(2, len(panels)), PANEL_INCHES[1] * rows), layout="constrained")
    axes = figure.subplots(rows, min(2, len(panels)), squeeze=False).flatten()
    for axis, (title, found) in zip(axes, panels, strict=False):
        _bars(axis, title, found)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return figure


def select_case(results: Results, case: str) -> list[Measurement]:
    """Return the measurements of a case with one thread, in the order of its variants."""
    return [one for one in results.measured if one.case == case and one.threads == 1 and one.rounds]


def _bars(axis: Axes, title: str, found: list[Measurement]) -> None:
    names = [one.variant for one in found]
    summaries = [summarise(one.cpu_rates) for one in found]
    medians = [s.median for s in summaries]
    spread = [[s.median - s.low for s in summaries], [s.high - s.median for s in summaries]]
    colours = [OURS_COLOUR if name.startswith(OURS) else THEIRS_COLOUR for name in names]
    axis.barh(names, medians, xerr=spread, color=colours, height=0.65, error_kw={"lw": 1, "ecolor": "#444444"})
    for index, summary in enumerate(summaries):
        axis.annotate(
            f"{summary.median:,.0f}" if summary.median >= 100 else f"{summary.median:.2g}",
            (summary.high, index),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.invert_yaxis()
    axis.set_xlim(0, max(s.high for s in summaries) * 1.18)
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(f"{found[0].unit} per CPU second, 1 thread", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:g}")


def plot_by_length(results: Results) -> Figure | None:
    """Plot the cost of training per real token by row length."""
    lines: dict[str, list[tuple[float, Summary]]] = {}
    for one in results.measured:
        if one.case.startswith("length-") and one.rounds:
            length = float(one.case.removeprefix("length-"))
            lines.setdefault(one.variant, []).append((length, summarise_cost(one)))
    if not lines:
        return None
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axis = figure.subplots()
    for name, points in lines.items():
        colour, marker = LINES.get(name, ("#777777", "x"))
        _line(axis, name, points, colour, marker)
    axis.set_xticks(sorted({length for points in lines.values() for length, _ in points}))
    _finish(axis, "tokens per row", PER_TOKEN)
    axis.set_title("Pre-training, 2 layers of 128, 4,096 tokens per update", fontsize=10, loc="left")
    axis.legend(fontsize=8, frameon=False, loc="upper left", ncols=len(lines))
    return figure


def plot_by_corpus(results: Results) -> Figure | None:
    """Plot the cost of making rows and of training on them by corpus size."""
    cases = (("corpus-rows", "Making pre-training rows"), ("corpus-training", "Pre-training, 2 layers of 128"))
    found = [(title, select_case(results, case)) for case, title in cases]
    found = [(title, measured) for title, measured in found if measured]
    if not found:
        return None
    figure = Figure(figsize=(4.6 * len(found), 3.4), layout="constrained")
    for axis, (title, measured) in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        points = [(float(one.variant.rpartition(" ")[2]), summarise_cost(one)) for one in measured]
        _line(axis, OURS, points, OURS_COLOUR, "o")
        axis.set_xscale("log", base=2)
        axis.set_xticks([size for size, _ in points], labels=[f"{size:g}" for size, _ in points])
        _finish(axis, "corpus size (1: the input text; above: repeated)", PER_TOKEN)
        axis.set_title(title, fontsize=10, loc="left")
    return figure


def summarise_cost(one: Measurement) -> Summary:
    """Return the CPU microseconds per unit."""
    return summarise([1e6 / rate for rate in one.cpu_rates])


def _line(axis: Axes, name: str, points: list[tuple[float, Summary]], colour: str, marker: str) -> None:
    points = sorted(points, key=lambda point: point[0])
    medians = [s.median for _, s in points]
    spread = [[s.median - s.low for _, s in points], [s.high - s.median for _, s in points]]
    sizes = [x for x, _ in points]
    axis.errorbar(sizes, medians, yerr=spread, color=colour, marker=marker, label=name, capsize=2, lw=1.5)


def _finish(axis: Axes, x: str, y: str) -> None:
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    axis.set_ylim(0, axis.get_ylim()[1] * 1.12)  # room for the legend
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="#e5e5e5", lw=0.8)
    axis.spines[["top", "right"]].set_visible(False)
