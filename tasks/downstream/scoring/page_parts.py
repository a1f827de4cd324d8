"""Parts of evaluation pages that all kinds share: bars of slices, confusion matrix, and plots."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, groupby

import numpy as np

from tasks.downstream.scoring.calibration import Calibration
from tasks.downstream.scoring.metrics import Array, Slice
from tasks.downstream.scoring.thresholds import RiskCoverage
from tasks.pages.plots import Plot, PlotLine, plot_lines

TITLES_FIT = 18
"""Maximum characters of the titles of scores next to a bar, which fit on a phone."""
MOST_DOTS = 400
"""Maximum number of examples in a plot."""
MOST_LINES = 8
MOST_IN_CELL, MOST_IN_CELLS, CELL_CHARACTERS = 10, 200, 200
"""Maximum examples of a cell of a confusion matrix, and of all its cells; characters of their texts."""


def group_bars(slices: Sequence[Slice], titles: Mapping[str, str]) -> list[tuple[str, list[str], list[Slice]]]:
    """Return each property with its slices, and those of the metrics in `titles` that all of them have: the first has
    the bars."""
    groups = []
    for by, parts in ((by, list(parts)) for by, parts in groupby(slices, lambda part: part.by)):
        names = [name for name in titles if all(name in part.figures for part in parts)]
        widths = accumulate(len(titles[name]) for name in names)
        fitting = [name for name, width in zip(names, widths, strict=True) if width <= TITLES_FIT]
        groups.append((by, fitting or names[:1], parts))
    return groups


def count_confusions(names: Sequence[str], gold: np.ndarray, predicted: np.ndarray) -> list[tuple[str, list[int]]]:
    """Return the confusion matrix: each class with the number of predictions of each class.

    Args:
        gold, found: class numbers, [N] each; examples with negative ones are left out.
    """
    size, kept = len(names), (gold >= 0) & (predicted >= 0)
    pairs = gold[kept].astype(int) * size + predicted[kept].astype(int)
    return list(zip(names, np.bincount(pairs, minlength=size**2).reshape(size, size).tolist(), strict=True))


def sample_cells(
    classes: Iterable[np.ndarray], describe: Callable[[int], tuple[str, str]]
) -> dict[tuple[int, int], list[tuple[str, str]]]:
    """Return row and column of each cell of a confusion matrix -> its first examples.

    Args:
        classes: the true and the predicted class numbers, see `count_confusions`.
        describe: returns the name and the text of an example by its number.
    """
    gold, predicted = classes
    numbers: dict[tuple[int, int], list[int]] = {}
    for number in np.flatnonzero((gold >= 0) & (predicted >= 0)).tolist():
        members = numbers.setdefault((int(gold[number]), int(predicted[number])), [])
        if len(members) < MOST_IN_CELL:
            members.append(number)
    most = max(1, MOST_IN_CELLS // max(1, len(numbers)))
    return {cell: [_cut(*describe(example)) for example in sample[:most]] for cell, sample in sorted(numbers.items())}


def _cut(name: str, text: str) -> tuple[str, str]:
    return name, text if len(text) <= CELL_CHARACTERS else f"{text[:CELL_CHARACTERS]}…"


def plot_reliability(calibration: Calibration) -> Plot:
    """Plot accuracy over predicted probability, with 95% intervals; the diagonal is perfect calibration."""
    lines = [PlotLine("", [(0.0, 0.0), (1.0, 1.0)], color=7, dots=())]
    drawn = [
        ("as predicted" if calibration.scaled else "", calibration, 0),
        ("with temperature", calibration.scaled, 1),
    ]
    for name, variant, color in drawn:
        for first, part in enumerate(part for part in (variant.bins if variant else ()) if part.count):
            confidence, accuracy = part.confidence or 0.0, part.accuracy or 0.0
            low, high = part.accuracy_low or 0.0, part.accuracy_high or 0.0
            said = f"{name}\n" * bool(name) + f"{part.count:,} answers\nprobability {confidence:.3f}"
            dot = (confidence, accuracy, f"{said}\naccuracy {accuracy:.3f}\n95% interval {low:.3f} to {high:.3f}")
            interval = [(confidence, low), (confidence, high)]
            lines.append(PlotLine("" if first else name, interval, marks=True, color=color, dots=[dot]))
    label = f"reliability diagram, expected calibration error {calibration.error:.3f}"
    return plot_lines(lines, "predicted probability", "accuracy", label)


def plot_risk_coverage(curve: RiskCoverage, threshold: float | None = None) -> Plot:
    """Plot a risk-coverage curve, with a mark at the threshold that is used, if any."""
    dots = [
        (x, y, f"{curve.unit} {curve.describe(limit)}\ncoverage {x:.1%}\nrisk {y:.1%}")
        for x, y, limit in curve.sample()
    ]
    lines = [PlotLine("most confident first", [(x, y) for x, y, _ in dots], dots=dots)]
    if threshold is not None and (chosen := curve.look_up(threshold))[0]:
        lines.append(PlotLine(f"{curve.unit} {curve.describe(threshold)}", [chosen], marks=True))
    across, up = "coverage (share of answers given)", "risk (share of them wrong)"
    return plot_lines(lines, across, up, f"risk-coverage curve, area {curve.area:.3f}")


def plot_thresholds(shares: Mapping[str, tuple[Array, Array]], used: Mapping[str, float]) -> Plot:
    """Plot F1 of accepting items whose probability is above a threshold, with marks at the thresholds that are used.

    Args:
        shares: name -> probability, and 1 (true) or 0, of each item; at most `MOST_LINES`.
        used: name -> its threshold.
    """
    grid, lines = np.linspace(0, 1, 101)[:-1], []
    for number, (name, (probability, truth)) in enumerate(list(shares.items())[:MOST_LINES]):
        points = np.append(grid, used[name])
        both = (probability, probability[truth == 1])
        accepted, hits = (len(scores) - np.searchsorted(np.sort(scores), points, side="right") for scores in both)
        f1 = 100 * 2 * hits / np.maximum(1, accepted + truth.sum())
        lines.append(PlotLine(name, list(zip(grid.tolist(), f1.tolist(), strict=False)), color=number))
        mark = (used[name], float(f1[-1]), f"{name}\nthreshold in use {used[name]:.3f}\nF1 {f1[-1]:.1f}")
        lines.append(PlotLine("", [], marks=True, color=number, dots=[mark]))
    return plot_lines(lines, "threshold (probability)", "F1 (percent)", "F1 by threshold")


def plot_values(names: Sequence[str], gold: Array, predicted: Array) -> tuple[Plot, Plot]:
    """Return plots of predicted over true values, and of their differences, evenly sampled from the examples."""
    chosen = np.unique(np.linspace(0, len(gold) - 1, MOST_DOTS).astype(int)).tolist()

    def plot(values: Array, guide: Array, up: str, label: str) -> Plot:
        hints = (f"example {names[n]}\nlabel {gold[n]:.2f}\npredicted {predicted[n]:.2f}" for n in chosen)
        dots = list(zip(gold[chosen].tolist(), values[chosen].tolist(), hints, strict=True))
        ideal = PlotLine("", list(zip(ends.tolist(), guide.tolist(), strict=True)), color=7, dots=())
        return plot_lines([ideal, PlotLine("", [], marks=True, color=0, dots=dots)], "label", up, label, False)

    ends, error = np.array([gold.min(), gold.max()]), float(np.abs(predicted - gold).mean())
    scatter = plot(predicted, ends, "predicted value", "predicted value by label")
    return scatter, plot(predicted - gold, 0 * ends, "error (predicted - label)", f"errors, mean absolute {error:.3f}")
