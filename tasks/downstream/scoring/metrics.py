"""Metrics with intervals and slices, and paired comparison of two models.

The answers of a model become a row of quantities per example (correct or not, F1, counts, a value and its label). A
metric is a function of these rows and their weights. So every task has intervals, slices and paired comparisons,
whatever its metrics are.

The interval of a score draws random weights of the examples (the Bayesian bootstrap of Rubin 1981) and adds one
example: the worst possible for the lower bound, the best possible for the upper one. This is Gaffke's bound of the mean
of a bounded variable (Gaffke 2005, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a
nonnegative variable"; Learned-Miller and Thomas 2019, arXiv 1905.06208). For a share of correct answers it equals the
exact interval of Clopper and Pearson 1934, up to random draws. So it has a width even if all answers are correct, or
none, unlike resamples of the examples alone. The difference of two models on the same examples has the percentiles of
the paired bootstrap (Efron and Tibshirani 1993, chapter 13); against a baseline, bounds as above if these have no
width.

A single example may change a correlation by any amount, so it has another interval: that of resamples, studentized on
the scale of Fisher's z (`Metric.draw`). Affine changes of the predictions leave it as it is.

Legend: N examples, Q quantities of each, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.downstream.scoring.significance import (
    RESAMPLES,
    ConfidenceInterval,
    McNemar,
    PairedDifference,
    bootstrap_p_value,
    mcnemar_exact,
)

Array = NDArray[np.float64]
Outcomes = Mapping[str, Array]
"""Development set -> [N, Q] quantities."""
_DRAWS_AT_ONCE = 4_000_000
"""Memory limit: 32 MB of indices."""
NO_WIDTH = 1e-9
"""Width in points below which all resamples are considered equal."""


def unit_extremes(outcomes: Array) -> tuple[Array, Array]:
    """Return the extremes of quantities from 0 to 1; see `Metric.extremes`."""
    return np.zeros(outcomes.shape[1]), np.ones(outcomes.shape[1])


@dataclass(frozen=True)
class Metric:
    """Metric of a development set, in percent."""

    name: str
    title: str
    """Name for users."""
    weighted: Callable[[Array, Array], Array]
    """Returns the metric [R] of [N, Q] outcomes with weights [R, N] of the examples."""
    split: str = "dev"
    extremes: Callable[[Array], tuple[Array, Array]] = unit_extremes
    """Returns the worst and best possible example, [Q] each, for [N, Q] outcomes."""
    right: Callable[[Array], Array] | None = None
    """Returns 1 (correct) or 0 for each of [N, Q] outcomes if this metric is their mean, as for McNemar's test;
    else None."""
    correlate: Callable[[Array, Array], tuple[Array, Array]] | None = None
    """Returns the correlation [R], from -1 to 1, and the standard error of its Fisher's z, of outcomes and weights as
    for `weighted`; None for other metrics."""
    official: Callable[[Array], float] | None = None
    """Returns the metric of [N, Q] outcomes, as the official script computes it; None: with equal weights."""

    def whole(self, outcomes: Array) -> float:
        """Return the metric of [N, Q] outcomes."""
        if self.official is not None:
            return self.official(outcomes)
        return float(self.weighted(outcomes, np.ones((1, len(outcomes))))[0])

    def draw(self, outcomes: Array, weights: Array) -> Array:
        """Return draws [R] of the metric whose quantiles are the bounds of an interval.

        Those of a correlation are r(z + t e), with the Fisher's z of all examples, its standard error e, and t of each
        resample (Hall, Martin and Schucany 1989, "Better nonparametric bootstrap confidence intervals for the
        correlation coefficient", Journal of Statistical Computation and Simulation 33). Every second t is
        mirrored, which makes the interval symmetric in z; its coverage is better for skewed values (Hall 1988, "On
        symmetric bootstrap confidence intervals", Journal of the Royal Statistical Society B 50). Differences of two
        models keep the sign of t, and so what both have in common. Resamples without t, such as those of two different
        examples, have their own correlation.

        Args:
            weights: counts of each example in each resample.
        """
        if self.correlate is None:
            return self.weighted(outcomes, weights)
        whole, error = self.correlate(outcomes, np.ones((1, len(outcomes))))
        values, errors = self.correlate(outcomes, weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (np.arctanh(values) - np.arctanh(whole)) / errors
            t[1::2] *= -1
            return 100 * np.where(np.isfinite(t), np.tanh(np.arctanh(whole) + t * error), values)

    def with_extremes(self, outcomes: Array, weights: Array) -> Array:
        """Return the metric with the worst, then with the best example added, whose weights come last: [2, R]."""
        return np.stack([self.weighted(np.vstack([outcomes, extreme]), weights) for extreme in self.extremes(outcomes)])


def ratio_metric(
    name: str,
    title: str,
    above: Callable[[Array], Array],
    below: Callable[[Array], Array] = lambda rows: np.ones(len(rows)),
    *,
    empty: float = math.nan,
    **more: Any,
) -> Metric:
    """Return a metric that is a ratio of two sums over the examples, in percent.

    Args:
        above, below: return the summands [N] of numerator and denominator from [N, Q] outcomes; by default the
            denominator is the number of examples.
        empty: value if the denominator is 0.
        more: other arguments of `Metric`.
    """

    def official(outcomes: Array) -> float:
        # Sum before dividing, as SQuAD's official script does, to agree in the fourth decimal.
        total = sum(below(outcomes).tolist())
        return float(100.0 * sum(above(outcomes).tolist()) / total) if total else empty

    def weighted(outcomes: Array, weights: Array) -> Array:
        total = weights @ below(outcomes)
        rates: Array = np.full_like(total, empty)
        return np.divide(100 * (weights @ above(outcomes)), total, out=rates, where=total > 0)

    return Metric(name, title, weighted, official=official, **more)


def mean_metric(name: str, title: str, quantity: int, is_share: bool = False) -> Metric:
    """Return a metric that is the mean of a quantity from 0 to 1; `is_share`: of one that is 0 or 1."""

    def above(rows: Array) -> Array:
        return rows[:, quantity]

    return ratio_metric(name, title, above, right=above if is_share else None)


RATES = {"f1": ("F1", 2, 1, 1), "precision": ("precision", 1, 0, 1), "recall": ("recall", 1, 1, 0)}
"""Rate -> title and factors of the counts: rate = a * correct / (b * gold + c * found), in percent."""
_GROUPS_AT_ONCE = 256


def count_rates(
    count: Callable[[Array], tuple[Array, Array, Array]],
    extremes: Callable[[Array], tuple[Array, Array]],
    what: str = "",
) -> tuple[Metric, ...]:
    """Return F1, precision and recall of everything counted together; 0 if there is nothing to count.

    F1 is 2 * correct / (found + gold), the harmonic mean of precision and recall.

    Args:
        count: returns the numbers of true, found, and correct items of each example, [N] each, from [N, Q] outcomes.
        what: word before the names, such as micro; empty: none.
    """

    def rate(name: str, title: str, times: int, of_gold: int, of_found: int) -> Metric:
        def below(outcomes: Array) -> Array:
            gold, predicted, _ = count(outcomes)
            return of_gold * gold + of_found * predicted

        prefixes = (f"{what}_", f"{what} ") if what else ("", "")
        return ratio_metric(
            prefixes[0] + name,
            prefixes[1] + title,
            lambda outcomes: times * count(outcomes)[2],
            below,
            empty=0.0,
            extremes=extremes,
        )

    return tuple(rate(name, *values) for name, values in RATES.items())


@dataclass(frozen=True)
class Metrics:
    """Official metrics of a task."""

    parts: tuple[Metric, ...]
    mean: str = ""
    """Name of the mean of all metrics, if the task uses it; else empty."""

    @property
    def titles(self) -> dict[str, str]:
        """Metric -> name for users, the leading metric first: the mean, if the task uses it."""
        return ({self.mean: self.mean} if self.mean else {}) | {metric.name: metric.title for metric in self.parts}

    def for_split(self, split: str) -> Metrics:
        """Return the metrics of one development set."""
        parts = tuple(metric for metric in self.parts if metric.split == split)
        return Metrics(parts, self.mean if len(parts) > 1 else "")

    def compute(self, outcomes: Outcomes) -> dict[str, float]:
        """Return every metric in percent."""
        scores = {
            metric.name: metric.whole(outcomes[metric.split]) for metric in self.parts if metric.split in outcomes
        }
        return self._with_mean(scores)

    def resample(self, models: Sequence[Outcomes], *, bounds: bool = False) -> list[dict[str, Any]]:
        """Return every metric of several models over the same bootstrap resamples: [R] each.

        Args:
            bounds: use random weights of the examples, with the worst and then with the best example: [2, R] each; for
                correlations, only if the resamples are all equal.
        """
        generator, draw = np.random.default_rng(0), draw_weights if bounds else draw_counts
        blocks: list[dict[str, list[Array]]] = [{} for _ in models]
        for split in models[0]:
            metrics = [part for part in self.parts if part.split == split]
            for weights in draw(len(models[0][split]), RESAMPLES, generator):
                for drawn, outcomes in zip(blocks, models, strict=True):
                    for metric in metrics:
                        value = metric.with_extremes if bounds else metric.draw
                        drawn.setdefault(metric.name, []).append(value(outcomes[split], weights))
        resampled = [{name: np.concatenate(parts, axis=-1) for name, parts in drawn.items()} for drawn in blocks]
        correlations = tuple(part for part in self.parts if part.correlate) if bounds else ()
        if correlations:
            for bounded, plain in zip(resampled, Metrics(correlations).resample(models), strict=True):
                bounded |= {name: np.stack([values, values]) for name, values in plain.items() if _is_wide(values)}
        return [self._with_mean(scores) for scores in resampled]

    def _with_mean(self, scores: dict[str, Any]) -> dict[str, Any]:
        return {**scores, self.mean: sum(scores.values()) / len(scores)} if self.mean else scores

    def figures(self, outcomes: Outcomes) -> dict[str, float]:
        """Return every metric with its 95% interval, rounded to four decimals."""
        [drawn] = self.resample([outcomes], bounds=True)
        scores: dict[str, float] = {}
        for name, value in self.compute(outcomes).items():
            bounds = make_interval(drawn[name], value)
            scores |= {
                name: round(value, 4),
                f"{name}_low": round(bounds.low, 4),
                f"{name}_high": round(bounds.high, 4),
            }
        return scores

    def differences(self, first: Outcomes, second: Outcomes, confidence: float) -> dict[str, PairedDifference]:
        """Return the difference of every metric, first minus second, in points on the same examples, with its test."""
        ours, theirs = self.compute(first), self.compute(second)
        drawn = self.resample([first, second])
        differences = {}
        for name in ours:
            apart, test = drawn[0][name] - drawn[1][name], self.mcnemar(name, second, first)
            bounds = make_interval(apart, ours[name] - theirs[name], confidence)
            p_value = bootstrap_p_value(apart) if test is None else test.p_value
            differences[name] = PairedDifference(**vars(bounds), p_value=p_value, mcnemar=test)
        return differences

    def widen(
        self,
        differences: Mapping[str, ConfidenceInterval],
        models: Sequence[Outcomes],
        other: Outcomes,
        confidence: float,
        width: float = NO_WIDTH,
    ) -> dict[str, ConfidenceInterval]:
        """Return intervals of differences; those narrower than `width` get bounds, by default and for correlations
        those without a width, because all resamples are equal.

        Args:
            differences: metric -> difference of the mean of the models and the other model, on the same examples.
        """
        least = dict.fromkeys(differences, width) | {metric.name: NO_WIDTH for metric in self.parts if metric.correlate}
        narrow = {name for name, difference in differences.items() if difference.high - difference.low < least[name]}
        if not narrow:
            return dict(differences)
        *ours, theirs = self.resample([*models, other], bounds=True)
        means = {name: np.mean([scores[name] for scores in ours], axis=0) - theirs[name][::-1] for name in differences}
        return {
            name: make_interval(means[name], difference.mean, confidence) if name in narrow else difference
            for name, difference in differences.items()
        }

    def mcnemar(self, name: str, first: Outcomes, second: Outcomes) -> McNemar | None:
        """Return McNemar's exact test of the first against the second; None if the metric is not a share of correct
        answers."""
        metric = next((part for part in self.parts if part.name == name), None)
        if metric is None or metric.right is None:
            return None
        return mcnemar_exact(*(metric.right(outcomes[metric.split]) for outcomes in (first, second)))

    def compare(self, first: Outcomes, second: Outcomes, confidence: float = 0.95) -> dict[str, object]:
        """Return every metric of two models, their differences (second minus first) and McNemar's test where it
        applies, as plain values in percent with four decimals."""
        ours, theirs = self.compute(first), self.compute(second)
        comparison: dict[str, object] = {"examples": sum(map(len, first.values()))}
        for name, difference in self.differences(second, first, confidence).items():
            comparison |= {f"{name}_first": round(ours[name], 4), f"{name}_second": round(theirs[name], 4)}
            bounds = {key: round(getattr(difference, key), 4) for key in ("mean", "low", "high")}
            comparison[f"{name}_difference"] = {**bounds, "p_value": difference.p_value}
            if difference.mcnemar is not None:
                comparison[f"{name}_mcnemar"] = asdict(difference.mcnemar)
        return comparison


def keep_common(*models: Outcomes) -> tuple[int, list[Outcomes]]:
    """Return the number of examples that all models answered, and their outcomes on these; NaN marks no answer.

    The number is 0 if a development set has none.
    """
    kept = {split: ~np.isnan(np.hstack([model[split] for model in models])).any(axis=1) for split in models[0]}
    common = sum(int(keep.sum()) for keep in kept.values()) if all(keep.any() for keep in kept.values()) else 0
    return common, [{split: model[split][keep] for split, keep in kept.items()} for model in models]


def changed_answers(
    names: Sequence[str],
    answers: tuple[Sequence[object], Sequence[object]],
    outcomes: tuple[Array, Array],
    quantities: Mapping[str, int],
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield number and record of each example with different answers of two models.

    Args:
        outcomes: [N, Q] of both models.
        quantities: quantity in a record -> its column.
    """
    for number, (first, second) in enumerate(zip(*answers, strict=True)):
        if first != second:
            scores = {
                f"{model}_{quantity}": float(rows[number, column])
                for model, rows in zip(("first", "second"), outcomes, strict=True)
                for quantity, column in quantities.items()
            }
            yield number, {"id": names[number], "first": first, "second": second, **scores}


def _is_wide(drawn: Array) -> bool:
    return bool(np.ptp(np.nanquantile(drawn, [0.025, 0.975])) > NO_WIDTH)


def make_interval(drawn: Array, value: float, confidence: float = 0.95) -> ConfidenceInterval:
    """Return the central interval of resampled values, ignoring NaN, around the measured value.

    Args:
        drawn: [R], or [2, R] with the worst and with the best example.
    """
    tail = (1 - confidence) / 2
    below, above = (values[~np.isnan(values)] for values in np.broadcast_to(drawn, (2, drawn.shape[-1])))
    if math.isnan(value) or not len(below):
        return ConfidenceInterval(value, math.nan, math.nan)
    return ConfidenceInterval(value, float(np.quantile(below, tail)), float(np.quantile(above, 1 - tail)))


def draw_weights(count: int, resamples: int, generator: np.random.Generator) -> Iterator[Array]:
    """Yield blocks [<= R, N + 1] of random weights for all examples and an additional one: an unnormalized Dirichlet
    distribution."""
    block = max(1, _DRAWS_AT_ONCE // (count + 1))
    for first in range(0, resamples, block):
        yield generator.standard_exponential((min(block, resamples - first), count + 1))


def draw_counts(count: int, resamples: int, generator: np.random.Generator) -> Iterator[Array]:
    """Yield blocks [<= R, N] of counts of each example in resamples with replacement."""
    block = max(1, _DRAWS_AT_ONCE // count)
    for first in range(0, resamples, block):
        rows = min(block, resamples - first)
        drawn = generator.integers(0, count, size=(rows, count), dtype=np.int64)
        drawn += np.arange(rows)[:, None] * count
        yield np.bincount(drawn.reshape(-1), minlength=rows * count).reshape(rows, count).astype(np.float64)


@dataclass(frozen=True)
class Slice:
    """Scores of the examples with one property."""

    by: str
    """Property, such as the length of the context."""
    slice: str
    examples: int
    figures: Mapping[str, float]
    """Every metric in percent with its 95% interval, which is wide for few examples."""
    counted: str = "examples"
    """Key of the number of examples in the record."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Other counts by key in the record."""

    def record(self) -> dict[str, object]:
        return {"by": self.by, "slice": self.slice, self.counted: self.examples, **self.counts, **self.figures}


def slice_by(
    by: str,
    names: Sequence[str],
    order: Sequence[str],
    metrics: Metrics,
    split: str,
    outcomes: Array,
    counted: str = "examples",
) -> list[Slice]:
    """Return a slice for each value of a property that occurs, in the order of `order`.

    Args:
        names: value of each example.
        outcomes: [N, Q] of the examples.
    """
    members, split_metrics = np.asarray(names, dtype=object), metrics.for_split(split)
    rows = {name: outcomes[members == name] for name in order}
    return [
        Slice(by, name, len(group), split_metrics.figures({split: group}), counted)
        for name, group in rows.items()
        if len(group)
    ]


def slice_groups(
    by: str,
    names: Sequence[str],
    are_known: Sequence[bool],
    gold: Array,
    predicted: Array,
    correct: Array,
    *,
    counted: str = "examples",
    both: bool = True,
) -> list[Slice]:
    """Return a slice for each group: F1, precision and recall with their 95% intervals, in percent, and its counts.

    Args:
        are_known: True for each group that the model knows.
        gold, found, correct: numbers of true, found, and correct items by example and group, [N, groups] each.
        both: the worst example misses true items and has as many wrong ones; False: it has one of the two.
    """
    slices: list[Slice] = []
    for first in range(0, len(names), _GROUPS_AT_ONCE):
        part = slice(first, first + _GROUPS_AT_ONCE)
        counts = [array[:, part] for array in (gold, predicted, correct)]
        nonempty = np.maximum(1, (counts[0] > 0).sum(axis=0))
        size = np.where(counts[0].any(axis=0), counts[0].sum(axis=0) / nonempty, 1.0)
        blocks = [
            [*(weights[:, :-1] @ count for count in counts), weights[:, -1:] * size]
            for weights in draw_weights(len(gold), RESAMPLES, np.random.default_rng(0))
        ]
        totals = [count.sum(axis=0) for count in counts]
        drawn_true, drawn_seen, drawn_hits, added = map(np.concatenate, zip(*blocks, strict=True))
        figures: list[dict[str, float]] = [{} for _ in size]
        for name, (_, times, of_gold, of_found) in RATES.items():
            true, seen, hits = totals
            below, drawn_below = of_gold * true + of_found * seen, of_gold * drawn_true + of_found * drawn_seen
            value = np.divide(100.0 * times * hits, below, out=np.zeros(len(below)), where=below > 0)
            # The worst and the best example are added to the draws.
            missed = added * (2 if both and name == "f1" else 1)
            low = np.quantile(100 * (times * drawn_hits) / (drawn_below + missed), 0.025, axis=0)
            high = np.quantile(100 * (times * (drawn_hits + added)) / (drawn_below + times * added), 0.975, axis=0)
            keys = (name, f"{name}_low", f"{name}_high")
            for row, *bounds in zip(figures, value, low, high, strict=True):
                row |= {key: round(float(x), 4) for key, x in zip(keys, bounds, strict=True)}
        records = zip(
            names[part], are_known[part], *(total.astype(int).tolist() for total in totals), figures, strict=True
        )
        slices += [
            Slice(by, group, true, row, counted, {"found": seen, "correct": hits, "learnt": known})
            for group, known, true, seen, hits, row in records
        ]
    return slices


def label_ranges(
    sizes: Sequence[int], limits: Sequence[tuple[int, str]], above: str
) -> tuple[list[str], tuple[str, ...]]:
    """Return the range label of each size, and all labels in order."""
    names = [next((name for limit, name in limits if size <= limit), above) for size in sizes]
    return names, (*(name for _, name in limits), above)
