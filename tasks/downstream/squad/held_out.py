"""Which training questions are held out: whole titles, or contexts where there is a single title."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.downstream.rows import READ_AT_ONCE, Sides
from tasks.project.errors import InputError
from tasks.reading.parquet import read_batches
from tasks.rows.held_out import choose_groups


def split_questions(path: Path, fraction: float, key: str) -> Sides:
    """The sides of a file of questions, from its texts alone: whole titles, or contexts, are on one side.

    Args:
        key: the parameter that states the fraction, for messages.

    Raises:
        InputError: the file is missing or no questions file, or all questions are about one context.
    """
    column = "title"
    groups = _questions_by(path, column)
    if len(groups) < 2:
        column = "context"
        groups = _questions_by(path, column)
    chosen = pa.array(sorted(choose_groups(groups, fraction, column, key)), pa.string())

    def held_out(batch: pa.RecordBatch) -> pa.Array:
        return pc.is_in(batch.column(column), value_set=chosen)

    return Sides(column, lambda batch: pc.invert(held_out(batch)), held_out)


def require_both(path: Path, sides: Sides, key: str, section: str) -> None:
    """Refuse held-out questions that all have an answer, or none: no threshold between the two can be chosen by them.

    Args:
        key: the parameter that states the fraction.
        section: the section of the parameter that states a threshold, for the message.

    Raises:
        InputError: says what to set.
    """
    kinds: Counter[bool] = Counter()
    for batch in read_batches(path, ["answers", sides.column], READ_AT_ONCE, "questions"):
        answers = batch.filter(sides.held_out(batch)).column("answers")
        kinds.update(bool(count) for count in answers.value_lengths().to_pylist())
    if len(kinds) < 2:
        raise InputError(
            f"of the {kinds.total():,} questions held out {'all' if kinds[True] else 'none'} have an answer, so that "
            f"no threshold for giving none can be chosen by them: raise {key}, or set {section}.null_threshold to a "
            "number"
        )


def _questions_by(path: Path, column: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for batch in read_batches(path, [column], READ_AT_ONCE, "questions"):
        counts.update(batch.column(column).to_pylist())
    return counts
