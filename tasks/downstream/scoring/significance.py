"""Confidence intervals of scores and of the mean score of a recipe, and a test of two models.

The interval of a model covers the variation over other sets of questions of the same kind, not over training seeds.
tasks/downstream/scoring/metrics.py computes it.

The score of a recipe (models that differ in their training seed) varies with the trained models and with the examples.
All models predict the same examples, so the two factors are crossed. Sellam et al. 2022 resample both ("The MultiBERTs:
BERT Reproductions for Robustness Analysis", ICLR, section 4; theory: Owen 2007, "The Pigeonhole Bootstrap", Annals of
Applied Statistics 1). With K models, that underestimates their variance by a factor (K - 1) / K, and percentiles ignore
the uncertainty of 2 or 3 models. So only the examples are resampled here, jointly for all models; the variance of the
models' scores is estimated separately, and both are added. The bounds are those of Student's t with the degrees of
freedom of such a sum by Satterthwaite 1946 ("An Approximate Distribution of Estimates of Variance Components",
Biometrics Bulletin 2). docs/evaluation.md has the measured coverage of both intervals.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RESAMPLES = 2000
"""Enough for a stable second decimal of a bound with 1,000 questions."""
NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True)
class ConfidenceInterval:
    """Mean and bounds of its central confidence interval, in the unit of the values."""

    mean: float
    low: float
    high: float

    @property
    def direction(self) -> str:
        """`better` or `worse` if the interval of a difference does not include 0, else that none was shown."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else NO_DIFFERENCE

    def shows_drop(self, tolerated: float, confidence: float) -> bool:
        """Return True if the difference is significantly below -`tolerated`; NaN, without common examples, counts."""
        return not round(self.high, 4) >= -tolerated

    def excludes_drop(self, tolerated: float) -> bool:
        """Return True if the difference is significantly not below -`tolerated`, as in a test of non-inferiority; NaN,
        without common examples, excludes nothing."""
        return round(self.low, 4) >= -tolerated

    def count_needed(self, tolerated: float, examples: int) -> int | None:
        """Return about how many examples at most would exclude that drop if the difference stays; None: none would."""
        spare, half = self.mean + tolerated, self.mean - self.low
        return math.ceil(examples * (half / spare) ** 2) if spare > 0 and math.isfinite(half) else None


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two models on the same questions."""

    first_only: int
    """Questions that only the first model answered correctly."""
    second_only: int
    p_value: float
    """Two-sided p-value of equally good models."""


@dataclass(frozen=True)
class PairedDifference(ConfidenceInterval):
    """Difference of a metric of two models on the same examples, in points, with its test."""

    p_value: float
    """Two-sided p-value of equally good models: McNemar's for a share of correct answers, else of the bootstrap."""
    mcnemar: McNemar | None = None
    """None if the metric is not a share of correct answers."""

    def shows_drop(self, tolerated: float, confidence: float) -> bool:
        """Return True if the difference is significantly below -`tolerated`; of a share of correct answers, McNemar's
        test must also find the models unequal."""
        unequal = self.mcnemar is None or math.isnan(self.mean) or self.mcnemar.p_value < 1 - confidence
        return super().shows_drop(tolerated, confidence) and unequal

    def verdict(self, confidence: float) -> str:
        """Return better or worse if interval and test agree, else that no difference was shown."""
        return self.direction if self.p_value < 1 - confidence else NO_DIFFERENCE


def bootstrap_p_value(drawn: Array) -> float:
    """Return the two-sided p-value of no difference from resampled differences, NaN ignored (Davison and Hinkley 1997,
    "Bootstrap Methods and their Application", section 4.4): it is below 0.05 if the 95% interval does not include 0."""
    known = drawn[~np.isnan(drawn)]
    least = min(int((known <= 0).sum()), int((known >= 0).sum()))
    return min(1.0, 2 * (least + 1) / (len(known) + 1))


def mcnemar_exact(first: Array, second: Array) -> McNemar:
    """Return McNemar's exact test (McNemar 1947, Psychometrika 12; Dietterich 1998 compares such tests).

    If both models are equally good, each question that only one answers correctly belongs to either with probability
    1/2.

    Args:
        first: 1.0 (correct) or 0.0 per question.
        second: the same questions, in the same order.
    """
    only = int((first > second).sum()), int((second > first).sum())
    every, fewer = sum(only), min(only)
    # Twice the tail of the binomial distribution; scipy's test takes 0.6 s to import.
    ratios = np.log(np.arange(every, every - fewer, -1)) - np.log(np.arange(1, fewer + 1))
    tail = np.exp(np.concatenate([[0.0], np.cumsum(ratios)]) - every * math.log(2)).sum()
    return McNemar(*only, min(1.0, 2 * float(tail)))


def expect_half_width(examples: int, disagreement: float, confidence: float) -> float:
    """Return half the width in points of the confidence interval of a difference in accuracy, before it is measured.

    The difference of one example is -1, 0 or 1, and not 0 for a share `disagreement`; for a small difference that is
    its variance. On SST-2, intervals of models that answered both classes as often as they occur were 8.00 to 8.33
    points for 300 examples (8.00 expected at 0.5), and 10.01 for one that answered one class 0.78 of the time.
    """
    from statistics import NormalDist

    return 100 * NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(disagreement / examples)


def describe_power(sample: str, what: str, half_width: float) -> str:
    """Return the smallest detectable difference as a sentence; empty if there is nothing to say.

    It is half the width of the confidence interval of a difference on the same examples (paired): a larger measured
    difference is significant. A true difference of that size is detected in half of all samples; one that is 1.4 times
    as large in four of five.
    """
    sentence = f"With {sample}, {what} must reach about {half_width:.1f} points to count."
    return sentence if round(half_width, 1) > 0 else ""


def interval_over_seeds(measured: Array, drawn: Array, examples: int, confidence: float) -> ConfidenceInterval:
    """Return the interval of the mean score of a recipe over trainings and over examples of the same kind.

    Disagreement of models on single examples counts in both variances, so the interval is slightly too wide rather than
    too narrow.

    Args:
        measured: score of each model on all examples, [K]; two models or more.
        drawn: the same on shared resamples of the examples, [K, R]; NaN if a resample has no score.
        confidence: mass of the central interval.
    """
    models = len(measured)
    mean, means = float(measured.mean()), drawn.mean(axis=0)
    known = means[~np.isnan(means)]
    of_seeds = float(measured.var(ddof=1)) / models
    of_examples = float(known.var()) if len(known) else math.nan
    total = of_seeds + of_examples
    if not total > 0:  # also true for NaN
        return ConfidenceInterval(mean, mean + total, mean + total)
    from scipy.stats import t  # takes 0.6 s to import

    freedom = total**2 / (of_seeds**2 / (models - 1) + of_examples**2 / max(1, examples - 1))
    half = float(t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(total)
    return ConfidenceInterval(mean, mean - half, mean + half)
