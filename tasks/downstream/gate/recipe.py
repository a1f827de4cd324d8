"""A recipe judged by several of its models: their mean, with the variance of training in the interval.

A recipe is all that a training is told but its seed. What a single model scores is in part luck of the seed; whether
the recipe is good, and whether it is better than the baseline or worse than the released model, is asked of
all models together. Which of them is released was settled before, by held-out examples: the development set has no
part in that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from tasks.downstream.gate.checks import Check, Judged, Scored, score_checks
from tasks.downstream.gate.recipe_words import figure_of
from tasks.downstream.gate.seeds import Trained
from tasks.downstream.scoring.metrics import Outcomes, bounded_interval
from tasks.downstream.scoring.scores import Task
from tasks.downstream.scoring.significance import Interval, interval_over_seeds

HIGHEST = 100.0
"""No metric leaves -100 to 100, as an interval of few seeds would."""


@dataclass(frozen=True)
class Recipe:
    """What all models of a recipe scored."""

    own: int
    """The seed of the model that is judged, and released if all is well."""
    seeds: tuple[int, ...]
    scores: tuple[Mapping[str, float], ...]
    """Every metric in percent, of each seed."""
    held_out: tuple[tuple[str, float] | None, ...]
    """See `tasks.downstream.gate.seeds.Trained`, of each seed."""
    intervals: Mapping[str, Interval]
    """Metric -> its mean over the seeds."""
    alike: tuple[tuple[int, int], ...]
    """Seeds whose models scored the same on every single example."""
    over_baseline: Interval | None
    """Points by which the leading metric lies above that of the baseline; None = there is none."""
    over_released: Mapping[str, Interval] | None
    """Metric -> points by which it lies above the released model's; None = there is none with examples in common."""
    common: int
    """Examples that the released model answered, too."""

    @property
    def judged_by(self) -> str | None:
        """The figure on held-out examples that chooses one of the models; None where it is not known of all."""
        names = {None if one is None else one[0] for one in self.held_out}
        return names.pop() if len(names) == 1 else None


def judge_recipe(
    task: Task, trained: Sequence[Trained], own: Trained, theirs: Outcomes | None, baseline: Any
) -> Recipe:
    """What all models of a recipe scored, by themselves and against others.

    Args:
        task: the entry, as its kind sees it.
        trained: two models or more.
        own: the one of them that is judged.
        theirs: outcomes of the released model, NaN where it answered nothing; None: there is none.
        baseline: outcomes of the best answer that needs no model; None: there is none.
    """
    ours = [one.outcomes for one in trained]
    over_released, common = None, 0
    if theirs is not None:
        both = {split: ~np.isnan(one).any(axis=1) for split, one in theirs.items()}
        common = sum(int(keep.sum()) for keep in both.values())
        if all(keep.any() for keep in both.values()):
            kept = [{split: one[split][keep] for split, keep in both.items()} for one in (*ours, theirs)]
            over_released = _intervals(task, kept[:-1], kept[-1])
    over_baseline = None
    if baseline is not None:
        found = task.metrics.widened(_intervals(task, ours, baseline), ours, baseline, task.confidence)
        over_baseline = found[task.limits[0].metric]
    return Recipe(
        own=own.seed,
        seeds=tuple(one.seed for one in trained),
        scores=tuple(task.metrics.of(one) for one in ours),
        held_out=tuple(one.held_out for one in trained),
        intervals=_intervals(task, ours),
        alike=tuple(
            (one.seed, two.seed)
            for one, two in combinations(trained, 2)
            if all(np.array_equal(rows, two.outcomes[split]) for split, rows in one.outcomes.items())
        ),
        over_baseline=over_baseline,
        over_released=over_released,
        common=common,
    )


def _intervals(task: Task, ours: Sequence[Outcomes], other: Outcomes | None = None) -> dict[str, Interval]:
    """Every metric as its mean over the models, or the points by which that exceeds the metric of another model."""
    models = [*ours, *([] if other is None else [other])]
    measured, drawn = [task.metrics.of(one) for one in models], task.metrics.resampled(models)
    examples, found = sum(map(len, ours[0].values())), {}
    bounded = [] if other is not None else task.metrics.bounded(ours)
    for name in measured[0]:
        scores, resampled = np.array([one[name] for one in measured]), np.array([one[name] for one in drawn])
        if other is not None:
            scores, resampled = scores[:-1] - scores[-1], resampled[:-1] - resampled[-1]
        found[name] = one = interval_over_seeds(scores, resampled, examples, task.confidence)
        if other is None:  # the examples alone leave that much open, also where all seeds have all right
            least = bounded_interval(np.mean([drawn[name] for drawn in bounded], axis=0), one.mean, task.confidence)
            low, high = min(one.low, least.low), max(one.high, least.high)
            found[name] = Interval(one.mean, max(-HIGHEST, low), min(HIGHEST, high))
    return found


def recipe_checks(task: Task, recipe: Recipe) -> list[Judged]:
    """What the gate asks of a recipe beside what it asks of the model itself.

    - The model has the best held-out score of all seeds, where these are known.
    - The mean over the seeds of every metric with a floor lies at or above it.
    - The leading metric is significantly above what the baseline scores: so is the lower bound of the interval over
      seeds and examples.
    - The drop against the released model is not significant: the upper bound of that interval is not below what is
      tolerated. McNemar's test has no part here: it asks whether two single models differ, and is asked of the model
      itself.
    """
    means = {name: one.mean for name, one in recipe.intervals.items()}
    seeds = dict(zip(recipe.seeds, recipe.scores, strict=True))
    over_released, scored_on = recipe.over_released or {}, f"these seeds and {task.record}s"
    scored = Scored(means, recipe.over_baseline, over_released, recipe.common, scored_on, seeds=seeds)
    return [_models(recipe), _chosen(task, recipe), *score_checks(task, scored)]


def _models(recipe: Recipe) -> Judged:
    said = ", ".join(map(str, recipe.seeds))
    if recipe.alike:
        pairs = ", ".join(f"{one} and {two}" for one, two in recipe.alike)
        said += f" ({pairs} score alike on every example: too few of them, or a model counted twice)"
    return Check("recipe_seeds", True, said, "two or more"), ""


def _chosen(task: Task, recipe: Recipe) -> Judged:
    required = "the best held-out score of all seeds"
    if recipe.judged_by is None:
        return Check("recipe_model", True, f"seed {recipe.own}; held-out scores are not known of all", required), ""
    scores = {seed: one[1] for seed, one in zip(recipe.seeds, recipe.held_out, strict=True) if one is not None}
    best = max(scores, key=lambda seed: scores[seed])
    own = scores[recipe.own]
    shown_own, shown_best = (f"{figure_of(recipe.judged_by, score):.4f}" for score in (own, scores[best]))
    found = f"seed {recipe.own}, {recipe.judged_by} {shown_own}"
    reason = (
        f"This is the model of {found} on held-out examples, and that of seed {best} has {shown_best}: let the gate "
        f"judge that one, with the scores of the others in {task.entry.key('gate', 'seeds')}."
    )
    return Check("recipe_model", own >= scores[best], found, required), reason


def recipe_record(task: Task, recipe: Recipe) -> dict[str, Any]:
    """The recipe for the verdict: `seeds`, each with its scores, and `recipe`, each metric over all of them.

    Lists, as `dvc metrics show` makes a column of every number in an object.
    """
    models = zip(recipe.seeds, recipe.scores, recipe.held_out, strict=True)
    deviations = {name: float(np.std([one[name] for one in recipe.scores], ddof=1)) for name in recipe.intervals}
    return {
        "seeds": [
            {
                "seed": seed,
                "this_model": seed == recipe.own,
                "held_out": None if one is None else {one[0]: figure_of(*one)},
                **_finite(scores),
            }
            for seed, scores, one in models
        ],
        "recipe": [
            {"metric": name, "title": task.metrics.titles[name], "confidence": task.confidence}
            | _finite({"mean": one.mean, "deviation": deviations[name], "low": one.low, "high": one.high})
            for name, one in recipe.intervals.items()
        ],
        "chosen_by": recipe.judged_by,
    }


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: round(value, 4) if np.isfinite(value) else None for name, value in values.items()}
