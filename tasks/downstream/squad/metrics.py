"""Exact match and F1 of extractive answers, as the official SQuAD v1.1 script counts them.

Source of the rules: Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of
Text", and its evaluate-v1.1.py. Pure functions of the standard library alone.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, ASCII punctuation removed, the articles a/an/the blanked, white space made single.

    In this order: "U.S." becomes "us", and "a.m." becomes "am" and not an article with an "m".
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1.0 if the normalised prediction equals any normalised reference, else 0.0.

    Raises:
        ValueError: no reference (SQuAD v1.1 knows no unanswerable question).
    """
    _need(references)
    found = normalize_answer(prediction)
    return float(any(found == normalize_answer(reference) for reference in references))


def f1(prediction: str, references: Sequence[str]) -> float:
    """Best F1 (0 to 1) over the references, of the bags of words after normalisation.

    As in the official v1.1 script, a prediction without any word has F1 0 even where the reference
    has none either ("the" against "The": exact match 1, F1 0).

    Raises:
        ValueError: no reference.
    """
    _need(references)
    found = Counter(normalize_answer(prediction).split())
    return max(f1_of_words(found, Counter(normalize_answer(reference).split())) for reference in references)


def f1_of_words(found: Counter[str], wanted: Counter[str]) -> float:
    """Of two bags of words; 0 where they share none."""
    common = (found & wanted).total()
    if common == 0:
        return 0.0
    precision, recall = common / found.total(), common / wanted.total()
    return 2 * precision * recall / (precision + recall)


def _need(references: Sequence[str]) -> None:
    if not references:
        raise ValueError("no reference answer: SQuAD v1.1 has at least one per question")


def percent(values: Sequence[float]) -> float:
    """Mean of values from 0 to 1 as a percentage, four decimals."""
    # sum before dividing, as the official script does: the fourth decimal agrees.
    return round(100.0 * sum(values) / len(values), 4)
