"""Metrics of classes and values, also for weighted examples, as scikit-learn and scipy compute them.

Legend: N examples, R resamples.
"""

import functools
from collections.abc import Callable

import numpy as np

from tasks.downstream.scoring.metrics import Array, Metric

LABEL, PREDICTION = range(2)
"""Columns of the outcomes of classes and values."""


def metric(name: str, *, title: str = "", called: str = "", split: str = "dev") -> Metric:
    """Return one of the metrics in `WEIGHTED`; it is 0 if a constant prediction leaves it undefined.

    Args:
        title: name for users; empty: derived from the name.
        called: key in the metrics file, if it differs.
    """
    called = called or name
    extremes = functools.partial(find_extremes, name)
    right = is_right if name == "accuracy" else None
    correlates = name in ("pearson", "spearman")
    return Metric(called, title or called.replace("_", " "), WEIGHTED[name], split, extremes, right, correlates)


def count_class(outcomes: Array, number: float) -> tuple[Array, Array, Array]:
    """Return 1 or 0 for each example: it is of this class, is predicted as such, and both; [N] each."""
    gold, found = (outcomes == number).astype(np.float64).T
    return gold, found, gold * found


def is_right(outcomes: Array) -> Array:
    """Return 1 for each example whose class or value is predicted, else 0."""
    return (outcomes[:, LABEL] == outcomes[:, PREDICTION]).astype(np.float64)


def find_extremes(metric: str, outcomes: Array, number: float = 1.0) -> tuple[Array, Array]:
    """Return the worst and the best example: for values, the largest one predicted as the smallest and as itself; for
    classes, one of the rarest class (`number` for F1) predicted as another class and as itself."""
    values, counts = np.unique(outcomes[:, LABEL], return_counts=True)
    if metric in ("pearson", "spearman"):
        return np.array([values[-1], values[0]]), np.array([values[-1], values[-1]])
    label = number if metric == "f1" else values[counts.argmin()]
    other = next((one for one in values[np.argsort(-counts)] if one != label), 1.0 - label)
    return np.array([label, other]), np.array([label, label])


def _accuracy(outcomes: Array, weights: Array) -> Array:
    return 100 * (weights @ is_right(outcomes)) / weights.sum(axis=1)


def _counts(outcomes: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Return true positives, false positives, false negatives and true negatives of class 1; [R] each."""
    gold, found, both = count_class(outcomes, 1)
    tp, fp, fn, tn = (weights @ one for one in (both, found - both, gold - both, 1 - gold - found + both))
    return tp, fp, fn, tn


def _f1(outcomes: Array, weights: Array) -> Array:
    tp, fp, fn, _ = _counts(outcomes, weights)
    return 100 * divide(2 * tp, 2 * tp + fp + fn)


def _macro_f1(outcomes: Array, weights: Array) -> Array:
    """Return the mean F1 of classes that occur or are predicted in a resample, as in scikit-learn."""
    total, classes = np.zeros(len(weights)), np.zeros(len(weights))
    for number in np.unique(outcomes[outcomes >= 0]):
        gold, found, both = count_class(outcomes, number)
        below = weights @ (gold + found)
        total += divide(2 * (weights @ both), below)
        classes += below > 0
    return 100 * divide(total, classes)


def _matthews(outcomes: Array, weights: Array) -> Array:
    tp, fp, fn, tn = _counts(outcomes, weights)
    return 100 * divide(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _pearson(outcomes: Array, weights: Array) -> Array:
    columns = [np.broadcast_to(outcomes[:, column], weights.shape) for column in (LABEL, PREDICTION)]
    return 100 * _correlation(columns[0], columns[1], weights)


def _spearman(outcomes: Array, weights: Array) -> Array:
    one, other = (_ranks(outcomes[:, column], weights) for column in (LABEL, PREDICTION))
    return 100 * _correlation(one, other, weights)


def _ranks(values: Array, weights: Array) -> Array:
    """Return the mean rank of each value [resamples, examples], with example n repeated weights[r, n] times."""
    different, place = np.unique(values, return_inverse=True)
    counts = np.zeros((len(different), len(weights)))
    np.add.at(counts, place, weights.T)
    ranks = np.cumsum(counts, axis=0) - (counts - 1) / 2
    return ranks[place].T


def _correlation(one: Array, other: Array, weights: Array) -> Array:
    """Return Pearson's correlation of every resample; 0 if a variable is constant."""
    total = weights.sum(axis=1, keepdims=True)
    varies = (np.ptp(one, axis=1) > 0) & (np.ptp(other, axis=1) > 0)
    one, other = (x - (weights * x).sum(axis=1, keepdims=True) / total for x in (one, other))
    spread = (weights * one * one).sum(axis=1) * (weights * other * other).sum(axis=1)
    return divide((weights * one * other).sum(axis=1), np.sqrt(spread) * varies)


def divide(above: Array, below: Array) -> Array:
    """Return a quotient, 0 where the denominator is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


WEIGHTED: dict[str, Callable[[Array, Array], Array]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews_correlation": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
"""Metric -> function of outcomes and weights."""
