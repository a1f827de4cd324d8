"""What a gate's decision rests on, read from the files of the stages before it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.files import find_object
from tasks.downstream.gate.recipe import Recipe, judge_recipe
from tasks.downstream.gate.recipe_words import held_out_score
from tasks.downstream.gate.released import read_released
from tasks.downstream.gate.seeds import Trained, read_seeds
from tasks.downstream.gate.subject import Subject
from tasks.downstream.scoring.metrics import Outcomes
from tasks.downstream.scoring.scores import Task
from tasks.downstream.scoring.significance import Interval, McNemar
from tasks.plan.named_files import require_readable
from tasks.stage import artifacts
from tasks.stage.errors import InputError

COUNTED_ALIKE = 1e-3
"""Percent; scores and bounds have four decimals, and hosts may differ in the last one."""


@dataclass(frozen=True)
class Compared:
    """The candidate against the released model, on the examples that both answered."""

    common: int
    differences: Mapping[str, Interval]
    """Metric -> points by which the candidate is better."""
    tests: Mapping[str, McNemar]
    """Metric -> McNemar's test of the released model against the candidate, where it applies."""


@dataclass(frozen=True)
class Loss:
    """How a training ended."""

    final_loss: float | None
    """None where no update was made."""
    steps: int


@dataclass(frozen=True)
class Evidence:
    """All that a decision rests on."""

    scores: Mapping[str, float]
    """Every metric, percent."""
    examples: int
    answered: int
    """Examples that have a prediction."""
    scores_belong: bool
    """The scores were counted on the predictions and the weights that lie there now."""
    verdicts: Mapping[str, bool | None]
    """Data set -> valid; None = there is no readable verdict."""
    losses: Mapping[str, Loss | None]
    """Training -> how it ended; None = there are no readable figures."""
    over_baseline: Interval | None = None
    """Points by which the leading metric lies above that of the baseline; None = that is not asked."""
    released: Compared | None = None
    """None = nothing was released yet."""
    recipe: Recipe | None = None
    """All models of the recipe together; None = the gate is told of no other seed."""


def gather(
    task: Task,
    subject: Subject,
    released: Path,
    hashes: Mapping[str, str | None],
    root: Path = Path(),
    seeds: Path | None = None,
) -> Evidence:
    """Read the evidence of the checkout `root`.

    A missing verdict or training becomes part of the evidence (and fails its check), so that one decision
    names everything that is wrong; without scores, examples or predictions there is nothing to decide on. Scores are
    counted here, from the predictions; what the metrics say must agree.

    Args:
        subject: what the release is about.
        released: folder of the released model's scores.json or predictions.json; none there means none released.
        hashes: SHA-256 of the files, by their paths in the checkout.
        root: the checkout.
        seeds: folder with the scores of other seeds of the same recipe; None: this model is judged alone.

    Raises:
        InputError: metrics, examples, predictions or the scores of another seed are missing or damaged, or the metrics
            state other scores than the predictions have.
    """
    scored_files = (str(subject.predictions), str(subject.model / "model.safetensors"))
    metrics = _scores(task, root / subject.metrics, scored_files)
    task.restore_baseline(metrics, root / subject.metrics)
    examples = task.read_all(root)
    baseline = task.constant(examples) if task.entry.params.gate.above_baseline else None
    predictions = task.read_predictions(root / subject.predictions, examples)
    belong = all(one["sha256"] == hashes[one["path"]] for one in metrics["files"] if one["path"] in scored_files)
    outcomes = task.outcomes_of(examples, predictions)
    if belong:  # else there is a better word for it
        require_counted(root / subject.metrics, metrics, task.figures(examples, outcomes), subject.stages["evaluate"])
    if os.path.lexists(root / released):  # a lost link is not "none released"
        require_readable(root / released, task.entry.key("gate", "released"))
    theirs = read_released(task, examples, root / released / subject.released)
    own = _own(task, subject, outcomes, hashes, root)
    trained = None if seeds is None else read_seeds(task, examples, root / seeds, own)
    return Evidence(
        scores={name: round(value, 4) for name, value in task.metrics.of(outcomes).items()},
        examples=sum(map(len, outcomes.values())),
        answered=sum(one is not None for split in predictions.values() for one in split),
        scores_belong=belong,
        verdicts={name: read_verdict(root / artifacts.validation_report(name), name) for name in subject.verdicts},
        losses={name: read_loss(root / artifacts.METRICS / f"{name}.json") for name in subject.trainings},
        over_baseline=_over_baseline(task, outcomes, baseline),
        released=None if theirs is None else compare(task, predictions, outcomes, theirs),
        recipe=None if trained is None else judge_recipe(task, trained, own, theirs, baseline),
    )


def _over_baseline(task: Task, outcomes: Outcomes, baseline: Outcomes | None) -> Interval | None:
    if baseline is None:
        return None
    found = task.metrics.differences(outcomes, baseline, task.confidence)
    return task.metrics.widened(found, [outcomes], baseline, task.confidence)[task.limits[0].metric]


def _own(task: Task, subject: Subject, outcomes: Outcomes, hashes: Mapping[str, str | None], root: Path) -> Trained:
    """The model that is judged, as one of its recipe."""
    figures = find_object(root / artifacts.METRICS / f"{subject.trainings[-1]}.json") or {}
    try:
        held_out = held_out_score(figures["held_out"])
    except (KeyError, ValueError, TypeError, AttributeError):
        held_out = None
    weights = hashes[str(subject.model / "model.safetensors")]
    return Trained(task.entry.params.finetune.seed, outcomes, held_out, weights)


def compare(task: Task, predictions: Mapping[str, Sequence[Any]], outcomes: Outcomes, theirs: Outcomes) -> Compared:
    """The model against the released one, whose outcomes are NaN where it answered nothing.

    Args:
        predictions: of the model, None where there is none.
    """
    both = {
        split: np.array([one is not None for one in predictions[split]], dtype=bool)
        & ~np.isnan(theirs[split]).any(axis=1)
        for split in outcomes
    }
    common = sum(int(keep.sum()) for keep in both.values())
    if not all(keep.any() for keep in both.values()):
        return Compared(0, {}, {})
    ours, released = ({split: one[split][keep] for split, keep in both.items()} for one in (outcomes, theirs))
    tests = {name: task.metrics.mcnemar(name, released, ours) for name in task.metrics.titles}
    return Compared(
        common,
        task.metrics.differences(ours, released, task.confidence),
        {name: test for name, test in tests.items() if test is not None},
    )


def require_counted(path: Path, stated: Mapping[str, Any], counted: Mapping[str, float], stage: str) -> None:
    """Scores that a file of metrics states must be those that the predictions have.

    Args:
        path: of the metrics, for the message.
        stated: what it holds.
        counted: what was counted now.
        stage: writes it.

    Raises:
        InputError: they differ, or there are bounds of more scores.
    """
    wrong = [
        f"{name}={stated.get(name)!r}, counted was {value}"
        for name, value in counted.items()
        if not (_is_number(stated.get(name)) and abs(stated[name] - value) <= COUNTED_ALIKE)
    ]
    wrong += [f"{name}, which is not counted" for name in stated if name.endswith("_low") and name not in counted]
    if wrong:
        raise InputError(
            f"{path} must state the scores that the predictions have, but holds {'; '.join(wrong[:5])}. Somebody "
            f"changed one of them: make them anew with `dvc repro --force --single-item {stage}`, then the gate's "
            "verdict"
        )


def _scores(task: Task, path: Path, scored: Sequence[str]) -> dict[str, Any]:
    values, again = find_object(path), f"run the stage {task.entry.stage('evaluate')}"
    if values is None:
        raise InputError(f"{path} is missing or not a JSON object; {again}")
    files, names = values.get("files"), list(task.metrics.titles)
    complete = (
        all(_is_number(values.get(name)) for name in names)
        and isinstance(files, list)
        and set(scored) <= {entry.get("path") for entry in files if isinstance(entry, dict) and "sha256" in entry}
    )
    if not complete:
        raise InputError(
            f"{path} must hold {', '.join(names)} and the SHA-256 of {' and '.join(sorted(scored))}; {again} again"
        )
    return values


def read_verdict(path: Path, name: str) -> bool | None:
    """Whether the data set `name` is valid; None where there is no readable verdict of it."""
    values = find_object(path)
    if values is None or values.get("data") != name or not isinstance(values.get("valid"), bool):
        return None
    return bool(values["valid"])


def read_loss(path: Path) -> Loss | None:
    """How a training ended, from its figures; None where they cannot be read."""
    values = find_object(path)
    if values is None or "final_loss" not in values or not isinstance(values.get("steps"), int):
        return None
    loss = values["final_loss"]
    if loss is not None and not _is_number(loss):
        return None
    return Loss(None if loss is None else float(loss), values["steps"])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
