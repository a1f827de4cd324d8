"""How sure a score is, whether two models differ, and how sure the mean score of a recipe is.

The interval of a model says how much its score would move with another set of questions of the same kind. It says
nothing about training again with another seed. How it is drawn says tasks/downstream/scoring/metrics.py.

Of a recipe, which is models that differ in the seed of their training, two things vary: which models the training
happened to make, and which examples they are judged on. The models answer the same examples, so the two are crossed. A
bootstrap that draws models, too, is what Sellam et al. 2022 propose ("The MultiBERTs: BERT Reproductions for Robustness
Analysis", ICLR, section 4; Owen 2007, "The Pigeonhole Bootstrap", Annals of Applied Statistics 1, has the theory).
Drawn from K models their variance comes out as (K - 1) / K of what it is, and percentiles know nothing of how little 2
or 3 models say. So the examples alone are drawn here, the same for all models; the variance of the models' scores is
estimated by itself, and both are added. The bounds are those of Student's t, with the degrees of freedom of such a sum
by Satterthwaite 1946 ("An Approximate Distribution of Estimates of Variance Components", Biometrics Bulletin 2).
docs/evaluation.md says how often either interval holds the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

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


def interval_over_seeds(measured: Array, drawn: Array, examples: int, confidence: float) -> Interval:
    """The interval of what a recipe scores on average, over its trainings and over examples of the same kind.

    That models disagree on single examples counts in both variances, so that the interval is a little too wide rather
    than too narrow.

    Args:
        measured: the score of each model on all examples, [K].
        drawn: the same on resamples of the examples, which are those of all models, [K, R]; NaN where a resample has
            no score.
        examples: how many there are.
        confidence: mass of the central interval.

    Raises:
        ValueError: fewer than two models, or another number of them in `drawn`.
    """
    models = len(measured)
    if models < 2 or len(drawn) != models:
        raise ValueError(f"{models} scores and {len(drawn)} rows of resamples: two models at least, a row each")
    mean, means = float(measured.mean()), drawn.mean(axis=0)
    known = means[~np.isnan(means)]
    of_seeds = float(measured.var(ddof=1)) / models
    of_examples = float(known.var()) if len(known) else math.nan
    total = of_seeds + of_examples
    if not total > 0:  # NaN, too
        return Interval(mean, mean + total, mean + total)
    from scipy.stats import t  # takes 0.6 s to import

    freedom = total**2 / (of_seeds**2 / (models - 1) + of_examples**2 / max(1, examples - 1))
    half = float(t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(total)
    return Interval(mean, mean - half, mean + half)
