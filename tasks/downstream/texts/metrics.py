"""Official metrics of classes and values: of all examples, and where examples are drawn more often than others."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tasks.downstream.scoring.metrics import Array, Metric

LABEL, PREDICTION = range(2)
"""Columns of the outcomes."""


def metric(name: str, *, title: str = "", called: str = "", split: str = "dev") -> Metric:
    """One of `WEIGHTED`.

    Args:
        title: for people; empty: its name in words.
        called: its name in the metrics file, where that differs.
        split: the development set it is of.
    """
    called = called or name
    extremes = functools.partial(_extremes, name)
    title = title or called.replace("_", " ")
    return Metric(called, title, functools.partial(_whole, name), WEIGHTED[name], split, extremes)


def official(metric: str, labels: Array, predictions: Array) -> float:
    """A metric in percent, by scikit-learn or scipy; 0 where a constant prediction leaves it undefined."""
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    if metric in ("pearson", "spearman"):
        if len(np.unique(predictions)) < 2 or len(np.unique(labels)) < 2:
            return 0.0
        return 100 * float((pearsonr if metric == "pearson" else spearmanr)(labels, predictions).statistic)
    of_classes: dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy_score(labels, predictions),
        "f1": lambda: f1_score(labels, predictions, pos_label=1, zero_division=0.0),
        "macro_f1": lambda: f1_score(labels, predictions, average="macro", zero_division=0.0),
        "matthews_correlation": lambda: matthews_corrcoef(labels, predictions),
    }
    return 100 * float(of_classes[metric]())


def _whole(metric: str, outcomes: Array) -> float:
    return official(metric, outcomes[:, LABEL], outcomes[:, PREDICTION])


def _extremes(metric: str, outcomes: Array) -> tuple[Array, Array]:
    """The worst and the best example: the largest value as the least and as itself; of classes, one of the rarest class
    (1 for F1, which looks for it) as another class and as itself."""
    values, counts = np.unique(outcomes[:, LABEL], return_counts=True)
    if metric in ("pearson", "spearman"):
        return np.array([values[-1], values[0]]), np.array([values[-1], values[-1]])
    label = 1.0 if metric == "f1" else values[counts.argmin()]
    other = next((one for one in values[np.argsort(-counts)] if one != label), 1.0 - label)
    return np.array([label, other]), np.array([label, label])


def _accuracy(outcomes: Array, weights: Array) -> Array:
    right = outcomes[:, LABEL] == outcomes[:, PREDICTION]
    found: Array = 100 * (weights @ right) / weights.sum(axis=1)
    return found


def _counts(outcomes: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Hits, false alarms, misses, and right noes, where class 1 is what is looked for; [resamples] each."""
    label, predicted = outcomes[:, LABEL] == 1, outcomes[:, PREDICTION] == 1
    hit, alarm, missed, no = (
        weights @ both for both in (label & predicted, ~label & predicted, label & ~predicted, ~label & ~predicted)
    )
    return hit, alarm, missed, no


def _f1(outcomes: Array, weights: Array) -> Array:
    hit, alarm, missed, _ = _counts(outcomes, weights)
    return 100 * _ratio(2 * hit, 2 * hit + alarm + missed)


def _macro_f1(outcomes: Array, weights: Array) -> Array:
    """The mean of F1 of the classes that are there or predicted in a resample, as scikit-learn takes it."""
    total, classes = np.zeros(len(weights)), np.zeros(len(weights))
    for number in np.unique(outcomes):
        label, predicted = (outcomes[:, column] == number for column in (LABEL, PREDICTION))
        below = weights @ (label.astype(np.float64) + predicted)
        total += _ratio(2 * (weights @ (label & predicted)), below)
        classes += below > 0
    return 100 * _ratio(total, classes)


def _matthews(outcomes: Array, weights: Array) -> Array:
    tp, fp, fn, tn = _counts(outcomes, weights)
    return 100 * _ratio(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _pearson(outcomes: Array, weights: Array) -> Array:
    columns = [np.broadcast_to(outcomes[:, column], weights.shape) for column in (LABEL, PREDICTION)]
    return 100 * _correlation(columns[0], columns[1], weights)


def _spearman(outcomes: Array, weights: Array) -> Array:
    """Pearson's of the ranks that the examples have among those that were drawn."""
    one, other = (_ranks(outcomes[:, column], weights) for column in (LABEL, PREDICTION))
    return 100 * _correlation(one, other, weights)


def _ranks(values: Array, weights: Array) -> Array:
    """[resamples, examples] mean rank of each value, where example n is there weights[r, n] times."""
    different, place = np.unique(values, return_inverse=True)
    counts = np.zeros((len(different), len(weights)))
    np.add.at(counts, place, weights.T)
    ranks = np.cumsum(counts, axis=0) - (counts - 1) / 2
    found: Array = ranks[place].T
    return found


def _correlation(one: Array, other: Array, weights: Array) -> Array:
    """Pearson's of every resample; 0 where one of them is constant."""
    total = weights.sum(axis=1, keepdims=True)
    one, other = (x - (weights * x).sum(axis=1, keepdims=True) / total for x in (one, other))
    spread = (weights * one * one).sum(axis=1) * (weights * other * other).sum(axis=1)
    return _ratio((weights * one * other).sum(axis=1), np.sqrt(spread))


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


WEIGHTED: dict[str, Callable[[Array, Array], Array]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews_correlation": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
"""Metric -> how it is counted where examples have weights."""
