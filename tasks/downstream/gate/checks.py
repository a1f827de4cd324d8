"""Checks of scores, for one model and for all models of a recipe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tasks.downstream.scoring.scores import AnyScores, Limit
from tasks.downstream.scoring.significance import ConfidenceInterval, McNemar


@dataclass(frozen=True)
class GateCheck:
    """Result of one check: the value found and the value required."""

    name: str
    ok: bool
    found: float | str | None
    required: float | str | None


ReasonedCheck = tuple[GateCheck, str]
"""A check and the reason, a full sentence, that is reported if it failed."""


@dataclass(frozen=True)
class ScoreEvidence:
    """Scores of a model, or mean scores of a recipe, and their differences from baseline and released model."""

    values: Mapping[str, float]
    """Every metric, percent."""
    over_baseline: ConfidenceInterval | None
    """Gain of the leading metric over the baseline, in points; None: not checked."""
    over_released: Mapping[str, ConfidenceInterval]
    """Metric -> gain over the released model, in points; empty: not checked."""
    common: int
    """Number of examples that the released model also predicted."""
    scored_on: str
    """Sample that limits the detectable difference, for messages."""
    tests: Mapping[str, McNemar] = field(default_factory=dict)
    """Metric -> McNemar's test of the released model against the candidate, if it applies."""
    seeds: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Scores of a recipe by seed."""

    @property
    def owner(self) -> str:
        """Suffix of a metric's name in messages."""
        return " of the recipe" if self.seeds else ""

    @property
    def over_seeds(self) -> str:
        """Suffix of a difference in messages."""
        return f" over {len(self.seeds)} seeds" if self.seeds else ""


def check_scores(task: AnyScores, scored: ScoreEvidence) -> list[ReasonedCheck]:
    """Check floors, baseline and released model; see `tasks.downstream.gate.gate.decide`."""
    checks = [_floor(task, limit, limit.floor, scored) for limit in task.limits if limit.floor is not None]
    if scored.over_baseline is not None:
        checks.append(_over_baseline(task, scored.over_baseline, scored))
    if scored.over_released:
        limits = enumerate(task.limits)
        checks += [_no_drop(task, number, limit, scored) for number, limit in limits if limit.tolerated is not None]
    if scored.seeds:
        return [(replace(check, name=f"recipe_{check.name}"), reason) for check, reason in checks]
    return checks


def _floor(task: AnyScores, limit: Limit, floor: float, scored: ScoreEvidence) -> ReasonedCheck:
    name, title = limit.metric, _title(task, limit.metric)
    value = round(scored.values[name], 4)
    if not math.isfinite(value):
        reason = f"{title}{scored.owner} is {value}, not a score. Run evaluate again."
        return GateCheck(name, False, str(value), floor), reason
    mean = ""
    if scored.seeds:
        each = ", ".join(f"{seed}: {scores[name]:.2f}" for seed, scores in scored.seeds.items())
        mean = f" (mean over {len(scored.seeds)} seeds: {each})"
    key = task.entry.key("gate", limit.floor_key)
    reason = f"{title}{scored.owner} is {value:g}{mean}, below the floor of {floor:g} ({key})."
    return GateCheck(name, value >= floor, value, floor), reason


def _over_baseline(task: AnyScores, difference: ConfidenceInterval, scored: ScoreEvidence) -> ReasonedCheck:
    metric, found = task.limits[0].metric, format_points(difference) + scored.over_seeds
    score = scored.values[metric] - difference.mean
    reason = (
        f"{_title(task, metric)}{scored.owner} is no better than {task.baseline} ({score:.2f}): {found} at confidence "
        f"{task.confidence:g}.{_detectable(scored.scored_on, 'gains', difference.mean - difference.low)}"
    )
    return GateCheck("beats_constant_answer", difference.low > 0, found, "significantly more than 0 points"), reason


def _no_drop(task: AnyScores, number: int, limit: Limit, scored: ScoreEvidence) -> ReasonedCheck:
    difference, test, most = scored.over_released[limit.metric], scored.tests.get(limit.metric), limit.tolerated or 0.0
    examples = f"{scored.common} {task.record}s"
    found = f"{format_points(difference)}{scored.over_seeds} on {examples}"
    fell = not round(difference.high, 4) >= -most  # NaN if no common example is in the metric's group
    if test is not None:
        found += f", {test.first_only} lost and {test.second_only} won (McNemar's exact test: p = {test.p_value:.4g})"
        fell = fell and test.p_value < 1 - task.confidence
    smallest = _detectable(examples, "drops", difference.high - difference.mean)
    reason = (
        f"{_title(task, limit.metric)}{scored.owner} dropped significantly against the released model: {found} at "
        f"confidence {task.confidence:g}; {most:g} points are tolerated "
        f"({task.entry.key('gate', limit.tolerated_key)}).{smallest}"
    )
    name = "released_model" if number == 0 and not scored.seeds else f"released_model_{limit.metric}"
    return GateCheck(name, not fell, found, no_drop_requirement(task, limit)), reason


def _title(task: AnyScores, metric: str) -> str:
    title = task.metrics.titles[metric]
    return title[:1].upper() + title[1:]


def _detectable(sample: str, what: str, points: float) -> str:
    """Return the smallest detectable difference as a sentence; empty if there is nothing to say."""
    return (
        f" {sample[:1].upper()}{sample[1:]} can detect {what} of {points:.2f} points or more."
        if round(points, 2) > 0
        else ""
    )


def format_points(difference: ConfidenceInterval) -> str:
    """Format a difference of percentages with its interval."""
    mean, low, high = (round(x, 4) for x in (difference.mean, difference.low, difference.high))
    return f"{mean:+.2f} points ({low:+.2f} to {high:+.2f})"


def no_drop_requirement(task: AnyScores, limit: Limit) -> str:
    """Return the requirement of a metric against the released model, for users."""
    return f"no significant {task.metrics.titles[limit.metric]} drop of more than {limit.tolerated or 0:g} points"
