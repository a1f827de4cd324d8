"""Exact match and F1 of extractive answers, as computed by the official SQuAD scripts of v1.1 and 2.0.

Sources of the rules: Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text", and its
evaluate-v1.1.py; Rajpurkar, Jia and Liang 2018, "Know What You Don't Know: Unanswerable Questions for SQuAD", and its
evaluate-v2.0.py. Pure functions that use only the standard library.

Legend: the odds of a question favour no answer (null score - score of the best span); above a threshold, no answer is
returned.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


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
    found = Counter(normalize_answer(prediction).split())
    return max(_overlap(found, Counter(text.split()), nullable) for text in _normal(references, nullable))


def _normal(references: Sequence[str], nullable: bool) -> list[str]:
    normal = list(map(normalize_answer, references))
    if nullable:
        return [text for text in normal if text] or [""]
    if not normal:
        raise ValueError("no reference answer: SQuAD v1.1 has at least one per question")
    return normal


def _overlap(found: Counter[str], wanted: Counter[str], nullable: bool) -> float:
    if nullable and not (found and wanted):
        return float(found == wanted)
    common = (found & wanted).total()
    if common == 0:
        return 0.0
    precision, recall = common / found.total(), common / wanted.total()
    return 2 * precision * recall / (precision + recall)


def percent(values: Sequence[float]) -> float:
    """Return the mean of values from 0 to 1 in percent, with four decimals."""
    # Sum before dividing, as the official script does, to agree in the fourth decimal.
    return round(100.0 * sum(values) / len(values), 4)


def figures_v2(has_answer: Sequence[bool], exact: Sequence[float], overlap: Sequence[float]) -> dict[str, float | int]:
    """Return exact, f1 and total over all questions, and with prefix HasAns_ or NoAns_ by group, in percent.

    A group without questions is omitted.
    """
    found: dict[str, float | int] = {}
    for prefix, group in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        members = [number for number, has in enumerate(has_answer) if has in group]
        if members:
            for name, scores in (("exact", exact), ("f1", overlap)):
                found[prefix + name] = 100.0 * sum(scores[number] for number in members) / len(members)
            found[prefix + "total"] = len(members)
    return found


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
    has_answer: Sequence[bool],
    scores: Mapping[str, Sequence[float]],
    odds: Sequence[float],
    answered: Sequence[bool],
) -> dict[str, float]:
    """Return best_exact, best_exact_thresh, best_f1 and best_f1_thresh.

    Args:
        scores: `exact` and `f1` of the best spans.
    """
    found: dict[str, float] = {}
    for name, values in scores.items():
        best, threshold = best_threshold(values, odds, has_answer, answered)
        found |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return found
