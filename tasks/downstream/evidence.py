"""What the gate's decision rests on, read from the files of the stages before it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.downstream.squad.files import Question, read_dev_questions, read_predictions
from tasks.downstream.squad.metrics import figures, score
from tasks.downstream.squad.question_scores import SCORES, key_of, read_scores, released_file
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import read_json
from tasks.project.given import require_readable
from tasks.release.release_subject import QUESTIONS

VERDICTS, TRAININGS = QUESTIONS.verdicts, QUESTIONS.trainings
SCORED = (str(artifacts.SQUAD_PREDICTIONS), str(artifacts.SQUAD_MODEL / "model.safetensors"))
COUNTED_ALIKE = 1e-3
"""Percent; scores and bounds have four decimals, and hosts may differ in the last one."""


@dataclass(frozen=True)
class Released:
    """The candidate and the released model on the dev questions that both answered, in one order."""

    candidate_f1: tuple[float, ...]
    """0 to 1 per common question."""
    released_f1: tuple[float, ...]
    candidate_exact: tuple[float, ...]
    """0 or 1."""
    released_exact: tuple[float, ...]


@dataclass(frozen=True)
class Loss:
    """How a training ended."""

    final_loss: float | None
    """None where no update was made."""
    steps: int


@dataclass(frozen=True)
class Evidence:
    """All that a decision rests on."""

    exact_match: float
    """Percent."""
    f1: float
    """Percent."""
    questions: int
    answered: int
    """Dev questions that have a prediction."""
    scores_belong: bool
    """The scores were counted on the predictions and the weights that lie there now."""
    verdicts: Mapping[str, bool | None]
    """Data set -> valid; None = there is no readable verdict."""
    losses: Mapping[str, Loss | None]
    """Training -> how it ended; None = there are no readable figures."""
    released: Released | None
    """None = nothing was released yet."""


def gather(released: Path, hashes: Mapping[str, str | None], root: Path = Path()) -> Evidence:
    """Read the evidence of the checkout `root`.

    A missing verdict or training becomes part of the evidence (and fails its check), so that one decision
    names everything that is wrong; without scores, questions or predictions there is nothing to decide on. Scores are
    counted here, from the predictions; what the metrics say must agree.

    Args:
        released: folder of the released model's scores.json or predictions.json; none there means none released.
        hashes: SHA-256 of the files, by their paths in the checkout.
        root: the checkout.

    Raises:
        InputError: metrics/squad.json, the dev questions or a predictions file is missing or damaged, or the metrics
            state other scores than the predictions have.
    """
    metrics = _scores(root / artifacts.SQUAD_METRICS)
    questions = read_dev_questions(root / artifacts.QUESTIONS / "dev.parquet")
    predictions = read_predictions(root / artifacts.SQUAD_PREDICTIONS)
    scored = {entry["path"]: entry["sha256"] for entry in metrics["files"]}
    scores_belong = all(scored[name] == hashes[name] for name in SCORED)
    if os.path.lexists(root / released):
        require_readable(root / released, "gate.released")  # a lost link is not "none released"
    counted = figures(score([(question.id, question.answers) for question in questions], predictions))
    if scores_belong:  # else there is a better word for it
        require_counted(root / artifacts.SQUAD_METRICS, metrics, counted, QUESTIONS.stages["evaluate"])
    return Evidence(
        exact_match=counted["exact_match"],
        f1=counted["f1"],
        questions=len(questions),
        answered=sum(question.id in predictions for question in questions),
        scores_belong=scores_belong,
        verdicts={name: read_verdict(root / artifacts.validation_report(name), name) for name in VERDICTS},
        losses={name: read_loss(root / artifacts.METRICS / f"{name}.json") for name in TRAININGS},
        released=_compare_with(released_file(root / released), questions, predictions),
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


def _compare_with(
    released: Path | None, questions: Sequence[Question], candidate: Mapping[str, str]
) -> Released | None:
    if released is None:
        return None
    if released.name == SCORES:
        return compare_scores(questions, candidate, read_scores(released))
    return compare(questions, candidate, read_predictions(released))


def compare_scores(
    questions: Sequence[Question], candidate: Mapping[str, str], released: Mapping[str, tuple[float, float]]
) -> Released:
    """As `compare`, where the released model comes with scores (key of the question -> exact match, F1)."""
    answered = (question for question in questions if question.id in candidate)
    pairs = [(question, pair) for question in answered if (pair := released.get(key_of(question))) is not None]
    if not pairs:
        return Released((), (), (), ())
    ours = score([(question.id, question.answers) for question, _ in pairs], candidate)
    exact, overlap = zip(*(pair for _, pair in pairs), strict=True)
    return Released(ours.f1, overlap, ours.exact_match, exact)


def compare(questions: Sequence[Question], candidate: Mapping[str, str], released: Mapping[str, str]) -> Released:
    """Scores of both models on the questions that both answered; empty where there is none."""
    common = [(q.id, q.answers) for q in questions if q.id in candidate and q.id in released]
    if not common:
        return Released((), (), (), ())
    ours, theirs = score(common, candidate), score(common, released)
    return Released(ours.f1, theirs.f1, ours.exact_match, theirs.exact_match)


def _scores(path: Path) -> dict[str, Any]:
    values = _read_object(path)
    if values is None:
        raise InputError(f"{path} is missing or not a JSON object; run the stage evaluate")
    files = values.get("files")
    complete = (
        all(_is_number(values.get(name)) for name in ("exact_match", "f1"))
        and isinstance(files, list)
        and set(SCORED) <= {entry.get("path") for entry in files if isinstance(entry, dict) and "sha256" in entry}
    )
    if not complete:
        raise InputError(
            f"{path} must hold exact_match, f1 and the SHA-256 of {' and '.join(sorted(SCORED))}; "
            "run the stage evaluate again"
        )
    return values


def read_verdict(path: Path, name: str) -> bool | None:
    """Whether the data set `name` is valid; None where there is no readable verdict of it."""
    values = _read_object(path)
    if values is None or values.get("data") != name or not isinstance(values.get("valid"), bool):
        return None
    return bool(values["valid"])


def read_loss(path: Path) -> Loss | None:
    """How a training ended, from its figures; None where they cannot be read."""
    values = _read_object(path)
    if values is None or "final_loss" not in values or not isinstance(values.get("steps"), int):
        return None
    loss = values["final_loss"]
    if loss is not None and not _is_number(loss):
        return None
    return Loss(None if loss is None else float(loss), values["steps"])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        values = read_json(path)
    except (FileNotFoundError, ValueError):
        return None
    return values if isinstance(values, dict) else None
