"""How sure a mean over questions is: percentile bootstrap, seeded (Efron and Tibshirani 1993, chapter 13); and whether
two models differ.

The questions are resampled with replacement; what is reported says how much the score would move with
another set of questions of the same kind. It says nothing about training again with another seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
"""Enough for the second decimal of a bound to be steady at 1,000 questions."""
_NUMBERS_AT_ONCE = 4_000_000
"""Bound on memory: 32 MB of resampled values."""


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its central confidence interval, in the unit of the values."""

    mean: float
    low: float
    high: float


def bootstrap_intervals(
    columns: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> list[Interval]:
    """Intervals of the mean of every column, all columns over the same resamples.

    Args:
        columns: finite numbers, [questions, columns].
        confidence: mass of the central interval; 0.95 leaves 2.5% on either side.
        resamples: bootstrap draws.
        seed: of numpy's default generator; the same seed gives the same bounds.

    Raises:
        ValueError: no question, a number that is not finite, or a confidence outside (0, 1).
    """
    values = np.asarray(columns, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"values must be [questions, columns] with at least one question, found {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite numbers")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie between 0 and 1")
    exact = values.mean(axis=0)
    low = high = exact  # every resample of a single question is that question
    if len(values) > 1:
        from scipy.stats import bootstrap  # takes 0.6 s to import, and few processes need it

        low, high = bootstrap(
            (values,),
            np.mean,
            axis=0,
            n_resamples=resamples,
            batch=max(1, _NUMBERS_AT_ONCE // values.size),
            confidence_level=confidence,
            method="percentile",
            rng=np.random.default_rng(seed),
        ).confidence_interval
    return [Interval(*map(float, bounds)) for bounds in zip(exact, low, high, strict=True)]


def bootstrap_interval(
    values: Sequence[float] | NDArray[np.float64],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """`bootstrap_intervals` of one column."""
    column = np.asarray(values, dtype=np.float64).reshape(-1, 1)
    return bootstrap_intervals(column, confidence=confidence, resamples=resamples, seed=seed)[0]


def paired_bootstrap(
    candidate: Sequence[float],
    released: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Interval of mean(candidate - released) over the same questions, in the same order.

    Pairing takes the difficulty of the questions out: what both models get wrong adds no spread.

    Raises:
        ValueError: unequal lengths, or as `bootstrap_intervals`.
    """
    if len(candidate) != len(released):
        raise ValueError(f"{len(candidate)} and {len(released)} values cannot be paired")
    difference = np.asarray(candidate, dtype=np.float64) - np.asarray(released, dtype=np.float64)
    return bootstrap_interval(difference, confidence=confidence, resamples=resamples, seed=seed)


@dataclass(frozen=True)
class McNemar:
    """Two models on the same questions, each right or wrong."""

    first_only: int
    """Questions that only the first had right."""
    second_only: int
    p_value: float
    """Two-sided: how likely a difference as large is if both were equally good."""


def mcnemar_exact(first: Sequence[float], second: Sequence[float]) -> McNemar:
    """McNemar's test in its exact form (McNemar 1947, Psychometrika 12; Dietterich 1998 compares such tests).

    If both models were equally good, each question that one alone had right would fall to either with probability 1/2.

    Args:
        first: 1.0 (right) or 0.0 per question.
        second: the same questions, in the same order.

    Raises:
        ValueError: unequal lengths, or a value that is neither.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape:
        raise ValueError(f"{len(first)} and {len(second)} values cannot be paired")
    if not (np.isin(one, (0.0, 1.0)).all() and np.isin(two, (0.0, 1.0)).all()):
        raise ValueError("McNemar's test wants 0 (wrong) or 1 (right) for every question")
    from scipy.stats import binomtest

    only = int((one > two).sum()), int((two > one).sum())
    return McNemar(*only, float(binomtest(only[0], sum(only), 0.5).pvalue) if sum(only) else 1.0)
