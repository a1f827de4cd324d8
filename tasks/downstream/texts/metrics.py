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
    title = title or called.replace("_", " ")
    return Metric(called, title, WEIGHTED[name], split, extremes, right, CORRELATIONS.get(name))


def count_class(outcomes: Array, number: float) -> tuple[Array, Array, Array]:
    """Return 1 or 0 for each example: it is of this class, is predicted as such, and both; [N] each."""
    gold, found = (outcomes == number).astype(np.float64).T
    return gold, found, gold * found


def is_right(outcomes: Array) -> Array:
    """Return 1 for each example whose class or value is predicted, else 0."""
    return (outcomes[:, LABEL] == outcomes[:, PREDICTION]).astype(np.float64)


def find_extremes(metric: str, outcomes: Array, number: float = 1.0) -> tuple[Array, Array]:
    """Return the worst and the best example: for values, the largest one with the smallest and with the largest
    prediction; for classes, one of the rarest class (`number` for F1) predicted as another class and as itself."""
    if metric in CORRELATIONS:
        value, most = outcomes.max(axis=0)
        least = outcomes[:, PREDICTION].min()
        return np.array([value, least - (least == most)]), np.array([value, most])
    labels = outcomes[:, LABEL]
    values, counts = np.unique(labels, return_counts=True)
    if metric == "matthews_correlation":  # either class may be absent
        values, counts = np.arange(2.0), np.bincount(labels == 1, minlength=2)
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


def _pearson(outcomes: Array, weights: Array) -> tuple[Array, Array]:
    value, prediction = (np.broadcast_to(one, weights.shape) for one in outcomes.T)
    return _correlate(value, prediction, weights)


def _spearman(outcomes: Array, weights: Array) -> tuple[Array, Array]:
    value, prediction = (_ranks(one, weights) for one in outcomes.T)
    return _correlate(value, prediction, weights)


def _ranks(values: Array, weights: Array) -> Array:
    """Return the mean rank of each value [resamples, examples], with example n repeated weights[r, n] times."""
    _, place, repeated = np.unique(values, return_inverse=True, return_counts=True)
    counts = np.add.reduceat(weights[:, np.argsort(place)], np.cumsum(repeated) - repeated, axis=1)
    ranks: Array = np.cumsum(counts, axis=1) - (counts - 1) / 2
    return ranks[:, place]


def _correlate(one: Array, other: Array, weights: Array) -> tuple[Array, Array]:
    """Return Pearson's correlation r of every resample, 0 if a variable is constant, and the standard error of its
    Fisher's z: the root mean square of u * v - r * (u * u + v * v) / 2 of the standardized variables u and v, over the
    root of N and 1 - r * r (the delta method)."""

    def mean(x: Array) -> Array:
        return (shares * x).sum(axis=1, keepdims=True)

    shares = weights / weights.sum(axis=1, keepdims=True)
    varies = (np.ptp(one, axis=1) > 0) & (np.ptp(other, axis=1) > 0)
    one, other = (x - mean(x) for x in (one, other))
    one, other = (divide(x, np.sqrt(np.broadcast_to(mean(x * x), x.shape))) for x in (one, other))
    product = one * other
    found = np.clip(mean(product), -1, 1) * varies[:, None]
    spread = mean((product - found / 2 * (one * one + other * other)) ** 2)
    return found[:, 0], divide(np.sqrt(spread / one.shape[1]), 1 - found**2)[:, 0]


def divide(above: Array, below: Array) -> Array:
    """Return a quotient, 0 where the denominator is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


CORRELATIONS = {"pearson": _pearson, "spearman": _spearman}
"""Correlation -> function of outcomes and weights, see `Metric.correlate`."""


def _percent_of(correlate: Callable[[Array, Array], tuple[Array, Array]], outcomes: Array, weights: Array) -> Array:
    return 100 * correlate(outcomes, weights)[0]


WEIGHTED: dict[str, Callable[[Array, Array], Array]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews_correlation": _matthews,
    **{name: functools.partial(_percent_of, one) for name, one in CORRELATIONS.items()},
}
"""Metric -> function of outcomes and weights."""
