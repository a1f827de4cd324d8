"""Comparison of two prediction files on the same questions (`podium compare`).

It reports the differences in exact match and F1 with paired-bootstrap intervals, McNemar's exact test for exact match,
and every question whose answer changed. Questions are SQuAD JSON or a .parquet file of Podium.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.downstream.scoring.metrics import changed_answers
from tasks.downstream.squad.questions import read_questions, read_references
from tasks.downstream.squad.score_files import References, read_predictions, score
from tasks.downstream.squad.scores import OVERALL
from tasks.pages.markup import csv_text
from tasks.stage.errors import InputError

SHOWN = 20
"""Changed answers shown in the terminal; --changed lists all."""
CHANGED = ("id", "first", "second", "first_exact", "second_exact", "first_f1", "second_f1")
"""Fields of a changed answer; exact match and F1 are from 0 to 1."""


def compare(
    references: References, first: Mapping[str, str], second: Mapping[str, str], confidence: float = 0.95
) -> dict[str, object]:
    """Compare two {id: text} predictions on the questions that both answered.

    Returns:
        The result of `Metrics.compare`, and `changed`: the changed answers in order of the questions.

    Raises:
        ValueError: there is no such question.
    """
    common = [(name, answers) for name, answers in references if name in first and name in second]
    if not common:
        raise ValueError("no question has both predictions")
    scores = [score(common, predictions) for predictions in (first, second)]
    before, after = (np.column_stack([result.exact_match, result.f1]) for result in scores)
    comparison = OVERALL.compare({"dev": before}, {"dev": after}, confidence)
    names = [name for name, _ in common]
    answers = [first[name] for name in names], [second[name] for name in names]
    changed = changed_answers(names, answers, (before, after), {"exact": 0, "f1": 1})
    return {
        "questions": comparison.pop("examples"),
        "mcnemar": comparison.pop("exact_match_mcnemar"),
        **comparison,
        "changed": [record for _, record in changed],
    }


def compare_files(questions: Path, first: Path, second: Path, confidence: float = 0.95) -> dict[str, Any]:
    """Read the files and compare them.

    Raises:
        InputError: a file is unusable, or no question has both predictions.
    """
    references: References
    if questions.suffix == ".parquet":
        references = [(question.id, question.texts) for question in read_questions(questions)]
    else:
        references = read_references(questions)
    try:
        return compare(references, read_predictions(first), read_predictions(second), confidence)
    except ValueError as error:
        raise InputError(f"{first} and {second} cannot be compared on {questions}: {error}") from None


def changed_csv(changed: Sequence[Mapping[str, object]]) -> str:
    """Return a CSV with a line for each changed answer."""
    return csv_text(CHANGED, ([question[name] for name in CHANGED] for question in changed))


def format_comparison(comparison: Mapping[str, Any], confidence: float) -> str:
    """Return text for the terminal; the largest changes of F1 come first."""
    lines = [f"{comparison['questions']} questions with both predictions, {len(comparison['changed'])} answers changed"]
    for name, title in OVERALL.titles.items():
        points = "{mean:+.2f} points ({low:+.2f} to {high:+.2f}".format_map(comparison[f"{name}_difference"])
        lines.append(
            f"{title}: {comparison[f'{name}_first']:.2f} -> {comparison[f'{name}_second']:.2f}, {points} at confidence "
            f"{confidence:g}, paired bootstrap)"
        )
    lines.append(
        "correct only in the first: {first_only}, only in the second: {second_only} (McNemar's exact test, two-sided: "
        "p = {p_value:.4g})".format_map(comparison["mcnemar"])
    )
    ranked = sorted(comparison["changed"], key=lambda question: -abs(question["second_f1"] - question["first_f1"]))
    change = "  {id}: {first!r} (F1 {first_f1:.2f}) -> {second!r} (F1 {second_f1:.2f})"
    lines += [change.format_map(question) for question in ranked[:SHOWN]]
    if len(ranked) > SHOWN:
        lines.append(f"  ... and {len(ranked) - SHOWN} more (--changed FILE lists all)")
    return "\n".join(lines)
