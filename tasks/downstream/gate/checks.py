"""What the gate asks of scores: the same of one model, and of all models of a recipe together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tasks.downstream.scoring.scores import Limit, Task
from tasks.downstream.scoring.significance import Interval, McNemar


@dataclass(frozen=True)
class Check:
    """One condition: what was found, what is required."""

    name: str
    ok: bool
    found: float | str | None
    required: float | str | None


Judged = tuple[Check, str]
"""A check, and the reason in a full sentence, which counts where the check failed."""


@dataclass(frozen=True)
class Scored:
    """What a model scored, or all models of a recipe on average, by itself and against others."""

    values: Mapping[str, float]
    """Every metric, percent."""
    over_baseline: Interval | None
    """Points by which the leading metric lies above that of the baseline; None = that is not asked."""
    over_released: Mapping[str, Interval]
    """Metric -> points by which it lies above the released model's; empty = that is not asked."""
    common: int
    """Examples that the released model answered, too."""
    scored_on: str
    """What would show smaller differences if there were more of it, in words."""
    tests: Mapping[str, McNemar] = field(default_factory=dict)
    """Metric -> McNemar's test of the released model against the candidate, where it applies."""
    seeds: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Of a recipe: seed -> the scores of its model."""

    @property
    def owner(self) -> str:
        """Whose scores they are, in words after a metric."""
        return " of the recipe" if self.seeds else ""

    @property
    def over_seeds(self) -> str:
        """What a difference was measured over beside examples, in words."""
        return f" over {len(self.seeds)} seeds" if self.seeds else ""


def score_checks(task: Task, scored: Scored) -> list[Judged]:
    """The floors, the baseline and the released model; see `tasks.downstream.gate.gate.decide`."""
    checks = [_floor(task, limit, limit.floor, scored) for limit in task.limits if limit.floor is not None]
    if scored.over_baseline is not None:
        checks.append(_over_baseline(task, scored.over_baseline, scored))
    if scored.over_released:
        limits = enumerate(task.limits)
        checks += [_no_drop(task, number, limit, scored) for number, limit in limits if limit.most is not None]
    if scored.seeds:
        return [(replace(check, name=f"recipe_{check.name}"), reason) for check, reason in checks]
    return checks


def _floor(task: Task, limit: Limit, floor: float, scored: Scored) -> Judged:
    name = limit.metric
    value = round(scored.values[name], 4)
    if not math.isfinite(value):
        reason = f"{name}{scored.owner} is {value}, which is no score; run evaluate again."
        return Check(name, False, str(value), floor), reason
    said = f"{value:.4f} is"
    if scored.seeds:
        each = ", ".join(f"{seed}: {scores[name]:.2f}" for seed, scores in scored.seeds.items())
        said = f"of the recipe, the mean over {len(scored.seeds)} seeds ({each}), is {value:.4f},"
    reason = f"{name} {said} under the floor {floor:g} ({task.entry.key('gate', limit.floor_key)})."
    return Check(name, value >= floor, value, floor), reason


def _over_baseline(task: Task, difference: Interval, scored: Scored) -> Judged:
    found = in_points(difference) + scored.over_seeds
    reason = (
        f"the {task.limits[0].metric}{scored.owner} is not significantly above that of {task.baseline}: {found} at "
        f"confidence {task.confidence:g}; the smallest gain that {scored.scored_on} could have shown is "
        f"{difference.mean - difference.low:.2f} points."
    )
    return Check("beats_constant_answer", difference.low > 0, found, "significantly more than 0 points"), reason


def _no_drop(task: Task, number: int, limit: Limit, scored: Scored) -> Judged:
    difference, test, most = scored.over_released[limit.metric], scored.tests.get(limit.metric), limit.most or 0.0
    examples = f"{scored.common} {task.record}s"
    found = f"{in_points(difference)}{scored.over_seeds} on {examples}"
    fell = not round(difference.high, 4) >= -most  # NaN, where no common example is of the metric's group
    if test is not None:
        found += f", {test.first_only} lost and {test.second_only} won (McNemar's exact test: p = {test.p_value:.4g})"
        fell = fell and test.p_value < 1 - task.confidence
    smallest = ""
    if math.isfinite(difference.high):
        least = difference.high - difference.mean
        smallest = f"; the smallest drop that {examples} could have shown is {least:.2f} points"
    reason = (
        f"{limit.metric.replace('_', ' ')}{scored.owner} fell significantly against the released model: {found} at "
        f"confidence {task.confidence:g}, tolerated are {most:g} points "
        f"({task.entry.key('gate', limit.most_key)}){smallest}."
    )
    name = "released_model" if number == 0 and not scored.seeds else f"released_model_{limit.metric}"
    return Check(name, not fell, found, no_drop_of(task, limit)), reason


def in_points(difference: Interval) -> str:
    """A difference of two percentages with its bounds."""
    mean, low, high = (round(x, 4) for x in (difference.mean, difference.low, difference.high))
    return f"{mean:+.2f} points ({low:+.2f} to {high:+.2f})"


def no_drop_of(task: Task, limit: Limit) -> str:
    """What is required of a metric against the released model."""
    return f"no significant {task.metrics.titles[limit.metric]} drop of more than {limit.most or 0:g} points"
