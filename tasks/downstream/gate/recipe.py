"""Checks of the scores of one model, and of all models of a recipe over several seeds.

A recipe is all settings of a training except its seed. The score of one model partly depends on its seed, so floors,
baseline and released model are also compared with the mean over all seeds. The model to release is chosen earlier on
held-out examples; the development set has no part in that choice. The other models are files `seed-<N>.json` in a
folder, in the format of a release's scores.json. `podium sweep` also records the model (`weights_sha256`), its training
parameters (`finetune`) and its held-out figures (`held_out`). These records are trusted, as is a plain scores.json.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.core.files import read_json
from tasks.downstream.gate.released_scores import read_outcomes
from tasks.downstream.gate.verdict_text import format_figure, held_out_score, signed_figure
from tasks.downstream.scoring.metrics import Outcomes, keep_common, make_interval
from tasks.downstream.scoring.scores import Baseline, Limit, Scores
from tasks.downstream.scoring.significance import (
    ConfidenceInterval,
    PairedDifference,
    describe_power,
    interval_over_seeds,
)
from tasks.plan.named_files import require_readable
from tasks.stage.errors import InputError

HIGHEST = 100.0
"""Bound of intervals: metrics are between -100 and 100, but an interval over few seeds may be wider."""
FILE = re.compile(r"seed-(0|[1-9][0-9]{0,18})\.json")
SEED, WEIGHTS, FINETUNE, HELD_OUT = "seed", "weights_sha256", "finetune", "held_out"
"""Optional keys of a file of scores."""


@dataclass(frozen=True)
class GateCheck:
    """Result of one check: the value found and the value required."""

    name: str
    ok: bool
    found: float | str | None
    required: float | str | None
    reason: str = ""
    """Full sentence that is reported if it failed."""
    difference: Mapping[str, object] | None = None
    """Figures of a comparison in points: metric, mean, low, high, and verdict (better, worse, no difference shown)."""

    def as_values(self) -> dict[str, object]:
        """Return the check as plain values; only comparisons have a difference."""
        values = {name: value for name, value in vars(self).items() if name != "reason"}
        return {name: value for name, value in values.items() if name != "difference" or value is not None}


@dataclass(frozen=True)
class ReleasedComparison:
    """Comparison of a model or recipe with the released model on the examples that both predicted."""

    common: int
    differences: Mapping[str, ConfidenceInterval]
    """Metric -> gain over the released model, in points; of a single model with its test."""


@dataclass(frozen=True)
class ScoreEvidence:
    """Scores of a model, or mean scores of a recipe, and their differences from baseline and released model."""

    values: Mapping[str, float]
    """Every metric, percent."""
    over_baseline: ConfidenceInterval | None
    """Least gain of the leading metric over a baseline, in points; None: not checked."""
    released: ReleasedComparison | None
    """None: not checked."""
    scored_on: str
    """Sample that limits the detectable difference, for messages."""
    baseline: str = ""
    """Name of that baseline."""
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


def check_scores(task: Scores, scored: ScoreEvidence) -> list[GateCheck]:
    """Check floors, baseline and released model; see `tasks.downstream.gate.gate.decide`."""
    checks = [
        _floor(task, limit, limit.floor, scored)
        for limit in task.limits
        if limit.floor is not None or not math.isfinite(scored.values[limit.metric])
    ]
    if scored.over_baseline is not None:
        checks.append(_over_baseline(task, scored.over_baseline, scored))
    if scored.released is not None and scored.released.common:
        compared = [(number, limit) for number, limit in enumerate(task.limits) if limit.tolerated is not None]
        checks += [_no_drop(task, number, limit, scored, scored.released) for number, limit in compared]
    if scored.seeds:
        return [replace(check, name=f"recipe_{check.name}") for check in checks]
    return checks


def _floor(task: Scores, limit: Limit, floor: float | None, scored: ScoreEvidence) -> GateCheck:
    name, title = limit.metric, _title(task, limit.metric)
    value = round(scored.values[name], 4)
    if floor is None or not math.isfinite(value):
        reason = f"{title}{scored.owner} is {value}, not a score. Run evaluate again."
        return GateCheck(name, False, str(value), floor, reason)
    mean = ""
    if scored.seeds:
        each = ", ".join(f"{seed}: {scores[name]:.2f}" for seed, scores in scored.seeds.items())
        mean = f" (mean over {len(scored.seeds)} seeds: {each})"
    key = task.entry.key("gate", limit.floor_key)
    shown = f"{value:.2f}" if round(value, 2) < floor else f"{value:.4f}"  # two decimals may round to the floor
    reason = f"{title}{scored.owner} is {shown}{mean}, below the floor of {floor:g} ({key})."
    return GateCheck(name, value >= floor, value, floor, reason)


def _over_baseline(task: Scores, difference: ConfidenceInterval, scored: ScoreEvidence) -> GateCheck:
    metric, measured = task.limits[0].metric, format_points(difference) + scored.over_seeds
    score = scored.values[metric] - difference.mean
    smallest = describe_power(scored.scored_on, "a gain", difference.mean - difference.low)
    reason = (
        f"{_title(task, metric)}{scored.owner} is no better than {scored.baseline} ({score:.2f}): {measured} at "
        f"confidence {task.confidence:g}. {smallest}"
    ).rstrip()
    numbers = _describe_difference(metric, difference, difference.direction)
    required = "significantly more than 0 points"
    return GateCheck("beats_constant_answer", difference.low > 0, measured, required, reason, numbers)


def _no_drop(task: Scores, number: int, limit: Limit, scored: ScoreEvidence, released: ReleasedComparison) -> GateCheck:
    """Check for a significant drop of a metric against the released model; see PairedDifference.shows_drop."""
    name = "released_model" if number == 0 and not scored.seeds else f"released_model_{limit.metric}"
    difference = released.differences[limit.metric]
    test = difference.mcnemar if isinstance(difference, PairedDifference) else None
    examples, most = f"{released.common} {task.record}s", limit.tolerated or 0.0
    measured = f"{format_points(difference)}{scored.over_seeds} on {examples}"
    if test is not None:
        measured += (
            f", {test.first_only} lost and {test.second_only} won (McNemar's exact test: p = {test.p_value:.4g})"
        )
    smallest = describe_power(examples, "a drop", difference.high - difference.mean)
    reason = (
        f"{_title(task, limit.metric)}{scored.owner} dropped significantly against the released model: {measured} at "
        f"confidence {task.confidence:g}; {most:g} points are tolerated "
        f"({task.entry.key('gate', limit.tolerated_key)}). {smallest}"
    ).rstrip()
    fell = difference.shows_drop(most, task.confidence)
    verdict = difference.verdict(task.confidence) if isinstance(difference, PairedDifference) else difference.direction
    numbers = _describe_difference(limit.metric, difference, verdict)
    return GateCheck(name, not fell, measured, no_drop_requirement(task, limit), reason, numbers)


def check_teacher(task: Scores, teacher: ReleasedComparison) -> GateCheck:
    """Check that the leading metric is not below the teacher's by more than the tolerated drop (non-inferiority)."""
    metric, most = task.limits[0].metric, task.entry.params.gate.max_teacher_drop or 0.0
    difference = teacher.differences.get(metric, ConfidenceInterval(math.nan, math.nan, math.nan))
    measured = f"{format_points(difference)} on {teacher.common} {task.record}s"
    reason = (
        f"{_title(task, metric)} may be more than {most:g} points below the teacher's: {measured} at confidence "
        f"{task.confidence:g}; the lower bound must be at least {0 - most:g} "
        f"({task.entry.key('gate', 'max_teacher_drop')})."
    )
    if needed := difference.count_needed(most, teacher.common):
        reason += f" With this difference, up to {needed:,} {task.record}s would be needed."
    required = f"{task.metrics.titles[metric]} at most {most:g} points below the teacher's"
    numbers = _describe_difference(metric, difference, difference.direction)
    return GateCheck("teacher", difference.excludes_drop(most), measured, required, reason, numbers)


def _describe_difference(metric: str, difference: ConfidenceInterval, verdict: str) -> dict[str, object]:
    figures = round_finite({"mean": difference.mean, "low": difference.low, "high": difference.high})
    return {"metric": metric, **figures, "verdict": verdict}


def _title(task: Scores, metric: str) -> str:
    title = task.metrics.titles[metric]
    return title[:1].upper() + title[1:]


def format_points(difference: ConfidenceInterval) -> str:
    """Format a difference of percentages with its interval."""
    mean, low, high = (round(x, 4) for x in (difference.mean, difference.low, difference.high))
    return f"{mean:+.2f} points ({low:+.2f} to {high:+.2f})"


def no_drop_requirement(task: Scores, limit: Limit) -> str:
    """Return the requirement of a metric against the released model, for users."""
    return f"no significant {task.metrics.titles[limit.metric]} drop of more than {limit.tolerated or 0:g} points"


@dataclass(frozen=True)
class SeedModel:
    """One model of a recipe."""

    seed: int
    outcomes: Outcomes
    """Outcomes of every dev example."""
    held_out: tuple[str, float] | None
    """Figure on held-out examples, larger is better; None if unknown."""
    weights: str | None
    """SHA-256 of the weights; None if unknown."""


def seed_file_name(seed: int) -> str:
    """Return the file name of a seed's scores."""
    return f"seed-{seed}.json"


def read_seeds(task: Scores, examples: Mapping[str, object], folder: Path, candidate: SeedModel) -> list[SeedModel]:
    """Return the candidate and the other models of its recipe, sorted by seed.

    Args:
        folder: folder of the other models' files.

    Raises:
        InputError: there are no other models, or a file is damaged, lacks predictions, has another recipe or other
            metrics, or is of the candidate.
    """
    require_readable(folder, task.entry.key("gate", "seeds"))
    files = {path: FILE.fullmatch(path.name) for path in sorted(folder.glob("*.json"))}
    if wrong := [path.name for path, match in files.items() if match is None]:
        raise InputError(f"{folder} contains {wrong[0]}. Files of other seeds are named like {seed_file_name(43)}")
    models = [_read(task, examples, path, int(match[1])) for path, match in files.items() if match is not None]
    if not models:
        raise InputError(
            f"{folder} contains no file like {seed_file_name(43)}. Copy scores.json of other seeds there, or "
            f"set {task.entry.key('gate', 'seeds')}=null"
        )
    for other in models:
        if other.seed == candidate.seed:
            path = folder / seed_file_name(other.seed)
            raise InputError(f"{path} has seed {candidate.seed}, the seed of the candidate. Remove the file")
    every = sorted([candidate, *models], key=lambda model: model.seed)
    for first, second in combinations(every, 2):
        if first.weights is not None and first.weights == second.weights:
            raise InputError(
                f"{folder}: seeds {first.seed} and {second.seed} are the same model (SHA-256 of its weights "
                f"{first.weights}). Remove one of them"
            )
    return every


def _read(task: Scores, examples: Mapping[str, object], path: Path, seed: int) -> SeedModel:
    outcomes, recorded = read_outcomes(task, examples, path), read_json(path)
    missing = sum(int(np.isnan(rows).any(axis=1).sum()) for rows in outcomes.values())
    if missing:
        total = sum(map(len, outcomes.values()))
        raise InputError(
            f"{path} lacks predictions for {missing} of {total} dev {task.record}s. All models of a recipe need "
            "the same examples: evaluate that seed on them, or remove the file"
        )
    if recorded.get(SEED, seed) != seed:
        raise InputError(f"{path} records seed {recorded[SEED]!r:.40}. Its name must have the same seed")
    _require_recipe(task, path, recorded.get(FINETUNE))
    weights = recorded.get(WEIGHTS)
    return SeedModel(seed, outcomes, _held_out(path, recorded.get(HELD_OUT)), None if weights is None else str(weights))


def _held_out(path: Path, figures: Any) -> tuple[str, float] | None:
    if figures is None:
        return None
    try:
        return held_out_score(dict(figures))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} has invalid held-out figures ({error})") from None


def recipe_params(task: Scores) -> dict[str, object]:
    """Return the training parameters of an entry without the seed."""
    values = task.entry.params.finetune.model_dump(mode="json")
    return {name: value for name, value in values.items() if name != SEED}


def _require_recipe(task: Scores, path: Path, recorded: object) -> None:
    if recorded is None:
        return
    expected = recipe_params(task)
    theirs = recorded if isinstance(recorded, dict) else {}
    differing = [name for name in expected if theirs.get(name) != expected[name]]
    if differing:
        shown = ", ".join(f"{name} {theirs.get(name)!r:.40} instead of {expected[name]!r}" for name in differing[:5])
        raise InputError(f"{path} has another recipe: {shown} ({task.entry.key('finetune')})")


@dataclass(frozen=True)
class RecipeScores:
    """Scores of all models of a recipe."""

    own: int
    """Seed of the candidate."""
    held_out: Mapping[int, tuple[str, float] | None]
    """Held-out score by seed."""
    intervals: Mapping[str, ConfidenceInterval]
    """Metric -> mean over the seeds with its interval."""
    evidence: ScoreEvidence
    """Means over the seeds."""

    @property
    def judged_by(self) -> str | None:
        """Held-out figure that selects the model; None if it is not known for all seeds."""
        names = {None if figure is None else figure[0] for figure in self.held_out.values()}
        return names.pop() if len(names) == 1 else None


def find_least_gain(
    baselines: Sequence[Baseline], measure: Callable[[Outcomes], ConfidenceInterval]
) -> tuple[ConfidenceInterval | None, str]:
    """Return the gain with the lowest bound, and the name of its baseline: above 0 if every baseline is beaten."""
    gains = [(measure(baseline.outcomes), baseline.name) for baseline in baselines]
    return min(gains, key=lambda gain: gain[0].low, default=(None, ""))


def score_recipe(
    task: Scores,
    trained: Sequence[SeedModel],
    candidate: SeedModel,
    theirs: Outcomes | None,
    baselines: Sequence[Baseline],
) -> RecipeScores:
    """Score all models of a recipe and compare them with baselines and released model.

    Args:
        trained: two models or more.
        theirs: outcomes of the released model, NaN without a prediction; None before the first release.
        baselines: answers without the model; empty: not compared.
    """
    ours = [model.outcomes for model in trained]
    released = None
    if theirs is not None:
        common, (*kept, other) = keep_common(*ours, theirs)
        released = ReleasedComparison(common, _intervals(task, kept, other)) if common else None

    def measure_gain(without: Outcomes) -> ConfidenceInterval:
        differences = task.metrics.widen(_intervals(task, ours, without), ours, without, task.confidence)
        return differences[task.limits[0].metric]

    gain, baseline = find_least_gain(baselines, measure_gain)
    intervals = _intervals(task, ours)
    means = {name: interval.mean for name, interval in intervals.items()}
    scores = {model.seed: task.metrics.compute(model.outcomes) for model in trained}
    evidence = ScoreEvidence(means, gain, released, f"these seeds and {task.record}s", baseline, scores)
    return RecipeScores(candidate.seed, {model.seed: model.held_out for model in trained}, intervals, evidence)


def _intervals(task: Scores, ours: Sequence[Outcomes], other: Outcomes | None = None) -> dict[str, ConfidenceInterval]:
    """Return every metric's mean over the models, or its gain over another model, with intervals."""
    models = [*ours, *([] if other is None else [other])]
    measured, drawn = [task.metrics.compute(outcomes) for outcomes in models], task.metrics.resample(models)
    examples, intervals = sum(map(len, ours[0].values())), {}
    bounded = [] if other is not None else task.metrics.resample(ours, bounds=True)
    for name in measured[0]:
        scores, resampled = (np.array([row[name] for row in measured]), np.array([row[name] for row in drawn]))
        if other is not None:
            scores, resampled = scores[:-1] - scores[-1], resampled[:-1] - resampled[-1]
        intervals[name] = interval = interval_over_seeds(scores, resampled, examples, task.confidence)
        if other is None:  # the uncertainty of the examples alone, also if all seeds have everything correct
            least = make_interval(np.mean([drawn[name] for drawn in bounded], axis=0), interval.mean, task.confidence)
            low, high = min(interval.low, least.low), max(interval.high, least.high)
            intervals[name] = ConfidenceInterval(interval.mean, max(-HIGHEST, low), min(HIGHEST, high))
    return intervals


def check_recipe(task: Scores, recipe: RecipeScores) -> list[GateCheck]:
    """Check a recipe, in addition to the checks of the model itself.

    - The model has the best held-out score of all seeds, if these are known.
    - The mean over the seeds of every metric with a floor is at or above it.
    - The leading metric is significantly above the baseline: so is the lower bound of the interval over seeds and
      examples.
    - The drop against the released model is not significant: the upper bound of that interval is not below the
      tolerated drop. McNemar's test is not used here, because it compares two single models.
    """
    models = GateCheck("recipe_seeds", True, ", ".join(map(str, recipe.held_out)), "two or more")
    return [models, _check_selection(task, recipe), *check_scores(task, recipe.evidence)]


def _check_selection(task: Scores, recipe: RecipeScores) -> GateCheck:
    required = "the best held-out score of all seeds"
    if recipe.judged_by is None:
        return GateCheck("recipe_model", True, f"seed {recipe.own}; not all held-out scores are known", required)
    scores = {seed: figure[1] for seed, figure in recipe.held_out.items() if figure is not None}
    best = max(scores, key=lambda seed: scores[seed])
    own_score = scores[recipe.own]
    shown_own, shown_best = (
        format_figure(recipe.judged_by, signed_figure(recipe.judged_by, score)) for score in (own_score, scores[best])
    )
    measured = f"seed {recipe.own}, {recipe.judged_by} {shown_own}"
    reason = (
        f"The candidate is {measured} on held-out training examples, but seed {best} has {shown_best}. Run the gate "
        f"for that model, with the scores of the others in {task.entry.key('gate', 'seeds')}."
    )
    return GateCheck("recipe_model", own_score >= scores[best], measured, required, reason)


def recipe_record(task: Scores, recipe: RecipeScores) -> dict[str, object]:
    """Return the recipe for the verdict: `seeds`, each with its scores, and `recipe`, each metric over all seeds.

    The values are lists because `dvc metrics show` makes a column of every number in an object.
    """
    scores = recipe.evidence.seeds
    deviations = {name: float(np.std([row[name] for row in scores.values()], ddof=1)) for name in recipe.intervals}
    return {
        "seeds": [
            {
                "seed": seed,
                "this_model": seed == recipe.own,
                "held_out": None if figure is None else {figure[0]: signed_figure(*figure)},
                **round_finite(scores[seed]),
            }
            for seed, figure in recipe.held_out.items()
        ],
        "recipe": [
            {"metric": name, "title": task.metrics.titles[name], "confidence": task.confidence}
            | round_finite(
                {"mean": interval.mean, "deviation": deviations[name], "low": interval.low, "high": interval.high}
            )
            for name, interval in recipe.intervals.items()
        ],
        "chosen_by": recipe.judged_by,
    }


def round_finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Round values to four decimals; None stands for one that is not finite."""
    return {name: round(value, 4) if np.isfinite(value) else None for name, value in values.items()}
