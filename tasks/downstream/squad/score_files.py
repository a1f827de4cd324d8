"""Exact match and F1 of extractive answers, and scores of prediction files (`podium evaluate`).

Scores are those of the official SQuAD scripts of v1.1 and 2.0. Sources of the rules: Rajpurkar et al. 2016, "SQuAD:
100,000+ Questions for Machine Comprehension of Text", and its evaluate-v1.1.py; Rajpurkar, Jia and Liang 2018, "Know
What You Don't Know: Unanswerable Questions for SQuAD", and its evaluate-v2.0.py. Only the standard library is used.

Legend: the odds of a question favour no answer (null score - score of the best span); above a threshold, no answer is
returned.
"""

import logging
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.core.files import read_json
from tasks.downstream.squad.questions import read_references
from tasks.records.interpretation import Interpretation
from tasks.stage.errors import InputError

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
log = logging.getLogger(__name__)

SHOWN_IDS = 5
"""Maximum number of ids in a warning."""
References = Sequence[tuple[str, Sequence[str]]]
"""Id and reference answers of every question; no answers if it is unanswerable."""


def normalize_answer(text: str) -> str:
    """Lower-case, remove ASCII punctuation, remove the articles a/an/the, and collapse white space.

    The order matters: "U.S." becomes "us", and "a.m." becomes "am", not an article with an "m".
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, references: Sequence[str], nullable: bool = False) -> float:
    """Return 1.0 if the normalised prediction equals any normalised reference, else 0.0.

    Args:
        nullable: use the rule of 2.0, by which only the empty text answers a question without references.

    Raises:
        ValueError: no reference, allowed only in 2.0.
    """
    return float(normalize_answer(prediction) in _normal(references, nullable))


def f1(prediction: str, references: Sequence[str], nullable: bool = False) -> float:
    """Return the best F1 (0 to 1) over the references, of the bags of words after normalisation.

    As in the official v1.1 script, a prediction without words has F1 0 even if the reference has none ("the" and "The":
    exact match 1, F1 0); in 2.0 it has 1. Arguments and errors are those of `exact_match`.
    """
    predicted = Counter(normalize_answer(prediction).split())
    return max(_overlap(predicted, Counter(text.split()), nullable) for text in _normal(references, nullable))


def _normal(references: Sequence[str], nullable: bool) -> list[str]:
    normal = list(map(normalize_answer, references))
    if nullable:
        return [text for text in normal if text] or [""]
    if not normal:
        raise ValueError("no reference answer: SQuAD v1.1 has at least one per question")
    return normal


def _overlap(predicted: Counter[str], wanted: Counter[str], nullable: bool) -> float:
    if nullable and not (predicted and wanted):
        return float(predicted == wanted)
    common = (predicted & wanted).total()
    if common == 0:
        return 0.0
    precision, recall = common / predicted.total(), common / wanted.total()
    return 2 * precision * recall / (precision + recall)


def percent(values: Sequence[float]) -> float:
    """Return the mean of values from 0 to 1 in percent, with four decimals."""
    # Sum before dividing, as the official script does, to agree in the fourth decimal.
    return round(100.0 * sum(values) / len(values), 4)


def figures_v2(has_answer: Sequence[bool], exact: Sequence[float], overlap: Sequence[float]) -> dict[str, float | int]:
    """Return exact, f1 and total over all questions, and with prefix HasAns_ or NoAns_ by group, in percent.

    A group without questions is omitted.
    """
    figures: dict[str, float | int] = {}
    for prefix, group in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        members = [number for number, has in enumerate(has_answer) if has in group]
        if members:
            for name, scores in (("exact", exact), ("f1", overlap)):
                figures[prefix + name] = 100.0 * sum(scores[number] for number in members) / len(members)
            figures[prefix + "total"] = len(members)
    return figures


def apply_threshold(
    scores: Sequence[float], odds: Sequence[float], has_answer: Sequence[bool], most: float
) -> list[float]:
    """Return the scores if questions with odds above `most` get no answer."""
    return [float(not has) if odd > most else score for score, odd, has in zip(scores, odds, has_answer, strict=True)]


def best_threshold(
    scores: Sequence[float], odds: Sequence[float], has_answer: Sequence[bool], answered: Sequence[bool]
) -> tuple[float, float]:
    """Return the best mean score (percent) over all thresholds, and the lowest threshold with that score (0.0 if never
    answering is as good).

    Args:
        scores: score of the best span of each question.
        answered: True for questions with a span.
    """
    reached = best = float(sum(not has for has in has_answer))
    threshold = 0.0
    for number in sorted(range(len(odds)), key=odds.__getitem__):
        reached += scores[number] if has_answer[number] else -float(answered[number])
        if reached > best:
            best, threshold = reached, odds[number]
    return 100.0 * best / len(scores), threshold


def best_figures(
    has_answer: Sequence[bool], scores: Mapping[str, Sequence[float]], odds: Sequence[float], answered: Sequence[bool]
) -> dict[str, float]:
    """Return best_exact, best_exact_thresh, best_f1 and best_f1_thresh from `exact` and `f1` of the best spans."""
    figures: dict[str, float] = {}
    for name, values in scores.items():
        best, threshold = best_threshold(values, odds, has_answer, answered)
        figures |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return figures


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
    pairs = [(predictions.get(identifier), references) for identifier, references in questions]
    exact, overlap = (
        tuple(0.0 if text is None else rule(text, references, nullable) for text, references in pairs)
        for rule in (exact_match, f1)
    )
    unanswered = tuple(identifier for identifier, _ in questions if identifier not in predictions)
    known = dict(questions)
    return PredictionScores(exact, overlap, unanswered, tuple(name for name in predictions if name not in known))


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
    reading = Interpretation()
    references, answers = read_references(questions, reading), read_predictions(predictions)
    for noted in reading.summary():
        log.warning("%s: %s", questions, noted)
    scores, has_answer = score(references, answers), [bool(texts) for _, texts in references]
    if lacking := scores.unanswered:
        total = len(references)
        if len(lacking) == total:
            raise InputError(f"{predictions} has a prediction for no question of {questions}: pass those of one file")
        log.warning("%d of %d questions have no prediction and score 0: %s", len(lacking), total, _list_ids(lacking))
    if scores.extra:
        log.warning("%d predictions match no question and are ignored: %s", len(scores.extra), _list_ids(scores.extra))
    if odds is None:
        return scores.summary() if all(has_answer) else figures_v2(has_answer, scores.exact_match, scores.f1)
    if all(has_answer):
        raise InputError(f"every question of {questions} has an answer; {odds} applies only to unanswerable questions")
    odds_by_id = read_odds(odds)
    if lacking := tuple(name for name, _ in references if name not in odds_by_id):
        raise InputError(f"{odds} lacks {len(lacking)} questions: {_list_ids(lacking)}")
    by_question = [odds_by_id[name] for name, _ in references]
    figures = {"exact": scores.exact_match, "f1": scores.f1}
    decided = (apply_threshold(values, by_question, has_answer, threshold) for values in figures.values())
    answered = [bool(answers.get(name)) for name, _ in references]
    return figures_v2(has_answer, *decided) | best_figures(has_answer, figures, by_question, answered)


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
