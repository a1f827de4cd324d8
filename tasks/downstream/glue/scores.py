"""GLUE's official metrics, and how sure they are: the examples resampled with replacement, seeded.

Metrics of classes need only how often each combination of label and predictions occurs, so a resample of the examples
is one multinomial draw over these cells: the same distribution as drawing examples, and as fast for 40,000 as for 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.downstream.glue.tasks import GlueTask
from tasks.statistics.significance import RESAMPLES, Interval

Values = NDArray[np.float64]
_NUMBERS_AT_ONCE = 4_000_000
"""Bound on memory: 32 MB of resampled values."""


def official(metric: str, labels: Values, predictions: Values) -> float:
    """A metric of GLUE in percent, by scikit-learn or scipy; 0 where a constant prediction leaves it undefined."""
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    if metric in ("pearson", "spearman"):
        if len(np.unique(predictions)) < 2 or len(np.unique(labels)) < 2:
            return 0.0
        return 100 * float((pearsonr if metric == "pearson" else spearmanr)(labels, predictions).statistic)
    of_classes: dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy_score(labels, predictions),
        "f1": lambda: f1_score(labels, predictions, pos_label=1, zero_division=0.0),
        "matthews_correlation": lambda: matthews_corrcoef(labels, predictions),
    }
    return 100 * float(of_classes[metric]())


def metric_names(task: GlueTask, split: str) -> dict[str, str]:
    """Metric -> its name in the metrics file: with the development set where the task has several."""
    if len(task.dev) == 1:
        return {metric: metric for metric in task.metrics}
    return {metric: f"{metric}_{split.removeprefix('dev_')}" for metric in task.metrics}


def scores_of(task: GlueTask, labels: Mapping[str, Values], predictions: Mapping[str, Values]) -> dict[str, float]:
    """Every official metric by name, percent, and `score`, their mean; labels and predictions by development set."""
    found = {
        name: official(metric, truth, predictions[split])
        for split, truth in labels.items()
        for metric, name in metric_names(task, split).items()
    }
    return {**found, "score": float(np.mean(list(found.values())))}


def resampled_scores(
    task: GlueTask,
    labels: Mapping[str, Values],
    predictions: Sequence[Mapping[str, Values]],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[dict[str, Values]]:
    """Metrics and `score` of several predictions over the same resamples of the examples: [resamples] each, percent.

    Args:
        labels: by development set.
        predictions: of several models, each by development set.
    """
    generator = np.random.default_rng(seed)
    found: list[dict[str, Values]] = [{} for _ in predictions]
    for split, truth in labels.items():
        given = [one[split] for one in predictions]
        draw = _values_resampled if task.is_regression else _classes_resampled
        for scores, drawn in zip(found, draw(task, truth, given, resamples, generator), strict=True):
            names = metric_names(task, split)
            scores.update({names[metric]: values for metric, values in drawn.items()})
    for scores in found:
        scores["score"] = np.mean(list(scores.values()), axis=0)
    return found


def interval(values: Values, mean: float, confidence: float = 0.95) -> Interval:
    """The central interval of resampled values around what was measured."""
    tail = (1 - confidence) / 2
    low, high = (float(x) for x in np.quantile(values, (tail, 1 - tail)))
    return Interval(mean, low, high)


def figures(task: GlueTask, labels: Mapping[str, Values], predictions: Mapping[str, Values]) -> dict[str, float | int]:
    """Every official metric and `score` with the bounds of their 95% intervals, the score of the best constant answer
    and how many examples there are."""
    [drawn] = resampled_scores(task, labels, [predictions])
    found: dict[str, float | int] = {}
    for name, value in scores_of(task, labels, predictions).items():
        bounds = interval(drawn[name], value)
        found |= {name: round(value, 4), f"{name}_low": round(bounds.low, 4), f"{name}_high": round(bounds.high, 4)}
    constant = scores_of(task, labels, best_constant(task, labels))["score"]
    return {**found, "constant_score": round(constant, 4), "examples": sum(map(len, labels.values()))}


def best_constant(task: GlueTask, labels: Mapping[str, Values]) -> dict[str, Values]:
    """The predictions of the constant answer that scores best on these labels: what needs no model at all."""
    candidates = [0] if task.is_regression else range(len(task.labels))
    constants = [{split: np.full(len(truth), float(c)) for split, truth in labels.items()} for c in candidates]

    return max(constants, key=lambda constant: scores_of(task, labels, constant)["score"])


def _classes_resampled(
    task: GlueTask, labels: Values, predictions: Sequence[Values], resamples: int, generator: np.random.Generator
) -> list[dict[str, Values]]:
    """See `resampled_scores`, for one development set of a task with classes."""
    cells, counts = np.unique(np.stack([labels, *predictions]), axis=1, return_counts=True)
    drawn = generator.multinomial(len(labels), counts / len(labels), size=resamples)  # [resamples, cells]
    classes, truth = len(task.labels), cells[0].astype(np.int64)
    found = []
    for predicted in cells[1:].astype(np.int64):
        table = np.zeros((resamples, classes * classes))
        np.add.at(table.T, predicted * classes + truth, drawn.T)
        confusion = table.reshape(resamples, classes, classes)  # [resamples, predicted, label]
        found.append({metric: 100 * _OF_CONFUSION[metric](confusion) for metric in task.metrics})
    return found


def _accuracy(confusion: Values) -> Values:
    return np.trace(confusion, axis1=1, axis2=2) / confusion.sum(axis=(1, 2))


def _f1(confusion: Values) -> Values:
    hit, wrong, missed = confusion[:, 1, 1], confusion[:, 1, 0], confusion[:, 0, 1]
    return _ratio(2 * hit, 2 * hit + wrong + missed)


def _matthews(confusion: Values) -> Values:
    (tn, fn), (fp, tp) = (confusion[:, predicted].T for predicted in (0, 1))
    return _ratio(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _ratio(above: Values, below: Values) -> Values:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


_OF_CONFUSION: dict[str, Callable[[Values], Values]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews_correlation": _matthews,
}


def _values_resampled(
    task: GlueTask, labels: Values, predictions: Sequence[Values], resamples: int, generator: np.random.Generator
) -> list[dict[str, Values]]:
    """See `resampled_scores`, for one development set of a regression."""
    from scipy.stats import rankdata

    found: list[dict[str, Values]] = [{m: np.empty(resamples) for m in task.metrics} for _ in predictions]
    block = max(1, _NUMBERS_AT_ONCE // len(labels))
    for first in range(0, resamples, block):
        rows = slice(first, min(first + block, resamples))
        drawn = generator.integers(0, len(labels), size=(rows.stop - rows.start, len(labels)))
        truth = labels[drawn]
        ranks = rankdata(truth, axis=1)
        for scores, predicted in zip(found, predictions, strict=True):
            given = predicted[drawn]
            scores["pearson"][rows] = 100 * _correlation(truth, given)
            scores["spearman"][rows] = 100 * _correlation(ranks, rankdata(given, axis=1))
    return found


def _correlation(one: Values, other: Values) -> Values:
    """Pearson's of every row; 0 where one of them is constant."""
    one, other = (x - x.mean(axis=1, keepdims=True) for x in (one, other))
    return _ratio((one * other).sum(axis=1), np.sqrt((one * one).sum(axis=1) * (other * other).sum(axis=1)))
