"""How often intervals hold what a recipe scores on average: the table of docs/evaluation.md.

python -m tests.tasks.downstream.scoring.seed_coverage

A simulated world: each example has a difficulty, each model of the recipe a skill that its seed gave it, and both
together a taste. A model has an example right where their sum lies above zero. What the recipe scores over all seeds
and all examples is known in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tasks.downstream.scoring.metrics import draw_counts
from tasks.downstream.scoring.significance import interval_over_seeds

Array = NDArray[np.float64]
LEVEL, DIFFICULTY, TASTE = 1.2, 1.5, 0.7
"""Of all models; standard deviations of examples, and of examples for single models."""
CONFIDENCE = 0.95
TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class World:
    """Trainings that are simulated."""

    models: int
    skill: float
    """Standard deviation between models."""
    examples: int = 500

    @property
    def truth(self) -> float:
        """What the recipe scores on average, percent."""
        return 100 * NormalDist().cdf(LEVEL / math.hypot(DIFFICULTY, self.skill, TASTE))

    def trainings(self, generator: np.random.Generator) -> Array:
        """Right (100) or wrong (0) of every model on every example, [K, N]."""
        skills = generator.normal(0, self.skill, (self.models, 1))
        tastes = generator.normal(0, TASTE, (self.models, self.examples))
        found: Array = 100.0 * (LEVEL + generator.normal(0, DIFFICULTY, self.examples) + skills + tastes > 0)
        return found


def one_model(measured: Array, drawn: Array, examples: int) -> tuple[float, float]:
    """The interval over examples of a single model."""
    low, high = np.quantile(drawn[0], TAILS)
    return float(low), float(high)


def bootstrap_of_both(measured: Array, drawn: Array, examples: int) -> tuple[float, float]:
    """Percentiles of a bootstrap that draws models, then examples."""
    models, resamples = drawn.shape
    taken = np.random.default_rng(1).integers(0, models, (models, resamples))
    low, high = np.quantile(np.take_along_axis(drawn, taken, axis=0).mean(axis=0), TAILS)
    return float(low), float(high)


def over_seeds(measured: Array, drawn: Array, examples: int) -> tuple[float, float]:
    """The gate's."""
    found = interval_over_seeds(measured, drawn, examples, CONFIDENCE)
    return found.low, found.high


INTERVALS: dict[str, Callable[[Array, Array, int], tuple[float, float]]] = {
    "one model, examples alone": one_model,
    "bootstrap of models and examples": bootstrap_of_both,
    "the gate's": over_seeds,
}


def coverage(world: World, name: str, trials: int, resamples: int = 400, seed: int = 0) -> tuple[float, float]:
    """The share of simulated trainings whose interval holds the truth, and the median width of it in points."""
    generator = np.random.default_rng(seed)
    # The same resamples serve all trials, whose examples are new each time.
    weights = np.concatenate([*draw_counts(world.examples, resamples, generator)]) / world.examples
    found = []
    for _ in range(trials):
        right = world.trainings(generator)
        found.append(INTERVALS[name](right.mean(axis=1), right @ weights.T, world.examples))
    bounds = np.array(found)
    held = (bounds[:, 0] <= world.truth) & (world.truth <= bounds[:, 1])
    return float(held.mean()), float(np.median(bounds[:, 1] - bounds[:, 0]))


def deviation(world: World) -> float:
    """Standard deviation of the expected score between models, points; by simulation."""
    rest = math.hypot(DIFFICULTY, TASTE)
    skills = np.random.default_rng(2).normal(0, world.skill, 20_000)
    return float(np.std([100 * NormalDist().cdf((LEVEL + skill) / rest) for skill in skills]))


def table(trials: int) -> Iterator[str]:
    """The table of docs/evaluation.md, line by line; the page leaves out rows that show the same again."""
    yield f"| seeds | deviation between models | {' | '.join(INTERVALS)} |"
    yield "|---" * (2 + len(INTERVALS)) + "|"
    for skill in (0.0, 0.1, 0.2, 0.5):
        for models in (2, 3, 5, 10):
            world = World(models, skill)
            cells = [coverage(world, name, trials) for name in INTERVALS]
            said = " | ".join(f"{100 * share:.0f}%, {width:.1f}" for share, width in cells)
            yield f"| {models} | {deviation(world):.1f} | {said} |"


if __name__ == "__main__":
    for line in table(trials=2000):
        print(line, flush=True)
