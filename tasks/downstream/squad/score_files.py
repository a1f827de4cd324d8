"""Reading of prediction files, and their scoring for questions in files (`podium score`)."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import read_json
from tasks.downstream.squad.metrics import apply_threshold, best_figures, exact_match, f1, figures_v2, percent
from tasks.downstream.squad.questions import read_references
from tasks.records.text_files import ReadLog
from tasks.stage.errors import InputError

log = logging.getLogger(__name__)

SHOWN_IDS = 5
"""Maximum number of ids in a warning."""
References = Sequence[tuple[str, Sequence[str]]]
"""Id and reference answers of every question; no answers if it is unanswerable."""


@dataclass(frozen=True)
class PredictionScores:
    """Scores in order of the questions."""

    exact_match: tuple[float, ...]
    """0.0 or 1.0 each."""
    f1: tuple[float, ...]
    """0 to 1 each."""
    unanswered: tuple[str, ...]
    """Ids without a prediction; scored 0."""
    extra: tuple[str, ...]
    """Predicted ids without a question; ignored."""

    def summary(self) -> dict[str, float | int]:
        """Return exact_match and f1 in percent over all questions, with four decimals, and total."""
        return {"exact_match": percent(self.exact_match), "f1": percent(self.f1), "total": len(self.f1)}


def score(questions: References, predictions: Mapping[str, str]) -> PredictionScores:
    """Score predictions by the rules of SQuAD v1.1, or 2.0 if a question has no answer.

    A repeated id is counted repeatedly, as in the official scripts.

    Raises:
        ValueError: no questions.
    """
    if not questions:
        raise ValueError("no questions to score")
    nullable = not all(references for _, references in questions)
    found = [(predictions.get(identifier), references) for identifier, references in questions]
    exact, overlap = (
        tuple(0.0 if text is None else rule(text, references, nullable) for text, references in found)
        for rule in (exact_match, f1)
    )
    unanswered = tuple(identifier for identifier, _ in questions if identifier not in predictions)
    known = dict(questions)
    return PredictionScores(exact, overlap, unanswered, tuple(one for one in predictions if one not in known))


def score_files(
    questions: Path, predictions: Path, odds: Path | None = None, threshold: float = 1.0
) -> dict[str, float | int]:
    """Score a {id: text} file against a SQuAD v1.1 or 2.0 file.

    Missing predictions score 0 and extra ones are ignored; both are logged as warnings.

    Args:
        questions: file with reference answers.
        predictions: file with predictions; an empty text means no answer.
        odds: file of {id: odds of no answer}; adds the best scores over all thresholds.
        threshold: odds above which no answer is returned.

    Returns:
        The figures of the official script of v1.1, or 2.0 if a question has no answer.

    Raises:
        InputError: a file is unusable.
    """
    reading = ReadLog()
    references, answers = read_references(questions, reading), read_predictions(predictions)
    for noted in reading.summary():
        log.warning("%s: %s", questions, noted)
    scores, has_answer = score(references, answers), [bool(given) for _, given in references]
    if lacking := scores.unanswered:
        total = len(references)
        log.warning("%d of %d questions have no prediction and score 0: %s", len(lacking), total, _list_ids(lacking))
    if scores.extra:
        log.warning("%d predictions match no question and are ignored: %s", len(scores.extra), _list_ids(scores.extra))
    if odds is None:
        return scores.summary() if all(has_answer) else figures_v2(has_answer, scores.exact_match, scores.f1)
    if all(has_answer):
        raise InputError(f"every question of {questions} has an answer; {odds} applies only to unanswerable questions")
    stated = read_odds(odds)
    if lacking := tuple(name for name, _ in references if name not in stated):
        raise InputError(f"{odds} lacks {len(lacking)} questions: {_list_ids(lacking)}")
    by_question = [stated[name] for name, _ in references]
    found = {"exact": scores.exact_match, "f1": scores.f1}
    decided = (apply_threshold(one, by_question, has_answer, threshold) for one in found.values())
    answered = [bool(answers.get(name)) for name, _ in references]
    return figures_v2(has_answer, *decided) | best_figures(has_answer, found, by_question, answered)


def _list_ids(ids: Sequence[str]) -> str:
    return ", ".join(ids[:SHOWN_IDS]) + (", ..." if len(ids) > SHOWN_IDS else "")


def read_odds(path: Path) -> dict[str, float]:
    """Read {question id: odds of no answer}, the format of null_odds.json; odds are any numbers.

    Raises:
        InputError: file not found, not JSON, or not an object of numbers.
    """
    return _read_by_id(path, "odds", "a number", lambda odds: type(odds) in (int, float) and math.isfinite(odds))


def read_predictions(path: Path) -> dict[str, str]:
    """Read {question id: answer text}.

    Raises:
        InputError: file not found, not JSON, or not an object of strings.
    """
    return _read_by_id(path, "prediction", 'a string ("" for no answer)', lambda text: isinstance(text, str))


def _read_by_id(path: Path, what: str, required: str, is_valid: Callable[[Any], bool]) -> dict[str, Any]:
    try:
        values = read_json(path, encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path} not found") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder. Name the JSON file in it") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}). Convert it first") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} must be an object of question ids, found {type(values).__name__}")
    for name, value in values.items():
        if not is_valid(value):
            raise InputError(f"{path}: the {what} of question {name!r} must be {required}, found {value!r:.40}")
    return values
