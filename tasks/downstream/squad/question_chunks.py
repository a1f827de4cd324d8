"""The questions of a stage in chunks of a fixed number, all of them or those of one side of a held-out split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.reading.parquet import read_batches
from tasks.rows.held_out import choose_groups

COLUMNS = ("id", "question", "context", "answers")
"""Read of the questions."""
CHUNK_QUESTIONS = 4096
"""Questions per chunk. Another number gives other rows, so it is no parameter. On 7,110 real features rows of
384 hold 0.960 real tokens with chunks of 1,024 questions, and 0.967 with 4,096 as with all at once."""
READ_AT_ONCE = 1024
"""Questions decoded from Parquet at a time."""
Side = Callable[[pa.RecordBatch], pa.Array]
"""Which questions of a batch are wanted: booleans."""


@dataclass(frozen=True)
class Split:
    """Groups of questions that are kept from training."""

    column: str
    """title or context: the questions that share its text are a group."""
    groups: pa.Array

    def held_out(self, batch: pa.RecordBatch) -> pa.Array:
        """The side to evaluate on."""
        return pc.is_in(batch.column(self.column), value_set=self.groups)

    def training(self, batch: pa.RecordBatch) -> pa.Array:
        """The other side."""
        return pc.invert(self.held_out(batch))


def split_questions(path: Path, fraction: float) -> Split | None:
    """The split of a questions file, from its texts alone; None for fraction 0.

    Raises:
        InputError: the file is missing or no questions file, or all questions are about one context.
    """
    if fraction <= 0:
        return None
    column = "title"
    groups = _questions_by(path, column)
    if len(groups) < 2:
        column = "context"
        groups = _questions_by(path, column)
    return Split(column, pa.array(sorted(choose_groups(groups, fraction, column)), pa.string()))


def _questions_by(path: Path, column: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for batch in read_batches(path, [column], READ_AT_ONCE, "questions"):
        counts.update(batch.column(column).to_pylist())
    return counts


def read_questions(path: Path, side: Side | None = None) -> Iterator[pa.RecordBatch]:
    """Chunks of questions with id, question, answers and context, each context of a chunk once (a dictionary).

    They stay Arrow, which travels to another process without a Python object per text.

    Args:
        side: those wanted; None for all.

    Raises:
        InputError: the file is missing or no questions file.
    """
    waiting: list[pa.RecordBatch] = []
    # A batch ends with its row group: chunks are cut here, so that they depend on the questions alone.
    for batch in read_batches(path, COLUMNS if side is None else (*COLUMNS, "title"), READ_AT_ONCE, "questions"):
        waiting.append(batch if side is None else batch.filter(side(batch)))
        while sum(map(len, waiting)) >= CHUNK_QUESTIONS:
            table = pa.Table.from_batches(waiting)
            yield _chunk(table.slice(0, CHUNK_QUESTIONS))
            waiting = table.slice(CHUNK_QUESTIONS).to_batches()
    if any(map(len, waiting)):
        yield _chunk(pa.Table.from_batches(waiting))


def _chunk(table: pa.Table) -> pa.RecordBatch:
    context = table.column("context").combine_chunks().dictionary_encode()
    columns = {name: table.column(name).combine_chunks() for name in ("id", "question", "answers")}
    return pa.RecordBatch.from_pydict({**columns, "context": context})
