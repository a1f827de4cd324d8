"""Compare two prediction files on the same questions (`podium compare`).

How much better the second is in exact match and F1, with intervals of the paired bootstrap; McNemar's exact test for
exact match; and every question whose answer changed. Questions are SQuAD JSON or a .parquet of this project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from tasks.downstream.squad.comparison import Changed, Comparison, compare
from tasks.downstream.squad.files import read_predictions, read_questions, read_references
from tasks.pages.markup import csv_text
from tasks.project.errors import InputError

SHOWN = 20
"""Changed answers on the screen; --changed lists all."""


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
