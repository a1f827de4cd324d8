"""Unanswerable questions: null scores, and the no-answer threshold chosen on held-out questions.

The null score of a question is the score of [CLS] (start logit + end logit), the minimum over its windows. Its odds are
the null score minus the score of the best span. Questions with odds above the threshold get no answer: Devlin et al.
2019, section 4.3, and run_squad.py.

Legend: E examples (questions).
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.downstream.scoring.metrics import Array
from tasks.downstream.scoring.thresholds import ChosenThreshold, choose_cut, read_recorded
from tasks.downstream.squad.answers import Answer, add_probabilities
from tasks.downstream.squad.windows import SquadWindows

NULL_THRESHOLD = "null_threshold"


def null_scores(windows: SquadWindows, examples: int) -> Array:
    """Return the null score of each example, [E]."""
    found = np.full(examples, np.inf)
    np.minimum.at(found, windows.example_index, windows.cls_logits[:, 0] + windows.cls_logits[:, 1])
    return found


def rank_with_null(spans: Sequence[Answer], null_score: float, threshold: float) -> list[Answer]:
    """Return the chosen answer first, then the others by score, with probabilities; the null answer has no text.

    Args:
        spans: best spans of a question, best first; a single one without text means none.
        threshold: odds above which no answer is returned.
    """
    null = Answer("", 0, 0, null_score, 0.0)
    real = [span for span in spans if span.text]
    first = null if not real or null_score - real[0].score > threshold else real[0]
    others = sorted((one for one in (*real, null) if one is not first), key=lambda one: -one.score)
    return add_probabilities([first, *others])


def best_span(answers: Sequence[Answer]) -> Answer:
    """Return the best answer with text from a result of `rank_with_null`, or an empty answer with score 0."""
    return next((one for one in answers if one.text), Answer("", 0, 0, 0.0, 0.0))


def null_odds(answers: Sequence[Answer]) -> float:
    """Return the null score minus the score of the best span, from a result of `rank_with_null`."""
    null = next(one for one in answers if not one.text)
    return null.score - best_span(answers).score


def choose_threshold(odds: Sequence[float], f1: Sequence[float], has_answer: Sequence[bool]) -> ChosenThreshold:
    """Return the threshold with the best F1 over all questions, and the interval of this choice.

    It equals the odds of the last answered question; of equally good thresholds it is the lowest.

    Args:
        f1: F1 (0 to 1) of each best span.
    """
    # Gain over no answer: the score of the span, or minus one point for an unanswerable question.
    gains = np.where(has_answer, f1, -1.0)
    distinct, best, drawn = choose_cut(np.asarray(odds, np.float64), [gains], lambda total: total)
    places = np.concatenate([[math.nextafter(distinct[0], -math.inf)], distinct])
    low, high = (float(x) for x in np.quantile(places[drawn], (0.025, 0.975)))
    return ChosenThreshold(float(places[best]), low, high, len(odds))


def read_null_threshold(folder: Path) -> float | None:
    """Return the no-answer threshold of a model folder; None: the model always answers.

    Raises:
        InputError: the recorded value is not a number.
    """
    found = read_recorded(folder, NULL_THRESHOLD, lambda value: type(value) in (int, float), "a number")
    return None if found is None else float(found)
