"""Evidence for the gate, read from the files of earlier stages."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.files import find_object
from tasks.downstream.gate.recipe import RecipeScores, SeedModel, read_seeds, score_recipe
from tasks.downstream.gate.released_scores import mark_unanswered, read_released_outcomes
from tasks.downstream.gate.subject import ReleaseSubject
from tasks.downstream.gate.verdict_text import held_out_score
from tasks.downstream.scoring.metrics import Outcomes
from tasks.downstream.scoring.scores import AnyScores
from tasks.downstream.scoring.significance import ConfidenceInterval, McNemar
from tasks.plan.named_files import require_readable
from tasks.stage import artifacts
from tasks.stage.errors import InputError

COUNTED_ALIKE = 1e-3
"""Tolerance in percent: scores have four decimals, and hosts may differ in the last one."""


@dataclass(frozen=True)
class ReleasedComparison:
    """Comparison of the candidate with the released model on the examples that both predicted."""

    common: int
    differences: Mapping[str, ConfidenceInterval]
    """Metric -> gain of the candidate, in points."""
    tests: Mapping[str, McNemar]
    """Metric -> McNemar's test of the released model against the candidate, if it applies."""


@dataclass(frozen=True)
class Evidence:
    """Evidence for a decision."""

    scores: Mapping[str, float]
    """Every metric, percent."""
    examples: int
    answered: int
    """Number of examples with a prediction."""
    scores_belong: bool
    """True if the scores were computed from the current predictions and weights."""
    verdicts: Mapping[str, bool | None]
    """Data set -> valid; None: no readable verdict."""
    trainings: Mapping[str, Mapping[str, Any] | None]
    """Training -> its metrics; None: not readable."""
    over_baseline: ConfidenceInterval | None = None
    """Gain of the leading metric over the baseline, in points; None: not checked."""
    released: ReleasedComparison | None = None
    """None before the first release."""
    recipe: RecipeScores | None = None
    """Scores of all models of the recipe; None without other seeds."""


def gather_evidence(
    task: AnyScores,
    subject: ReleaseSubject,
    released: Path,
    hashes: Mapping[str, str | None],
    root: Path = Path(),
    seeds: Path | None = None,
) -> Evidence:
    """Read the evidence of the checkout `root`.

    A missing verdict or training becomes part of the evidence and fails its check, so that one decision names every
    problem. Without scores, examples or predictions there is nothing to decide. Scores are computed from the
    predictions and must agree with the metrics file.

    Args:
        released: folder of the released model's scores.json or predictions.json; empty before the first release.
        hashes: SHA-256 of the files by path in the checkout.
        seeds: folder with the scores of other seeds of the recipe; None: evaluate this model alone.

    Raises:
        InputError: metrics, examples, predictions or the scores of another seed are missing or damaged, or the metrics
            disagree with the predictions.
    """
    scored_files = (str(subject.predictions), str(subject.model / "model.safetensors"))
    metrics = _scores(task, root / subject.metrics, scored_files)
    task.restore_baseline(metrics, root / subject.metrics)
    examples = task.read_all(root)
    baseline = task.baseline_outcomes(examples) if task.entry.params.gate.above_baseline else None
    predictions = task.read_predictions(root / subject.predictions, examples)
    belong = all(one["sha256"] == hashes[one["path"]] for one in metrics["files"] if one["path"] in scored_files)
    outcomes = task.outcomes_of(examples, predictions)
    task.verify_decisions(metrics, predictions, root)
    if belong:  # otherwise the check of hashes reports it
        verify_scores(root / subject.metrics, metrics, task.figures(examples, outcomes), subject.stages["evaluate"])
    if os.path.lexists(root / released):  # a lost link is not "none released"
        require_readable(root / released, task.entry.key("gate", "released"))
    theirs = read_released_outcomes(task, examples, root / released / subject.released)
    own = _read_judged_model(task, subject, outcomes, hashes, root)
    trained = None if seeds is None else read_seeds(task, examples, root / seeds, own)
    return Evidence(
        scores={name: round(value, 4) for name, value in task.metrics.compute(outcomes).items()},
        examples=sum(map(len, outcomes.values())),
        answered=sum(one is not None for split in predictions.values() for one in split),
        scores_belong=belong,
        verdicts={name: read_verdict(root / artifacts.validation_report(name), name) for name in subject.verdicts},
        trainings={name: find_object(root / artifacts.METRICS / f"{name}.json") for name in subject.trainings},
        over_baseline=_over_baseline(task, outcomes, baseline),
        released=None if theirs is None else compare_released(task, mark_unanswered(outcomes, predictions), theirs),
        recipe=None if trained is None else score_recipe(task, trained, own, theirs, baseline),
    )


def _over_baseline(task: AnyScores, outcomes: Outcomes, baseline: Outcomes | None) -> ConfidenceInterval | None:
    if baseline is None:
        return None
    found = task.metrics.differences(outcomes, baseline, task.confidence)
    return task.metrics.widen(found, [outcomes], baseline, task.confidence)[task.limits[0].metric]


def _read_judged_model(
    task: AnyScores, subject: ReleaseSubject, outcomes: Outcomes, hashes: Mapping[str, str | None], root: Path
) -> SeedModel:
    figures = find_object(root / artifacts.METRICS / f"{subject.trainings[-1]}.json") or {}
    try:
        held_out = held_out_score(figures["held_out"])
    except (KeyError, ValueError, TypeError, AttributeError):
        held_out = None
    weights = hashes[str(subject.model / "model.safetensors")]
    return SeedModel(task.entry.params.finetune.seed, outcomes, held_out, weights)


def compare_released(task: AnyScores, ours: Outcomes, theirs: Outcomes) -> ReleasedComparison:
    """Compare a model with the released one; the outcomes of both are NaN without a prediction."""
    both = {split: ~(np.isnan(rows) | np.isnan(theirs[split])).any(axis=1) for split, rows in ours.items()}
    common = sum(int(keep.sum()) for keep in both.values())
    if not all(keep.any() for keep in both.values()):
        return ReleasedComparison(0, {}, {})
    own, released = ({split: one[split][keep] for split, keep in both.items()} for one in (ours, theirs))
    tests = {name: task.metrics.mcnemar(name, released, own) for name in task.metrics.titles}
    return ReleasedComparison(
        common,
        task.metrics.differences(own, released, task.confidence),
        {name: test for name, test in tests.items() if test is not None},
    )


def verify_scores(path: Path, stated: Mapping[str, Any], counted: Mapping[str, float], stage: str) -> None:
    """Check that the scores in a metrics file agree with the predictions.

    Args:
        counted: scores computed from the predictions.
        stage: stage that writes the file.

    Raises:
        InputError: scores differ, or the file has intervals of unknown scores.
    """
    wrong = [
        f"{name}={stated.get(name)!r}, computed {value}"
        for name, value in counted.items()
        if not (is_number(stated.get(name)) and abs(stated[name] - value) <= COUNTED_ALIKE)
    ]
    wrong += [f"{name}, not a score of this task" for name in stated if name.endswith("_low") and name not in counted]
    if wrong:
        raise InputError(
            f"{path} does not match the predictions: {'; '.join(wrong[:5])}. One of the files was changed. Rerun "
            f"`dvc repro --force --single-item {stage}`, then the gate"
        )


def _scores(task: AnyScores, path: Path, scored: Sequence[str]) -> dict[str, Any]:
    values, again = find_object(path), f"Run the stage {task.entry.stage('evaluate')}"
    if values is None:
        raise InputError(f"{path} is missing or not a JSON object. {again}")
    files, names = values.get("files"), list(task.metrics.titles)
    complete = (
        all(is_number(values.get(name)) for name in names)
        and isinstance(files, list)
        and set(scored) <= {entry.get("path") for entry in files if isinstance(entry, dict) and "sha256" in entry}
    )
    if not complete:
        raise InputError(
            f"{path} must contain {', '.join(names)} and the SHA-256 of {' and '.join(sorted(scored))}. {again} again"
        )
    return values


def read_verdict(path: Path, name: str) -> bool | None:
    """Return the verdict on the data set `name`; None if there is no readable one."""
    values = find_object(path)
    if values is None or values.get("data") != name or not isinstance(values.get("valid"), bool):
        return None
    return bool(values["valid"])


def is_number(value: Any) -> bool:
    """Return True for an int or float of JSON."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
