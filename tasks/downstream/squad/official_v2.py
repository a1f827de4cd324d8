"""Exact match and F1 of questions that may have no answer, as the official SQuAD 2.0 script counts them.

Source of the rules: Rajpurkar, Jia and Liang 2018, "Know What You Don't Know: Unanswerable Questions for SQuAD", and
its evaluate-v2.0.py. A question without reference answers is answered rightly by the empty text alone. Pure functions
of the standard library.

Legend: odds of a question are what speaks for no answer (null score - score of the best span); above a threshold none
is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tasks.downstream.squad.metrics import f1_of_words, normalize_answer


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1.0 if the normalised prediction equals any normalised reference, else 0.0; no reference is the empty one."""
    return float(normalize_answer(prediction) in _wanted(references))


def f1(prediction: str, references: Sequence[str]) -> float:
    """Best F1 (0 to 1) over the references, of the bags of words; 1 where neither side has a word, 0 where one has."""
    found = Counter(normalize_answer(prediction).split())
    return max(_f1(found, Counter(wanted.split())) for wanted in _wanted(references))


def _wanted(references: Sequence[str]) -> list[str]:
    return [text for text in map(normalize_answer, references) if text] or [""]


def _f1(found: Counter[str], wanted: Counter[str]) -> float:
    return f1_of_words(found, wanted) if found and wanted else float(found == wanted)


def figures(has_answer: Sequence[bool], exact: Sequence[float], overlap: Sequence[float]) -> dict[str, float | int]:
    """exact, f1 and total over all questions, with HasAns_ those with an answer, with NoAns_ those without; percent.

    A group without questions is left out.
    """
    found: dict[str, float | int] = {}
    for prefix, group in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        members = [number for number, has in enumerate(has_answer) if has in group]
        if members:
            for name, scores in (("exact", exact), ("f1", overlap)):
                found[prefix + name] = 100.0 * sum(scores[number] for number in members) / len(members)
            found[prefix + "total"] = len(members)
    return found


def with_threshold(
    scores: Sequence[float], odds: Sequence[float], has_answer: Sequence[bool], most: float
) -> list[float]:
    """Scores where no answer is given to questions with odds above `most`."""
    return [float(not has) if odd > most else score for score, odd, has in zip(scores, odds, has_answer, strict=True)]


def best_threshold(
    scores: Sequence[float], odds: Sequence[float], has_answer: Sequence[bool], answered: Sequence[bool]
) -> tuple[float, float]:
    """The best mean score (percent) that some threshold gives, and the lowest that does; 0.0 where giving no answer at
    all is as good.

    Args:
        scores: of the span found for each question.
        odds: of each question.
        has_answer: whether there is one.
        answered: whether a span was found.
    """
    reached = best = float(sum(not has for has in has_answer))
    threshold = 0.0
    for number in sorted(range(len(odds)), key=odds.__getitem__):
        reached += scores[number] if has_answer[number] else -float(answered[number])
        if reached > best:
            best, threshold = reached, odds[number]
    return 100.0 * best / len(scores), threshold


def best_figures(
    has_answer: Sequence[bool],
    scores: Mapping[str, Sequence[float]],
    odds: Sequence[float],
    answered: Sequence[bool],
) -> dict[str, float]:
    """best_exact, best_exact_thresh, best_f1 and best_f1_thresh.

    Args:
        scores: `exact` and `f1` of the spans found.
    """
    found: dict[str, float] = {}
    for name, values in scores.items():
        best, threshold = best_threshold(values, odds, has_answer, answered)
        found |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return found
