"""Measure how often intervals hold the truth, of scores and of a recipe's mean score: tables of docs/evaluation.md.

Shares of right answers are enumerated: every number of right answers has its interval and its probability. F1 is
simulated: a question scores 0, or as often 0.2, 0.4, 0.6, 0.8 or 1, so that the mean is the truth; above one half the
mirror image of that. Correlations are of values from a normal distribution, predicted with another spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tasks.downstream.scoring.metrics import Array, Metrics, draw_counts, make_interval, mean_metric
from tasks.downstream.scoring.significance import interval_over_seeds
from tasks.downstream.texts.metrics import metric
from tasks.stage.process import parse_no_arguments

TRUTHS = (0.0, 0.005, 0.01, 0.5, 0.99, 0.995, 1.0)
SIZES = (30, 300, 3000)
SCORE = Metrics((mean_metric("score", "score", 0),))
PARTS = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
"""Scores of questions with at least a partly right answer."""
RARE = 1e-6
"""Numbers of right answers that are less probable are left out."""
CORRELATIONS = (
    *(("pearson", truth, ratio) for truth, ratio in ((0.3, 1), (0.8, 1), (0.8, 0.3), (0.8, 0.02), (0.95, 0.02))),
    *(("spearman", truth, 0.02) for truth in (0.3, 0.8, 0.95)),
)
"""Correlation, its true value, and the spread of predictions as a part of that of the values."""
Bounds = Callable[[Array], tuple[float, float]]


def compute_bounds(scores: Array) -> tuple[float, float]:
    """Return the bounds that metrics, pages and cards have for scores from 0 to 1, [N]."""
    figures = SCORE.figures({"dev": scores[:, None]})
    return figures["score_low"] / 100, figures["score_high"] / 100


def compute_percentiles(scores: Array) -> tuple[float, float]:
    """Return the bounds of the percentile bootstrap, for comparison."""
    [drawn] = SCORE.resample([{"dev": scores[:, None]}])
    interval = make_interval(drawn["score"], 0.0)
    return round(interval.low / 100, 6), round(interval.high / 100, 6)


BOUNDS = (compute_bounds, compute_percentiles)


def cover_shares(truth: float, size: int, bounds: Bounds = compute_bounds) -> float:
    """Return the probability that the interval of `size` answers holds the share of right ones, which is `truth`."""
    from scipy.stats import binom

    held = 0.0
    for right, probability in enumerate(binom.pmf(np.arange(size + 1), size, truth).tolist()):
        if probability > RARE:
            low, high = bounds((np.arange(size) < right).astype(np.float64))
            held += probability * (low <= truth <= high)
    return held


def draw_f1(truth: float, size: int, generator: np.random.Generator) -> Array:
    """Return the F1 of `size` simulated questions, `truth` on average."""
    near = min(truth, 1 - truth)
    scores: Array = np.where(generator.random(size) < near / PARTS.mean(), generator.choice(PARTS, size), 0.0)
    return scores if truth <= 0.5 else 1 - scores


def cover_f1(truth: float, size: int, trials: int, bounds: Bounds = compute_bounds) -> float:
    """Return the share of simulated sets of questions whose interval holds the mean F1, which is `truth`."""
    generator = np.random.default_rng(0)
    intervals = [bounds(draw_f1(truth, size, generator)) for _ in range(trials)]
    return sum(low <= truth <= high for low, high in intervals) / trials


def draw_values(correlation: float, ratio: float, size: int, generator: np.random.Generator) -> Array:
    """Return values from a normal distribution, and predictions with `ratio` of their spread, [size, 2]."""
    values, noise = generator.normal(size=(2, size))
    predicted = correlation * values + np.sqrt(1 - correlation**2) * noise
    return np.stack([2.5 + values, 2.5 + ratio * predicted], axis=1)


def cover_correlation(name: str, correlation: float, ratio: float, size: int, trials: int) -> float:
    """Return the share of simulated regressions whose interval holds the correlation of the population."""
    generator, score = np.random.default_rng(0), Metrics((metric(name),))
    truth = correlation if name == "pearson" else 6 / np.pi * np.arcsin(correlation / 2)  # Pearson 1907
    held = 0
    for _ in range(trials):
        figures = score.figures({"dev": draw_values(correlation, ratio, size, generator)})
        held += figures[f"{name}_low"] <= 100 * truth <= figures[f"{name}_high"]
    return held / trials


def cover_difference(name: str, size: int, trials: int) -> float:
    """Return the share of simulated pairs of models whose paired interval holds the difference.

    Their correlations are 0.85 and 0.8, the second has 0.02 of the first one's spread, and their errors correlate
    by 0.6.
    """
    generator, score, held = np.random.default_rng(0), Metrics((metric(name),)), 0
    truth = 0.05 if name == "pearson" else 6 / np.pi * (np.arcsin(0.85 / 2) - np.arcsin(0.8 / 2))
    for _ in range(trials):
        values, errors, noise = generator.normal(size=(3, size))
        first = 0.85 * values + np.sqrt(1 - 0.85**2) * errors
        second = 0.02 * (0.8 * values + 0.6 * (0.6 * errors + 0.8 * noise))
        before, after = ({"dev": np.stack([values, predicted], axis=1)} for predicted in (first, second))
        difference = score.differences(before, after, 0.95)[name]
        held += difference.low <= 100 * truth <= difference.high
    return held / trials


def tabulate_correlations(trials: int) -> Iterator[str]:
    """Yield the second table of docs/evaluation.md by lines; the page leaves out rows that show the same again."""
    yield f"| correlation | ratio of spreads | {SIZES[0]} examples | {' | '.join(f'{size:,}' for size in SIZES[1:])} |"
    yield "|---" * (2 + len(SIZES)) + "|"
    for name, truth, ratio in CORRELATIONS:
        cells = (f"{100 * cover_correlation(name, truth, ratio, size, trials):.1f}" for size in SIZES)
        yield f"| {name} {truth:g} | {ratio:g} | {' | '.join(cells)} |"
    for name in ("pearson", "spearman"):
        cells = (f"{100 * cover_difference(name, size, trials):.1f}" for size in SIZES)
        yield f"| {name}, difference of two models | 0.02 | {' | '.join(cells)} |"


def tabulate_scores(trials: int) -> Iterator[str]:
    """Yield the first table of docs/evaluation.md by lines; the page leaves out rows that show the same again."""
    yield f"| score | what | {SIZES[0]} examples | {' | '.join(f'{size:,}' for size in SIZES[1:])} |"
    yield "|---" * (2 + len(SIZES)) + "|"
    for truth in TRUTHS:
        shares = [[cover_shares(truth, size, bounds) for bounds in BOUNDS] for size in SIZES]
        means = [[cover_f1(truth, size, trials, bounds) for bounds in BOUNDS] for size in SIZES]
        for what, both in (("share of right answers", shares), ("mean F1", means)):
            cells = (f"{100 * ours:.1f} ({100 * theirs:.1f})" for ours, theirs in both)
            yield f"| {100 * truth:g}% | {what} | {' | '.join(cells)} |"


LEVEL, DIFFICULTY, TASTE = 1.2, 1.5, 0.7
"""Mean skill of all models; standard deviations of difficulty and of taste (World)."""
CONFIDENCE = 0.95
TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class World:
    """Trainings that are simulated: each example has a difficulty, each model a skill that its seed gave it, and both
    together a taste; a model has an example right where their sum lies above zero."""

    models: int
    skill: float
    """Standard deviation between models."""
    examples: int = 500

    @property
    def truth(self) -> float:
        """Mean score of the recipe, percent."""
        return 100 * NormalDist().cdf(LEVEL / math.hypot(DIFFICULTY, self.skill, TASTE))

    def draw_trainings(self, generator: np.random.Generator) -> Array:
        """Return right (100) or wrong (0) for every model and example, [K, N]."""
        skills = generator.normal(0, self.skill, (self.models, 1))
        tastes = generator.normal(0, TASTE, (self.models, self.examples))
        levels = LEVEL + generator.normal(0, DIFFICULTY, self.examples) + skills + tastes
        return np.where(levels > 0, 100.0, 0.0)


def use_one_model(measured: Array, drawn: Array, examples: int) -> tuple[float, float]:
    """Return the interval of the first model alone."""
    low, high = np.quantile(drawn[0], TAILS)
    return float(low), float(high)


def draw_both(measured: Array, drawn: Array, examples: int) -> tuple[float, float]:
    """Return percentiles of a bootstrap that draws models, then examples."""
    models, resamples = drawn.shape
    taken = np.random.default_rng(1).integers(0, models, (models, resamples))
    low, high = np.quantile(np.take_along_axis(drawn, taken, axis=0).mean(axis=0), TAILS)
    return float(low), float(high)


def use_gate(measured: Array, drawn: Array, examples: int) -> tuple[float, float]:
    """Return the interval of the gate."""
    interval = interval_over_seeds(measured, drawn, examples, CONFIDENCE)
    return interval.low, interval.high


INTERVALS: dict[str, Callable[[Array, Array, int], tuple[float, float]]] = {
    "one model, examples alone": use_one_model,
    "bootstrap of models and examples": draw_both,
    "the gate's": use_gate,
}


def cover_recipe(world: World, name: str, trials: int, resamples: int = 400) -> tuple[float, float]:
    """Return the share of simulated trainings whose interval holds the truth, and its median width in points."""
    generator = np.random.default_rng(0)
    # The same resamples serve all trials, whose examples are new each time.
    weights = np.concatenate([*draw_counts(world.examples, resamples, generator)]) / world.examples
    intervals = []
    for _ in range(trials):
        right = world.draw_trainings(generator)
        intervals.append(INTERVALS[name](right.mean(axis=1), right @ weights.T, world.examples))
    bounds = np.array(intervals)
    held = (bounds[:, 0] <= world.truth) & (world.truth <= bounds[:, 1])
    return float(held.mean()), float(np.median(bounds[:, 1] - bounds[:, 0]))


def measure_deviation(world: World) -> float:
    """Return the standard deviation of the expected score between models, points; by simulation."""
    rest = math.hypot(DIFFICULTY, TASTE)
    skills = np.random.default_rng(2).normal(0, world.skill, 20_000)
    return float(np.std([100 * NormalDist().cdf((LEVEL + skill) / rest) for skill in skills]))


def tabulate_seeds(trials: int) -> Iterator[str]:
    """Yield the table of recipes with several seeds, by lines."""
    yield f"| seeds | deviation between models | {' | '.join(INTERVALS)} |"
    yield "|---" * (2 + len(INTERVALS)) + "|"
    for skill in (0.0, 0.1, 0.2, 0.5):
        for models in (2, 3, 5, 10):
            world = World(models, skill)
            cells = [cover_recipe(world, name, trials) for name in INTERVALS]
            row = " | ".join(f"{100 * share:.0f}%, {width:.1f}" for share, width in cells)
            yield f"| {models} | {measure_deviation(world):.1f} | {row} |"


if __name__ == "__main__":
    parse_no_arguments(__doc__)
    tables = (tabulate_scores(trials=500), tabulate_correlations(trials=200), tabulate_seeds(trials=2000))
    for lines in tables:
        for line in lines:
            print(line, flush=True)
        print()
