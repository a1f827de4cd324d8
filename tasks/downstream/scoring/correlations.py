"""Correlations of values and predictions, also for weighted examples, as scipy computes them.

Legend: N examples, R resamples.
"""

import numpy as np

from tasks.downstream.scoring.metrics import Array, Metric

VALUE, PREDICTION = range(2)
"""Columns of the outcomes."""


def correlation(name: str, title: str = "", called: str = "", split: str = "dev") -> Metric:
    """Return one of CORRELATIONS as a metric; it is 0 if a constant prediction leaves it undefined.

    Args:
        title: name for users; empty: that of the metric.
        called: key in the metrics file, if it differs.
    """
    correlate, called = CORRELATIONS[name], called or name

    def weighted(outcomes: Array, weights: Array) -> Array:
        return 100 * correlate(outcomes, weights)[0]

    return Metric(called, title or called, weighted, split, find_value_extremes, correlate=correlate)


def find_value_extremes(outcomes: Array) -> tuple[Array, Array]:
    """Return the largest value with the smallest and with the largest prediction."""
    value, most = outcomes.max(axis=0)
    least = outcomes[:, PREDICTION].min()
    return np.array([value, least - (least == most)]), np.array([value, most])


def _pearson(outcomes: Array, weights: Array) -> tuple[Array, Array]:
    value, prediction = (np.broadcast_to(column, weights.shape) for column in outcomes.T)
    return _correlate(value, prediction, weights)


def _spearman(outcomes: Array, weights: Array) -> tuple[Array, Array]:
    value, prediction = (_ranks(column, weights) for column in outcomes.T)
    return _correlate(value, prediction, weights)


def _ranks(values: Array, weights: Array) -> Array:
    """Return the mean rank of each value [resamples, examples], with example n repeated weights[r, n] times."""
    _, index, repeated = np.unique(values, return_inverse=True, return_counts=True)
    counts = np.add.reduceat(weights[:, np.argsort(index)], np.cumsum(repeated) - repeated, axis=1)
    ranks: Array = np.cumsum(counts, axis=1) - (counts - 1) / 2
    return ranks[:, index]


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
    coefficients = np.clip(mean(product), -1, 1) * varies[:, None]
    spread = mean((product - coefficients / 2 * (one * one + other * other)) ** 2)
    return coefficients[:, 0], divide(np.sqrt(spread / one.shape[1]), 1 - coefficients**2)[:, 0]


def divide(above: Array, below: Array) -> Array:
    """Return a quotient, 0 where the denominator is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


CORRELATIONS = {"pearson": _pearson, "spearman": _spearman}
"""Correlation -> function of outcomes and weights, see `Metric.correlate`."""
