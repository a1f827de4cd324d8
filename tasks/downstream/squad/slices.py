"""Scores by properties of questions."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tasks.downstream.scoring.metrics import Array, Metrics, Slice, label_ranges, mean_metric, slice_by
from tasks.downstream.squad.questions import SquadQuestion

KIND = "answer"
QUESTION_WORD, ANSWER_LENGTH, CONTEXT_LENGTH, WINDOWS = "question word", "answer length", "context length", "windows"
TITLE = "title"
TITLES = 50
"""Maximum number of titles with a slice, those with the most questions."""
TITLE_QUESTIONS = 5
"""Minimum number of questions of a title with a slice."""
_WORDS = ("what", "which", "who", "when", "where", "why", "how many", "how", "other")
_FIRST_WORD = re.compile(r"\b(what|which|who|whom|whose|when|where|why|how (?:many|much)|how)\b")
OVERALL = Metrics((mean_metric("exact_match", "exact match", 0, 0), mean_metric("f1", "F1", 1)))
"""Metrics of exact match and F1 of each question, [N, 2]."""
_KINDS = ("with an answer", "without an answer")
_ANSWER_WORDS = ((0, "no answer"), (1, "1 word"), (3, "2-3 words"), (6, "4-6 words"))
_CONTEXT_WORDS = ((50, "up to 50 words"), (100, "51-100 words"), (200, "101-200 words"), (400, "201-400 words"))
_WINDOWS = ((1, "1 window"), (2, "2 windows"))


def question_word(question: str) -> str:
    """Return the first question word: what, which, who, when, where, why, how many, how; else other.

    whom and whose count as who, how much as how many.
    """
    found = _FIRST_WORD.search(" ".join(question.lower().split()))
    if found is None:
        return "other"
    word = found.group(1)
    return {"whom": "who", "whose": "who", "how much": "how many"}.get(word, word)


F1_RANGES = ("0", "under 0.25", "0.25 to 0.5", "0.5 to 0.75", "0.75 to 1", "1")
"""Ranges of F1, lower bound included; 1 is separate because most answers are entirely right or wrong."""


def f1_counts(f1: Sequence[float]) -> dict[str, int]:
    """Return the number of questions in each range of F1 (0 to 1), all ranges in order."""
    borders = (math.nextafter(0.0, 1.0), 0.25, 0.5, 0.75, 1.0)
    counts = np.bincount(np.digitize(f1, borders), minlength=len(F1_RANGES))
    return dict(zip(F1_RANGES, counts.tolist(), strict=True))


def slice_scores(questions: Sequence[SquadQuestion], windows: Sequence[int], scores: Array) -> list[Slice]:
    """Return scores by answerability (if some questions have no answer), question word, length of the first reference
    answer, context length, number of windows, and title.

    Titles are sorted by F1, worst first; those with few questions are combined at the end. A single title is not a
    slice.

    Args:
        windows: number of windows (features) of each question.
        scores: exact match (0 or 1) and F1 (0 to 1) of each question, [N, 2].
    """
    kinds = [_KINDS[not question.answers] for question in questions]
    labels = {
        **({KIND: (kinds, _KINDS)} if _KINDS[1] in kinds else {}),
        QUESTION_WORD: ([question_word(q.question) for q in questions], _WORDS),
        ANSWER_LENGTH: label_ranges(
            [len("".join(q.texts[:1]).split()) for q in questions], _ANSWER_WORDS, "7 or more words"
        ),
        CONTEXT_LENGTH: label_ranges([len(q.context.split()) for q in questions], _CONTEXT_WORDS, "over 400 words"),
        WINDOWS: label_ranges(windows, _WINDOWS, "3 or more windows"),
    }
    found = [part for by, (names, order) in labels.items() for part in _slices(by, names, order, scores)]
    return found + _by_title([question.title for question in questions], scores)


def _by_title(titles: Sequence[str], scores: Array) -> list[Slice]:
    counts = Counter(titles)
    if len(counts) < 2:
        return []
    own = [name for name, count in counts.most_common(TITLES) if count >= TITLE_QUESTIONS]
    found = [replace(part, slice=part.slice or "(no title)") for part in _slices(TITLE, titles, own, scores)]
    found.sort(key=lambda part: (part.figures["f1"], part.slice))
    rest = f"{len(counts) - len(own):,} other titles"
    few = [title not in own for title in titles]
    return found + _slices(TITLE, [rest] * sum(few), [rest], scores[few])


def _slices(by: str, names: Sequence[str], order: Sequence[str], scores: Array) -> list[Slice]:
    return slice_by(by, names, order, OVERALL, "dev", scores, counted="questions")
