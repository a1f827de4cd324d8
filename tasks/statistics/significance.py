"""How sure a score is, and whether two models differ.

An interval says how much a score would move with another set of questions of the same kind. It says nothing about
training again with another seed. How it is drawn says tasks/downstream/scoring/metrics.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
"""Enough for the second decimal of a bound to be steady at 1,000 questions."""


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its central confidence interval, in the unit of the values."""

    mean: float
    low: float
    high: float


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
