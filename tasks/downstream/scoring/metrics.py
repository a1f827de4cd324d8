"""From scores per example to metrics, their intervals and slices, and differences between two models.

A model's answers become one row of quantities for each example (right or wrong, F1, counts, a value beside its label).
A metric is a function of these rows and of how much each counts. So every task has intervals, slices, and paired
comparison, whatever its metrics are.

The interval of a score draws random weights of the examples (the Bayesian bootstrap of Rubin 1981) and counts one more
example: the worst there could be for the lower bound, the best for the upper one. This is Gaffke's bound of the mean of
a bounded variable (Gaffke 2005, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a
nonnegative variable"; Learned-Miller and Thomas 2019, arXiv 1905.06208). Of a share of right answers it is the exact
interval of Clopper and Pearson 1934, but for the draws. So it has a width where all answers are right, or none, which
resamples of the examples alone do not have. The difference of two models on the same examples has the percentiles of
the paired bootstrap (Efron and Tibshirani 1993, chapter 13); against a baseline bounds as above where these have no
width.

Legend: N examples, Q quantities of each, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.downstream.scoring.significance import RESAMPLES, Interval, McNemar, mcnemar_exact

Array = NDArray[np.float64]
Outcomes = Mapping[str, Array]
"""Development set -> [N, Q] quantities of every example."""
_DRAWS_AT_ONCE = 4_000_000
"""Bound on memory: 32 MB of indices."""
NO_WIDTH = 1e-9
"""Points; an interval as narrow as this comes of resamples that are all alike."""


def all_or_nothing(outcomes: Array) -> tuple[Array, Array]:
    """`Metric.extremes` of quantities from 0 to 1."""
    return np.zeros(outcomes.shape[1]), np.ones(outcomes.shape[1])


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
    extremes: Callable[[Array], tuple[Array, Array]] = all_or_nothing
    """The worst and the best example that there could be among [N, Q] outcomes: [Q] each."""
    right: int | None = None
    """The quantity that is 1 (right) or 0 (wrong) and whose mean this is, so that McNemar's test applies."""

    def with_extremes(self, outcomes: Array, weights: Array) -> Array:
        """`weighted` with the worst, then with the best example, whose weights stand last: [2, R]."""
        return np.stack([self.weighted(np.vstack([outcomes, one]), weights) for one in self.extremes(outcomes)])


def ratio_metric(
    name: str,
    title: str,
    above: Callable[[Array], Array],
    below: Callable[[Array], Array],
    *,
    empty: float = math.nan,
    **more: Any,
) -> Metric:
    """A sum over the examples as a percentage of another sum.

    Args:
        above, below: return what each example adds to the sums, [N] of [N, Q] outcomes.
        empty: the metric where the lower sum is 0.
        more: other arguments of `Metric`.
    """

    def whole(outcomes: Array) -> float:
        # sum before dividing, as the official script of SQuAD does: the fourth decimal agrees.
        total = sum(below(outcomes).tolist())
        return float(100.0 * sum(above(outcomes).tolist()) / total) if total else empty

    def weighted(outcomes: Array, weights: Array) -> Array:
        total = weights @ below(outcomes)
        found: Array = np.full_like(total, empty)
        return np.divide(100 * (weights @ above(outcomes)), total, out=found, where=total > 0)

    return Metric(name, title, whole, weighted, **more)


def mean_metric(name: str, title: str, quantity: int, right: int | None = None) -> Metric:
    """The mean of a quantity from 0 to 1; the other arguments are those of `Metric`."""
    return ratio_metric(name, title, lambda rows: rows[:, quantity], lambda rows: np.ones(len(rows)), right=right)


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
        return self._draw(models, drawn_counts, lambda one, *drawn: one.weighted(*drawn), resamples, seed)

    def bounded(self, models: Sequence[Outcomes], resamples: int = RESAMPLES, seed: int = 0) -> list[dict[str, Any]]:
        """Every metric of several models over the same random weights, with the worst and the best example: [2, R]."""
        return self._draw(models, drawn_weights, Metric.with_extremes, resamples, seed)

    def _draw(
        self,
        models: Sequence[Outcomes],
        draw: Callable[[int, int, np.random.Generator], Iterator[Array]],
        value: Callable[[Metric, Array, Array], Array],
        resamples: int,
        seed: int,
    ) -> list[dict[str, Any]]:
        generator = np.random.default_rng(seed)
        found: list[dict[str, list[Array]]] = [{} for _ in models]
        for split in models[0]:
            here = [one for one in self.parts if one.split == split]
            for weights in draw(len(models[0][split]), resamples, generator):
                for drawn, outcomes in zip(found, models, strict=True):
                    for one in here:
                        drawn.setdefault(one.name, []).append(value(one, outcomes[split], weights))
        return [
            self._with_mean({name: np.concatenate(parts, axis=-1) for name, parts in drawn.items()}) for drawn in found
        ]

    def _with_mean(self, found: dict[str, Any]) -> dict[str, Any]:
        return {**found, self.mean: sum(found.values()) / len(found)} if self.mean else found

    def figures(self, outcomes: Outcomes) -> dict[str, float]:
        """Every metric with the bounds of its 95% interval, four decimals."""
        [drawn] = self.bounded([outcomes])
        found: dict[str, float] = {}
        for name, value in self.of(outcomes).items():
            bounds = bounded_interval(drawn[name], value)
            found |= {name: round(value, 4), f"{name}_low": round(bounds.low, 4), f"{name}_high": round(bounds.high, 4)}
        return found

    def differences(self, first: Outcomes, second: Outcomes, confidence: float) -> dict[str, Interval]:
        """By how many points every metric of the first exceeds that of the second, on the same examples."""
        ours, theirs = self.of(first), self.of(second)
        drawn = self.resampled([first, second])
        return {name: interval(drawn[0][name] - drawn[1][name], ours[name] - theirs[name], confidence) for name in ours}

    def widened(
        self, found: Mapping[str, Interval], models: Sequence[Outcomes], other: Outcomes, confidence: float
    ) -> dict[str, Interval]:
        """Intervals of differences, with bounds where resamples that are all alike left an interval without a width.

        Args:
            found: metric -> the points by which the mean of the models exceeds the other one.
            models: outcomes of each.
            other: outcomes on the same examples.
            confidence: mass of the central interval.
        """
        if not any(one.high - one.low < NO_WIDTH for one in found.values()):
            return dict(found)
        *ours, theirs = self.bounded([*models, other])
        means = {name: np.mean([one[name] for one in ours], axis=0) - theirs[name][::-1] for name in found}
        return {
            name: bounded_interval(means[name], one.mean, confidence) if one.high - one.low < NO_WIDTH else one
            for name, one in found.items()
        }

    def mcnemar(self, name: str, first: Outcomes, second: Outcomes) -> McNemar | None:
        """McNemar's exact test of the first against the second; None of a metric that is no share of right ones."""
        one = next((metric for metric in self.parts if metric.name == name), None)
        if one is None or one.right is None:
            return None
        ours, theirs = (outcomes[one.split][:, one.right].tolist() for outcomes in (first, second))
        return mcnemar_exact(ours, theirs)

    def compare(self, first: Outcomes, second: Outcomes, confidence: float = 0.95) -> dict[str, Any]:
        """Every metric of two models on the same examples, by how many points the second is better, and McNemar's test
        where it applies; plain values, percent with four decimals."""
        ours, theirs = self.of(first), self.of(second)
        found: dict[str, Any] = {"examples": sum(map(len, first.values()))}
        for name, difference in self.differences(second, first, confidence).items():
            found |= {f"{name}_first": round(ours[name], 4), f"{name}_second": round(theirs[name], 4)}
            found[f"{name}_difference"] = {key: round(value, 4) for key, value in asdict(difference).items()}
            if (test := self.mcnemar(name, first, second)) is not None:
                found[f"{name}_mcnemar"] = asdict(test)
        return found


def changed_answers(
    names: Sequence[str],
    answers: tuple[Sequence[Any], Sequence[Any]],
    outcomes: tuple[Array, Array],
    quantities: Mapping[str, int],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and record of each example that two models answer differently.

    Args:
        names: how people find each example.
        answers: of the first and of the second model.
        outcomes: [N, Q] of both.
        quantities: those that a record states -> their columns.
    """
    for number, (first, second) in enumerate(zip(*answers, strict=True)):
        if first != second:
            scores = {
                f"{model}_{quantity}": float(rows[number, column])
                for model, rows in zip(("first", "second"), outcomes, strict=True)
                for quantity, column in quantities.items()
            }
            yield number, {"id": names[number], "first": first, "second": second, **scores}


def interval(drawn: Array, value: float, confidence: float = 0.95) -> Interval:
    """The central interval of resampled values, those that are NaN left out, around what was measured."""
    tail, known = (1 - confidence) / 2, drawn[~np.isnan(drawn)]
    low, high = (float(x) for x in np.quantile(known, (tail, 1 - tail))) if len(known) else (math.nan, math.nan)
    return Interval(value, low, high)


def bounded_interval(drawn: Array, value: float, confidence: float = 0.95) -> Interval:
    """The interval of what was measured, from its values with the worst and with the best example: [2, R]."""
    if math.isnan(value):
        return Interval(value, math.nan, math.nan)
    tail = (1 - confidence) / 2
    return Interval(value, float(np.quantile(drawn[0], tail)), float(np.quantile(drawn[1], 1 - tail)))


def drawn_weights(count: int, resamples: int, generator: np.random.Generator) -> Iterator[Array]:
    """Blocks [some R, N + 1] of random weights of all examples and one more: of Dirichlet's distribution, but for their
    sum."""
    block = max(1, _DRAWS_AT_ONCE // (count + 1))
    for first in range(0, resamples, block):
        yield generator.standard_exponential((min(block, resamples - first), count + 1))


def drawn_counts(count: int, resamples: int, generator: np.random.Generator) -> Iterator[Array]:
    """Blocks [some R, N] of how often each example is drawn, with replacement, in resamples of all."""
    block = max(1, _DRAWS_AT_ONCE // count)
    for first in range(0, resamples, block):
        rows = min(block, resamples - first)
        drawn = generator.integers(0, count, size=(rows, count), dtype=np.int64)
        drawn += np.arange(rows)[:, None] * count
        yield np.bincount(drawn.reshape(-1), minlength=rows * count).reshape(rows, count).astype(np.float64)


@dataclass(frozen=True)
class Slice:
    """Scores of the examples that have one property."""

    by: str
    """The property, such as the length of the context."""
    slice: str
    examples: int
    figures: Mapping[str, float]
    """Every metric in percent, with the bounds of its 95% interval; wide where the examples are few."""
    counted: str = "examples"
    """What the record calls their number."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Other numbers of them, by their names in the record."""

    def record(self) -> dict[str, Any]:
        return {"by": self.by, "slice": self.slice, self.counted: self.examples, **self.counts, **self.figures}


def by_name(
    by: str,
    names: Sequence[str],
    order: Sequence[str],
    metrics: Metrics,
    split: str,
    outcomes: Array,
    counted: str = "examples",
) -> list[Slice]:
    """A slice for each name of a property that some example has, in the order given.

    Args:
        names: of each example.
        outcomes: [N, Q] of the examples.
        counted: see `Slice`.
    """
    members, here = np.asarray(names, dtype=object), metrics.only(split)
    rows = {name: outcomes[members == name] for name in order}
    return [
        Slice(by, name, len(some), here.figures({split: some}), counted) for name, some in rows.items() if len(some)
    ]


def sized(sizes: Sequence[int], limits: Sequence[tuple[int, str]], above: str) -> tuple[list[str], tuple[str, ...]]:
    """The name of each size, by the first limit that holds it, and all names in order."""
    names = [next((name for limit, name in limits if size <= limit), above) for size in sizes]
    return names, (*(name for _, name in limits), above)
