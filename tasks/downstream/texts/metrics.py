"""Official metrics of classes and values, also for weighted examples."""

import functools
from collections.abc import Callable

import numpy as np

from tasks.downstream.scoring.metrics import Array, Metric

LABEL, PREDICTION = range(2)
"""Columns of the outcomes."""


def metric(name: str, *, title: str = "", called: str = "", split: str = "dev") -> Metric:
    """Return one of the metrics in `WEIGHTED`.

    Args:
        title: name for users; empty: derived from the name.
        called: key in the metrics file, if it differs.
    """
    called = called or name
    extremes = functools.partial(_extremes, name)
    title = title or called.replace("_", " ")
    return Metric(called, title, functools.partial(_whole, name), WEIGHTED[name], split, extremes)


def official_score(metric: str, labels: Array, predictions: Array) -> float:
    """Return a metric in percent, by scikit-learn or scipy; 0 if a constant prediction leaves it undefined."""
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
    return official_score(metric, outcomes[:, LABEL], outcomes[:, PREDICTION])


def _extremes(metric: str, outcomes: Array) -> tuple[Array, Array]:
    """Return the worst and the best example: for values, the largest one predicted as the smallest and as itself; for
    classes, one of the rarest class (1 for F1) predicted as another class and as itself."""
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
    """Return true positives, false positives, false negatives and true negatives of class 1; [resamples] each."""
    label, predicted = outcomes[:, LABEL] == 1, outcomes[:, PREDICTION] == 1
    tp, fp, fn, tn = (
        weights @ both for both in (label & predicted, ~label & predicted, label & ~predicted, ~label & ~predicted)
    )
    return tp, fp, fn, tn


def _f1(outcomes: Array, weights: Array) -> Array:
    tp, fp, fn, _ = _counts(outcomes, weights)
    return 100 * _ratio(2 * tp, 2 * tp + fp + fn)


def _macro_f1(outcomes: Array, weights: Array) -> Array:
    """Return the mean F1 of classes that occur or are predicted in a resample, as in scikit-learn."""
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
    one, other = (_ranks(outcomes[:, column], weights) for column in (LABEL, PREDICTION))
    return 100 * _correlation(one, other, weights)


def _ranks(values: Array, weights: Array) -> Array:
    """Return the mean rank of each value [resamples, examples], with example n repeated weights[r, n] times."""
    different, place = np.unique(values, return_inverse=True)
    counts = np.zeros((len(different), len(weights)))
    np.add.at(counts, place, weights.T)
    ranks = np.cumsum(counts, axis=0) - (counts - 1) / 2
    found: Array = ranks[place].T
    return found


def _correlation(one: Array, other: Array, weights: Array) -> Array:
    """Return Pearson's correlation of every resample; 0 if a variable is constant."""
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
"""Metric -> function of outcomes and weights."""
