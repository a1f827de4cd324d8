"""Decision thresholds chosen on held-out examples, their record, and the risk-coverage curve of answers.

Legend: M items (an example, or a label of an example), E examples, R resamples.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.core.files import read_json, sha256_of
from tasks.downstream.scoring.metrics import Array, draw_counts
from tasks.downstream.scoring.significance import RESAMPLES
from tasks.stage import artifacts
from tasks.stage.errors import InputError

WEIGHTS, SETTINGS = "model.safetensors", "podium.json"
SHOWN_COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
_CELLS = 4_000_000
"""Memory limit: 32 MB for each column of a block of resamples."""


@dataclass(frozen=True)
class ChosenThreshold:
    """Threshold of a decision."""

    value: float
    low: float | None = None
    """95% bootstrap interval over the examples that selected it; None if it was set."""
    high: float | None = None
    examples: int = 0
    """Number of examples that selected it."""

    def record(self, key: str, record: str = "example") -> dict[str, float | int]:
        """Return plain values for the metrics file, under keys that begin with `key`."""
        figures = {key: self.value, f"{key}_lower": self.low, f"{key}_upper": self.high}
        return {name: x for name, x in {**figures, f"{key}_{record}s": self.examples or None}.items() if x is not None}


def choose_threshold(
    keys: Array,
    columns: Sequence[Array],
    score: Callable[..., Array],
    to_thresholds: Callable[[Array], Array],
    owners: np.ndarray | None = None,
    resamples: int = RESAMPLES,
) -> ChosenThreshold:
    """Choose how many items to accept, in ascending order of their keys, for the best score; equal keys stay together.

    Args:
        keys: [M].
        columns: values [M] to sum over the accepted items.
        score: returns the score [R, cuts] from these sums, [R, cuts] each; the first cut accepts nothing.
        to_thresholds: returns the threshold of each cut, [cuts], from the distinct keys in ascending order.
        owners: [M] example of each item; None: item n is example n.

    Returns:
        The threshold that accepts the fewest items of equally good ones, with the interval over bootstrap resamples of
        the examples.
    """
    order = np.argsort(keys, kind="stable")
    ascending = np.asarray(keys, np.float64)[order]
    ends = np.flatnonzero(np.append(np.diff(ascending) > 0, True))
    rows = order if owners is None else owners[order]

    def best(weights: Array) -> np.ndarray:
        sums = [np.cumsum(weights[:, rows] * column[order], axis=1)[:, ends] for column in columns]
        return np.argmax(score(*(np.pad(total, ((0, 0), (1, 0))) for total in sums)), axis=1)

    examples, step = int(rows.max()) + 1, max(1, _CELLS // len(order))
    drawn = [
        best(block[first : first + step])
        for block in draw_counts(examples, resamples, np.random.default_rng(0))
        for first in range(0, len(block), step)
    ]
    places = to_thresholds(ascending[ends])
    low, high = (float(x) for x in np.quantile(places[np.concatenate(drawn)], (0.025, 0.975)))
    return ChosenThreshold(float(places[best(np.ones((1, examples)))[0]]), low, high, examples)


def score_f1(hits: Array, accepted: Array) -> Array:
    """Return F1 of accepting items, from the weights of true and of all accepted items, [R, cuts]; see
    `choose_threshold`."""
    return 2 * hits / np.maximum(accepted + hits[:, -1:], np.finfo(np.float64).tiny)


def score_both_classes(hits: Array, accepted: Array) -> Array:
    """Return the mean F1 of the accepted class and of the other, like `score_f1`."""
    left = accepted[:, -1:] - accepted
    right = left - (hits[:, -1:] - hits)  # not accepted, and not true
    others = accepted[:, -1:] - hits[:, -1:]
    total: Array = score_f1(hits, accepted) + 2 * right / np.maximum(left + others, np.finfo(np.float64).tiny)
    return total / 2


def choose_probability(
    probabilities: Array, truth: Array, score: Callable[..., Array] = score_f1, owners: np.ndarray | None = None
) -> ChosenThreshold:
    """Choose the probability above which an item is accepted: halfway between two of the items.

    Args:
        probabilities, truth: [M]; 1 is true, 0 is not. Without a true item, the threshold is 0.5.
        owners: see `choose_threshold`.
    """
    if not truth.any():
        return ChosenThreshold(0.5)

    def place_between(negatives: Array) -> Array:
        bounds = np.concatenate([[1.0], -negatives, [0.0]])
        return ((bounds[:-1] + bounds[1:]) / 2).round(6)

    return choose_threshold(
        -probabilities, [truth, np.ones(len(truth))], score, place_between, owners, resamples=RESAMPLES // 10
    )


@dataclass(frozen=True)
class RiskCoverage:
    """Risk-coverage curve: share of wrong answers by share of answered examples, most confident first."""

    points: tuple[tuple[float, float, float], ...]
    """Coverage (0 to 1, ascending), risk (0 to 1), and the threshold with that coverage."""
    doubt: str = ""
    """Name of the threshold, the largest doubt with an answer; empty: it is minus the probability of the answer."""

    @property
    def unit(self) -> str:
        """Name of the threshold for users."""
        return f"{self.doubt} up to" if self.doubt else "probability from"

    def describe(self, threshold: float) -> str:
        """Return the value of a threshold for users."""
        return f"{threshold:.2f}" if self.doubt else f"{-threshold:.3f}"

    def steps(self) -> list[tuple[float, float, str]]:
        """Return coverage, risk and threshold of some shares of the examples, the largest first."""
        points = [self.points[math.ceil(share * len(self.points)) - 1] for share in SHOWN_COVERAGES]
        return [(coverage, risk, self.describe(limit)) for coverage, risk, limit in dict.fromkeys(points)]

    @property
    def area(self) -> float:
        """Area under the curve, 0 to 1: the mean risk over all coverages (Geifman and El-Yaniv 2017)."""
        return sum(risk for _, risk, _ in self.points) / len(self.points)

    def sample(self, most: int = 200) -> list[tuple[float, float, float]]:
        """Return about `most` of the points, including the last."""
        step = max(1, len(self.points) // most)
        return list(self.points[::-step][::-1])

    def look_up(self, threshold: float) -> tuple[float, float]:
        """Return coverage and risk of a threshold; no risk if nothing is answered."""
        below = [point for point in self.points if point[2] <= threshold]
        return below[-1][:2] if below else (0.0, 0.0)


def risk_coverage(odds: Sequence[float] | Array, right: Sequence[float] | Array, doubt: str = "") -> RiskCoverage:
    """Return the curve over all examples.

    Args:
        odds: doubt in each answer; the least doubtful answers come first.
        right: 1.0 if the answer is correct, else 0.0.
        doubt: name of `odds`; empty: they are minus the probabilities of the answers.
    """
    order = np.argsort(odds, kind="stable")
    answered = np.arange(1, len(order) + 1)
    wrong = np.cumsum(1 - np.asarray(right, np.float64)[order]) / answered
    columns = (answered / len(order), wrong, np.asarray(odds, np.float64)[order])
    return RiskCoverage(tuple(zip(*(column.tolist() for column in columns), strict=True)), doubt)


def read_recorded(folder: Path) -> Mapping[str, object]:
    """Return the settings that were recorded with a model, none if there are none.

    A release records them in podium.json, a checkout in metrics/NAME.json for models/NAME if its weights are the same;
    podium.json of its model has the origin of the weights.

    Raises:
        InputError: the file is damaged.
    """
    resolved = folder.resolve()
    for path in (folder / SETTINGS, resolved.parent.parent / artifacts.metrics_file(resolved.name)):
        try:
            values = dict(read_json(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (ValueError, TypeError):
            raise InputError(f"{path} is not a JSON object. Create or download it again") from None
        if "head" not in values if path.name == SETTINGS else _is_about(values, folder / WEIGHTS):
            return values
    return {}


def _is_about(metrics: Mapping[str, Any], weights: Path) -> bool:
    files = metrics.get("files", [])
    hashes = [file.get("sha256") for file in files if Path(str(file.get("path"))).name == weights.name]
    return weights.is_file() and hashes == [sha256_of(weights)]
