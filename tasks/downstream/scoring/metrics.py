"""From scores per example to metrics, their intervals, and differences between two models.

A model's answers become one row of quantities for each example (right or wrong, F1, counts, a value beside its label).
A metric is a function of these rows and of how often each is counted: once for the metric itself, as often as it was
drawn for a bootstrap. So every task has intervals, slices, and paired comparison, whatever its metrics are.

Legend: N examples, Q quantities of each, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.statistics.significance import RESAMPLES, Interval, McNemar, mcnemar_exact

Array = NDArray[np.float64]
Outcomes = Mapping[str, Array]
"""Development set -> [N, Q] quantities of every example."""
_DRAWS_AT_ONCE = 4_000_000
"""Bound on memory: 32 MB of indices."""


@dataclass(frozen=True)
class Metric:
    """A figure of a development set, in percent."""

    name: str
    title: str
    """For people."""
    whole: Callable[[Array], float]
    """The metric of [N, Q] outcomes, as the official script counts it."""
    weighted: Callable[[Array, Array], Array]
    """The metric of [N, Q] outcomes where example n counts weights[r, n] times: [R]."""
    split: str = "dev"
    right: int | None = None
    """The quantity that is 1 (right) or 0 (wrong) and whose mean this is, so that McNemar's test applies."""


def mean_of(quantity: int) -> Callable[[Array], float]:
    """`Metric.whole` of a quantity from 0 to 1."""

    def whole(outcomes: Array) -> float:
        # sum before dividing, as the official script of SQuAD does: the fourth decimal agrees.
        return float(100.0 * sum(outcomes[:, quantity].tolist()) / len(outcomes))

    return whole


def weighted_mean_of(quantity: int) -> Callable[[Array, Array], Array]:
    """`Metric.weighted` of a quantity from 0 to 1."""

    def weighted(outcomes: Array, weights: Array) -> Array:
        found: Array = 100 * (weights @ outcomes[:, quantity]) / weights.sum(axis=1)
        return found

    return weighted


@dataclass(frozen=True)
class Group:
    """The examples for which a quantity that they state has a value."""

    quantity: int
    value: float

    def mean_of(self, quantity: int) -> Callable[[Array], float]:
        """`Metric.whole` of a quantity from 0 to 1 among these; NaN where there are none."""

        def whole(outcomes: Array) -> float:
            members = outcomes[outcomes[:, self.quantity] == self.value]
            return mean_of(quantity)(members) if len(members) else math.nan

        return whole

    def weighted_mean_of(self, quantity: int) -> Callable[[Array, Array], Array]:
        """`Metric.weighted` of the same; NaN where none of them was drawn."""

        def weighted(outcomes: Array, weights: Array) -> Array:
            members = outcomes[:, self.quantity] == self.value
            drawn = weights[:, members]
            counted = drawn.sum(axis=1)
            found: Array = 100 * (drawn @ outcomes[members, quantity]) / np.where(counted, counted, math.nan)
            return found

        return weighted


@dataclass(frozen=True)
class Metrics:
    """The official metrics of a task."""

    parts: tuple[Metric, ...]
    mean: str = ""
    """Name of the mean of all parts, where that is what the task is judged by."""

    @property
    def titles(self) -> dict[str, str]:
        """Name -> what people call it, the mean last."""
        return {one.name: one.title for one in self.parts} | ({self.mean: self.mean} if self.mean else {})

    def only(self, split: str) -> Metrics:
        """Those of one development set."""
        parts = tuple(one for one in self.parts if one.split == split)
        return Metrics(parts, self.mean if len(parts) > 1 else "")

    def of(self, outcomes: Outcomes) -> dict[str, float]:
        """Every metric by name, percent."""
        found = {one.name: one.whole(outcomes[one.split]) for one in self.parts if one.split in outcomes}
        return self._with_mean(found)

    def resampled(self, models: Sequence[Outcomes], resamples: int = RESAMPLES, seed: int = 0) -> list[dict[str, Any]]:
        """Every metric of several models over the same resamples of the same examples: [R] each."""
        generator = np.random.default_rng(seed)
        found: list[dict[str, list[Array]]] = [{} for _ in models]
        for split in models[0]:
            here = [one for one in self.parts if one.split == split]
            for weights in drawn_counts(len(models[0][split]), resamples, generator):
                for drawn, outcomes in zip(found, models, strict=True):
                    for one in here:
                        drawn.setdefault(one.name, []).append(one.weighted(outcomes[split], weights))
        return [self._with_mean({name: np.concatenate(parts) for name, parts in drawn.items()}) for drawn in found]

    def _with_mean(self, found: dict[str, Any]) -> dict[str, Any]:
        return {**found, self.mean: sum(found.values()) / len(found)} if self.mean else found

    def figures(self, outcomes: Outcomes) -> dict[str, float]:
        """Every metric with the bounds of its 95% bootstrap interval, four decimals."""
        [drawn] = self.resampled([outcomes])
        found: dict[str, float] = {}
        for name, value in self.of(outcomes).items():
            bounds = interval(drawn[name], value)
            found |= {name: round(value, 4), f"{name}_low": round(bounds.low, 4), f"{name}_high": round(bounds.high, 4)}
        return found

    def differences(self, first: Outcomes, second: Outcomes, confidence: float) -> dict[str, Interval]:
        """By how many points every metric of the first exceeds that of the second, on the same examples."""
        ours, theirs = self.of(first), self.of(second)
        drawn = self.resampled([first, second])
        return {name: interval(drawn[0][name] - drawn[1][name], ours[name] - theirs[name], confidence) for name in ours}

    def mcnemar(self, name: str, first: Outcomes, second: Outcomes) -> McNemar | None:
        """McNemar's exact test of the first against the second; None of a metric that is no share of right ones."""
        one = next((metric for metric in self.parts if metric.name == name), None)
        if one is None or one.right is None:
            return None
        ours, theirs = (outcomes[one.split][:, one.right].tolist() for outcomes in (first, second))
        return mcnemar_exact(ours, theirs)


def interval(drawn: Array, value: float, confidence: float = 0.95) -> Interval:
    """The central interval of resampled values, those that are NaN left out, around what was measured."""
    tail, known = (1 - confidence) / 2, drawn[~np.isnan(drawn)]
    low, high = (float(x) for x in np.quantile(known, (tail, 1 - tail))) if len(known) else (math.nan, math.nan)
    return Interval(value, low, high)


def drawn_counts(count: int, resamples: int, generator: np.random.Generator) -> Iterator[Array]:
    """Blocks [some R, N] of how often each example is drawn, with replacement, in resamples of all."""
    block = max(1, _DRAWS_AT_ONCE // count)
    for first in range(0, resamples, block):
        rows = min(block, resamples - first)
        drawn = generator.integers(0, count, size=(rows, count), dtype=np.int64)
        drawn += np.arange(rows)[:, None] * count
        yield np.bincount(drawn.reshape(-1), minlength=rows * count).reshape(rows, count).astype(np.float64)
