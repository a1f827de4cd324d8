"""Compare two prediction files on the same questions (`podium compare`).

How much better the second is in exact match and F1, with intervals of the paired bootstrap; McNemar's exact test for
exact match; and every question whose answer changed. Questions are SQuAD JSON or a .parquet of this project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tasks.downstream.squad.files import read_predictions, read_questions, read_references
from tasks.downstream.squad.metrics import percent
from tasks.downstream.squad.scoring import score
from tasks.downstream.squad.slices import OVERALL
from tasks.pages.markup import csv_text
from tasks.project.errors import InputError
from tasks.statistics.significance import Interval, McNemar, mcnemar_exact

SHOWN = 20
"""Changed answers on the screen; --changed lists all."""


@dataclass(frozen=True)
class Changed:
    """A question that both answered, and differently."""

    id: str
    first: str
    second: str
    first_exact: float
    second_exact: float
    first_f1: float
    """0 to 1."""
    second_f1: float


@dataclass(frozen=True)
class Comparison:
    """The second predictions against the first, on the questions that both answered."""

    questions: int
    exact_match: tuple[float, float]
    """Percent, of the first and the second."""
    f1: tuple[float, float]
    exact_match_difference: Interval
    """Second - first in points, paired bootstrap."""
    f1_difference: Interval
    mcnemar: McNemar
    """About exact match: right in the first only, in the second only, and the p-value."""
    changed: tuple[Changed, ...]
    """In the order of the questions."""

    def record(self) -> dict[str, Any]:
        """Plain values; differences in points of percent."""
        return {
            "questions": self.questions,
            **{f"exact_match_{name}": x for name, x in zip(("first", "second"), self.exact_match, strict=True)},
            **{f"f1_{name}": x for name, x in zip(("first", "second"), self.f1, strict=True)},
            "exact_match_difference": _points(self.exact_match_difference),
            "f1_difference": _points(self.f1_difference),
            "mcnemar": asdict(self.mcnemar),
            "changed": [asdict(one) for one in self.changed],
        }


def _points(interval: Interval) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(interval).items()}


def compare(
    references: Sequence[tuple[str, Sequence[str]]],
    first: Mapping[str, str],
    second: Mapping[str, str],
    confidence: float = 0.95,
) -> Comparison:
    """Compare two {id: text} predictions on the questions that both answered.

    Raises:
        ValueError: there is no such question.
    """
    common = [
        (identifier, answers) for identifier, answers in references if identifier in first and identifier in second
    ]
    if not common:
        raise ValueError("no question was answered by both")
    one, two = score(common, first), score(common, second)
    changed = tuple(
        Changed(identifier, first[identifier], second[identifier], *scores)
        for (identifier, _), *scores in zip(common, one.exact_match, two.exact_match, one.f1, two.f1, strict=True)
        if first[identifier] != second[identifier]
    )
    before, after = ({"dev": np.column_stack([scores.exact_match, scores.f1])} for scores in (one, two))
    differences = OVERALL.differences(after, before, confidence)
    return Comparison(
        questions=len(common),
        exact_match=(percent(one.exact_match), percent(two.exact_match)),
        f1=(percent(one.f1), percent(two.f1)),
        exact_match_difference=differences["exact_match"],
        f1_difference=differences["f1"],
        mcnemar=mcnemar_exact(one.exact_match, two.exact_match),
        changed=changed,
    )


def compare_files(questions: Path, first: Path, second: Path, confidence: float = 0.95) -> Comparison:
    """Read the files and compare.

    Raises:
        InputError: a file cannot be used, or no question was answered in both.
    """
    references: Sequence[tuple[str, Sequence[str]]]
    if questions.suffix == ".parquet":
        references = [(question.id, question.answers) for question in read_questions(questions)]
    else:
        references = read_references(questions)
    try:
        return compare(references, read_predictions(first), read_predictions(second), confidence)
    except ValueError as error:
        raise InputError(f"{first} and {second} cannot be compared on {questions}: {error}") from None


def changed_csv(changed: Sequence[Changed]) -> str:
    """One line per question whose answer changed."""
    return csv_text([field.name for field in fields(Changed)], [astuple(one) for one in changed])


def in_words(found: Comparison, confidence: float) -> str:
    """For people; the largest changes of F1 come first."""
    lines = [f"{found.questions} questions answered in both, {len(found.changed)} of them differently"]
    for name, scores, d in (
        ("exact match", found.exact_match, found.exact_match_difference),
        ("F1", found.f1, found.f1_difference),
    ):
        lines.append(
            f"{name}: {scores[0]:.2f} -> {scores[1]:.2f}, {d.mean:+.2f} points "
            f"({d.low:+.2f} to {d.high:+.2f} at confidence {confidence:g}, paired bootstrap)"
        )
    test = found.mcnemar
    lines.append(
        f"right in the first only: {test.first_only}, in the second only: {test.second_only} "
        f"(McNemar's exact test, two-sided: p = {test.p_value:.4g})"
    )
    ranked = sorted(found.changed, key=lambda one: -abs(one.second_f1 - one.first_f1))
    for one in ranked[:SHOWN]:
        lines.append(f"  {one.id}: {one.first!r} (F1 {one.first_f1:.2f}) -> {one.second!r} (F1 {one.second_f1:.2f})")
    if len(ranked) > SHOWN:
        lines.append(f"  ... and {len(ranked) - SHOWN} more (--changed FILE lists all)")
    return "\n".join(lines)
