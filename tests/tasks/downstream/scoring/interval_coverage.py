"""How often the interval of a score holds the truth: the tables of docs/evaluation.md.

python -m tests.tasks.downstream.scoring.interval_coverage

Shares of right answers are enumerated: every number of right answers has its interval and its probability. F1 is
simulated: a question scores 0, or as often 0.2, 0.4, 0.6, 0.8 or 1, so that the mean is the truth; above one half the
mirror image of that. Correlations are of values from a normal distribution, predicted with another spread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from tasks.downstream.scoring.metrics import Array, Metrics, make_interval, mean_metric
from tasks.downstream.texts.metrics import metric

TRUTHS = (0.0, 0.005, 0.01, 0.5, 0.99, 0.995, 1.0)
SIZES = (30, 300, 3000)
SCORE = Metrics((mean_metric("score", "score", 0),))
PARTS = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
"""What a question scores that is not all wrong."""
RARE = 1e-6
"""Numbers of right answers that are less probable are left out."""
CORRELATIONS = (
    *(("pearson", truth, ratio) for truth, ratio in ((0.3, 1), (0.8, 1), (0.8, 0.3), (0.8, 0.02), (0.95, 0.02))),
    *(("spearman", truth, 0.02) for truth in (0.3, 0.8, 0.95)),
)
"""Correlation, its true value, and the spread of predictions as a part of that of the values."""
Bounds = Callable[[Array], tuple[float, float]]


def stated(scores: Array) -> tuple[float, float]:
    """The bounds that metrics, pages and cards state of scores from 0 to 1."""
    found = SCORE.figures({"dev": scores[:, None]})
    return found["score_low"] / 100, found["score_high"] / 100


def percentiles(scores: Array) -> tuple[float, float]:
    """Those of the percentile bootstrap, to compare with."""
    [drawn] = SCORE.resample([{"dev": scores[:, None]}])
    found = make_interval(drawn["score"], 0.0)
    return round(found.low / 100, 6), round(found.high / 100, 6)


def coverage_of_shares(truth: float, size: int, bounds: Bounds = stated) -> float:
    """The probability that the interval of that many answers holds the share of right ones, which is `truth`."""
    from scipy.stats import binom

    held = 0.0
    for right, probability in enumerate(binom.pmf(np.arange(size + 1), size, truth).tolist()):
        if probability > RARE:
            low, high = bounds((np.arange(size) < right).astype(np.float64))
            held += probability * (low <= truth <= high)
    return held


def draw_f1(truth: float, size: int, generator: np.random.Generator) -> Array:
    """F1 of simulated questions, `truth` on average."""
    near = min(truth, 1 - truth)
    found: Array = np.where(generator.random(size) < near / PARTS.mean(), generator.choice(PARTS, size), 0.0)
    return found if truth <= 0.5 else 1 - found


def coverage_of_f1(truth: float, size: int, trials: int, bounds: Bounds = stated) -> float:
    """The share of simulated sets of questions whose interval holds the mean F1, which is `truth`."""
    generator = np.random.default_rng(0)
    found = [bounds(draw_f1(truth, size, generator)) for _ in range(trials)]
    return sum(low <= truth <= high for low, high in found) / trials


def draw_values(correlation: float, ratio: float, size: int, generator: np.random.Generator) -> Array:
    """Values from a normal distribution and predictions with `ratio` of their spread, [size, 2]."""
    values, noise = generator.normal(size=(2, size))
    predicted = correlation * values + np.sqrt(1 - correlation**2) * noise
    return np.stack([2.5 + values, 2.5 + ratio * predicted], axis=1)


def coverage_of_correlation(name: str, correlation: float, ratio: float, size: int, trials: int) -> float:
    """The share of simulated regressions whose interval holds the correlation of the population."""
    generator, score = np.random.default_rng(0), Metrics((metric(name),))
    truth = correlation if name == "pearson" else 6 / np.pi * np.arcsin(correlation / 2)  # Pearson 1907
    held = 0
    for _ in range(trials):
        found = score.figures({"dev": draw_values(correlation, ratio, size, generator)})
        held += found[f"{name}_low"] <= 100 * truth <= found[f"{name}_high"]
    return held / trials


def coverage_of_difference(name: str, size: int, trials: int) -> float:
    """The share of simulated pairs of models, with correlations of 0.85 and 0.8, 0.02 of each other's spread and 0.6
    between their errors, whose paired interval holds the difference."""
    generator, score, held = np.random.default_rng(0), Metrics((metric(name),)), 0
    truth = 0.05 if name == "pearson" else 6 / np.pi * (np.arcsin(0.85 / 2) - np.arcsin(0.8 / 2))
    for _ in range(trials):
        values, errors, other = generator.normal(size=(3, size))
        first = 0.85 * values + np.sqrt(1 - 0.85**2) * errors
        second = 0.02 * (0.8 * values + 0.6 * (0.6 * errors + 0.8 * other))
        models = ({"dev": np.stack([values, predicted], axis=1)} for predicted in (first, second))
        found = score.differences(*models, 0.95)[name]
        held += found.low <= 100 * truth <= found.high
    return held / trials


def correlation_table(trials: int) -> Iterator[str]:
    """The second table of docs/evaluation.md, line by line; the page leaves out rows that show the same again."""
    yield f"| correlation | ratio of spreads | {SIZES[0]} examples | {' | '.join(f'{size:,}' for size in SIZES[1:])} |"
    yield "|---" * (2 + len(SIZES)) + "|"
    for name, truth, ratio in CORRELATIONS:
        cells = (f"{100 * coverage_of_correlation(name, truth, ratio, size, trials):.1f}" for size in SIZES)
        yield f"| {name} {truth:g} | {ratio:g} | {' | '.join(cells)} |"
    for name in ("pearson", "spearman"):
        cells = (f"{100 * coverage_of_difference(name, size, trials):.1f}" for size in SIZES)
        yield f"| {name}, difference of two models | 0.02 | {' | '.join(cells)} |"


def table(trials: int) -> Iterator[str]:
    """The table of docs/evaluation.md, line by line; the page leaves out rows that show the same again."""
    yield f"| score | what | {SIZES[0]} examples | {' | '.join(f'{size:,}' for size in SIZES[1:])} |"
    yield "|---" * (2 + len(SIZES)) + "|"
    for truth in TRUTHS:
        shares = [[coverage_of_shares(truth, size, bounds) for bounds in (stated, percentiles)] for size in SIZES]
        means = [[coverage_of_f1(truth, size, trials, bounds) for bounds in (stated, percentiles)] for size in SIZES]
        for what, both in (("share of right answers", shares), ("mean F1", means)):
            cells = (f"{100 * ours:.1f} ({100 * theirs:.1f})" for ours, theirs in both)
            yield f"| {100 * truth:g}% | {what} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for line in itertools.chain(table(trials=500), [""], correlation_table(trials=200)):
        print(line, flush=True)
