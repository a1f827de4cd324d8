"""Scores by kind of question: where a model is strong and where it is not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tasks.downstream.scoring.metrics import Metric, Metrics, mean_of, weighted_mean_of
from tasks.downstream.squad.files import Question

KIND = "answer"
QUESTION_WORD, ANSWER_LENGTH, CONTEXT_LENGTH, WINDOWS = "question word", "answer length", "context length", "windows"
TITLE = "title"
TITLES = 50
"""Titles with a slice of their own, at most: those with the most questions."""
TITLE_QUESTIONS = 5
"""Questions that a title with a slice of its own has at least."""
_WORDS = ("what", "which", "who", "when", "where", "why", "how many", "how", "other")
_FIRST_WORD = re.compile(r"\b(what|which|who|whom|whose|when|where|why|how (?:many|much)|how)\b")
OVERALL = Metrics(
    (
        Metric("exact_match", "exact match", mean_of(0), weighted_mean_of(0)),
        Metric("f1", "F1", mean_of(1), weighted_mean_of(1)),
    )
)
"""Of the exact match and F1 of each question, [N, 2]."""
_KINDS = ("with an answer", "without an answer")
_ANSWER_WORDS = ((0, "no answer"), (1, "1 word"), (3, "2-3 words"), (6, "4-6 words"))
_CONTEXT_WORDS = ((50, "up to 50 words"), (100, "51-100 words"), (200, "101-200 words"), (400, "201-400 words"))
_WINDOWS = ((1, "1 window"), (2, "2 windows"))


@dataclass(frozen=True)
class Slice:
    """Scores of the questions that have one property."""

    by: str
    """The property: answer (with or without one), question word, answer length, context length, windows or title."""
    slice: str
    questions: int
    exact_match: float
    """Percent, as all below."""
    exact_match_low: float
    """95% interval; wide where the questions are few."""
    exact_match_high: float
    f1: float
    f1_low: float
    f1_high: float

    def record(self) -> dict[str, Any]:
        return asdict(self)


def question_word(question: str) -> str:
    """The first question word: what, which, who, when, where, why, how many, how; else other.

    whom and whose count as who, how much as how many.
    """
    found = _FIRST_WORD.search(" ".join(question.lower().split()))
    if found is None:
        return "other"
    word = found.group(1)
    return {"whom": "who", "whose": "who", "how much": "how many"}.get(word, word)


F1_RANGES = ("0", "under 0.25", "0.25 to 0.5", "0.5 to 0.75", "0.75 to 1", "1")
"""Lower bound included, 1 on its own: most answers are all right or all wrong."""


def f1_counts(f1: Sequence[float]) -> dict[str, int]:
    """Questions in each range of F1 (0 to 1), all ranges in order."""
    ranges = [_f1_range(value) for value in f1]
    return {name: ranges.count(name) for name in F1_RANGES}


def _f1_range(value: float) -> str:
    if value in (0.0, 1.0):
        return F1_RANGES[0] if value == 0 else F1_RANGES[-1]
    return F1_RANGES[1 + int(value // 0.25)]


def slices(
    questions: Sequence[Question], windows: Sequence[int], exact: Sequence[float], f1: Sequence[float]
) -> list[Slice]:
    """Scores by whether there is an answer, where some have none, question word, length of the first reference answer,
    context length, number of windows and title.

    The titles come worst F1 first, those with few questions together at the end; a single title is no slice.

    Args:
        questions: in the order of the scores.
        windows: windows (features) of each question.
        exact: 0.0 or 1.0 per question.
        f1: 0 to 1 per question.
    """
    kinds = [_KINDS[not question.answers] for question in questions]
    labels = {
        **({KIND: (kinds, _KINDS)} if _KINDS[1] in kinds else {}),
        QUESTION_WORD: ([question_word(q.question) for q in questions], _WORDS),
        ANSWER_LENGTH: _sized(
            [len("".join(q.answers[:1]).split()) for q in questions], _ANSWER_WORDS, "7 or more words"
        ),
        CONTEXT_LENGTH: _sized([len(q.context.split()) for q in questions], _CONTEXT_WORDS, "over 400 words"),
        WINDOWS: _sized(windows, _WINDOWS, "3 or more windows"),
    }
    found = []
    for by, (names, order) in labels.items():
        members = np.asarray(names, dtype=object)
        found += [_slice(by, name, np.flatnonzero(members == name), exact, f1) for name in order if name in names]
    return found + _by_title([question.title for question in questions], exact, f1)


def _by_title(titles: Sequence[str], exact: Sequence[float], f1: Sequence[float]) -> list[Slice]:
    counts = Counter(titles)
    if len(counts) < 2:
        return []
    own = [name for name, count in counts.most_common(TITLES) if count >= TITLE_QUESTIONS]
    members = np.asarray(titles, dtype=object)
    found = [_slice(TITLE, name or "(no title)", np.flatnonzero(members == name), exact, f1) for name in own]
    found.sort(key=lambda part: (part.f1, part.slice))
    rest = np.flatnonzero(~np.isin(members, own)) if own else np.arange(len(members))
    if len(rest):
        found.append(_slice(TITLE, f"{len(counts) - len(own):,} other titles", rest, exact, f1))
    return found


def _sized(sizes: Sequence[int], limits: Sequence[tuple[int, str]], above: str) -> tuple[list[str], tuple[str, ...]]:
    names = [next((name for limit, name in limits if size <= limit), above) for size in sizes]
    return names, (*(name for _, name in limits), above)


def _slice(by: str, name: str, members: np.ndarray, exact: Sequence[float], f1: Sequence[float]) -> Slice:
    rows = np.column_stack([exact, f1])[members]
    return Slice(by, name, len(members), **OVERALL.figures({"dev": rows}))
