"""Metrics of classes and values, also for weighted examples, as scikit-learn and scipy compute them.

Legend: N examples, R resamples.
"""

import functools
from collections.abc import Callable

import numpy as np

from tasks.downstream.scoring.correlations import CORRELATIONS, PREDICTION, correlation, divide
from tasks.downstream.scoring.metrics import Array, Metric

LABEL = 0
"""Column of the outcomes of classes and values; PREDICTION is the other."""


def metric(name: str, *, title: str = "", called: str = "", split: str = "dev") -> Metric:
    """Return one of the metrics in `WEIGHTED`, or a correlation; it is 0 if a constant prediction leaves it undefined.

    Args:
        title: name for users; empty: derived from the name.
        called: key in the metrics file, if it differs.
    """
    called = called or name
    title = title or called.replace("_", " ")
    if name in CORRELATIONS:
        return correlation(name, title, called, split)
    extremes = functools.partial(find_extremes, name)
    right = is_right if name == "accuracy" else None
    return Metric(called, title, WEIGHTED[name], split, extremes, right)


def count_class(outcomes: Array, number: float) -> tuple[Array, Array, Array]:
    """Return 1 or 0 for each example: it is of this class, is predicted as such, and both; [N] each."""
    gold, predicted = (outcomes == number).astype(np.float64).T
    return gold, predicted, gold * predicted


def is_right(outcomes: Array) -> Array:
    """Return 1 for each example whose class or value is predicted, else 0."""
    return (outcomes[:, LABEL] == outcomes[:, PREDICTION]).astype(np.float64)


def find_extremes(metric: str, outcomes: Array, number: float = 1.0) -> tuple[Array, Array]:
    """Return the worst and the best example: of the rarest class (`number` for F1) predicted as another one and as
    itself."""
    labels = outcomes[:, LABEL]
    values, counts = np.unique(labels, return_counts=True)
    if metric == "matthews_correlation":  # either class may be absent
        values, counts = np.arange(2.0), np.bincount(labels == 1, minlength=2)
    label = number if metric == "f1" else values[counts.argmin()]
    other = next((value for value in values[np.argsort(-counts)] if value != label), 1.0 - label)
    return np.array([label, other]), np.array([label, label])


def _accuracy(outcomes: Array, weights: Array) -> Array:
    return 100 * (weights @ is_right(outcomes)) / weights.sum(axis=1)


def _counts(outcomes: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Return true positives, false positives, false negatives and true negatives of class 1; [R] each."""
    gold, predicted, both = count_class(outcomes, 1)
    tp, fp, fn, tn = (weights @ count for count in (both, predicted - both, gold - both, 1 - gold - predicted + both))
    return tp, fp, fn, tn


def _f1(outcomes: Array, weights: Array) -> Array:
    tp, fp, fn, _ = _counts(outcomes, weights)
    return 100 * divide(2 * tp, 2 * tp + fp + fn)


def _macro_f1(outcomes: Array, weights: Array) -> Array:
    """Return the mean F1 of classes that occur or are predicted in a resample, as in scikit-learn."""
    total, classes = np.zeros(len(weights)), np.zeros(len(weights))
    for number in np.unique(outcomes[outcomes >= 0]):
        gold, predicted, both = count_class(outcomes, number)
        below = weights @ (gold + predicted)
        total += divide(2 * (weights @ both), below)
        classes += below > 0
    return 100 * divide(total, classes)


def _matthews(outcomes: Array, weights: Array) -> Array:
    tp, fp, fn, tn = _counts(outcomes, weights)
    return 100 * divide(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


WEIGHTED: dict[str, Callable[[Array, Array], Array]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews_correlation": _matthews,
}
"""Metric -> function of outcomes and weights."""
