"""Conversion of questions to rows: windows of their contexts, and features.parquet to map them back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.downstream.rows import READ_AT_ONCE, EncodedSequences, HeldOutPartition, RowsTask, make_lists
from tasks.downstream.squad.features import find_answers, make_features
from tasks.downstream.squad.params import SquadEvaluateParams, SquadRowsParams
from tasks.downstream.squad.spec import FEATURES_SCHEMA, SquadSpec
from tasks.records.parquet import read_batches
from tasks.rows.held_out import choose_groups
from tasks.rows.row_files import IGNORED, RowLayout, from_arrow, to_arrow
from tasks.stage.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class SquadRows(SquadSpec, RowsTask):
    """Rows of questions: one or more windows of question and context each."""

    chunk: ClassVar[int] = 4096
    """On 7,110 real features, rows of 384 have 0.960 real tokens with chunks of 1,024 questions, and 0.967 with 4,096
    or with a single chunk."""
    columns: ClassVar[tuple[str, ...]] = ("id", "question", "context", "answers")
    chunks_for_processes: ClassVar[int | None] = 24
    """A chunk takes 0.12 s, including 0.03 s of writing in one process: 87,599 questions (22 chunks) take 2.9 s in one
    process, 2.6 s with two more on two cores."""

    @property
    def features(self) -> pa.Schema:
        return FEATURES_SCHEMA

    def hold_out(self, source: Path, fraction: float) -> HeldOutPartition:
        """Partition by title, or by context if there is a single title."""
        column, key = "title", self.entry.key("rows", "held_out_fraction")
        groups = _questions_by(source, column)
        if len(groups) < 2:
            column = "context"
            groups = _questions_by(source, column)
        chosen = pa.array(sorted(choose_groups(groups, fraction, column, key)), pa.string())

        def held_out(batch: pa.RecordBatch) -> pa.Array:
            return pc.is_in(batch.column(column), value_set=chosen)

        evaluate = self.entry.params.evaluate
        assert isinstance(evaluate, SquadEvaluateParams)
        sides = HeldOutPartition(column, lambda batch: pc.invert(held_out(batch)), held_out)
        if self.nullable and evaluate.null_threshold == "auto":
            _require_both(source, sides, key, self.entry.key("evaluate"))
        return sides

    def encode_chunk(self, examples: pa.Table) -> pa.RecordBatch:
        """Return the columns with dictionary-encoded contexts, as Arrow to avoid a Python object per text."""
        columns = {name: examples.column(name).combine_chunks() for name in ("id", "question", "answers")}
        context = examples.column("context").combine_chunks().dictionary_encode()
        return pa.RecordBatch.from_pydict({**columns, "context": context})

    def sequences(self, tokenizer: Tokenizer, examples: pa.RecordBatch, *, labelled: bool) -> EncodedSequences:
        shape, contexts = self.entry.rows, examples.column("context")
        assert isinstance(shape, SquadRowsParams)
        features = make_features(
            tokenizer,
            examples.column("question").to_pylist(),
            contexts.dictionary.to_pylist(),
            shape.row_length,
            shape.doc_stride,
            shape.max_question_length,
            from_arrow(contexts.indices),
        )
        spans = find_answers(features, *_first_answers(examples.column("answers"))) if labelled else None
        return EncodedSequences(
            token_ids=features.token_ids,
            lengths=features.lengths,
            second_starts=features.second_starts,
            labels={} if spans is None else {"start_positions": spans.starts, "end_positions": spans.ends},
            features={
                "example_id": examples.column("id").take(to_arrow(features.example_index)),
                "example_index": features.example_index,
                "n_tokens": features.lengths,
                "context_start": features.context_starts,
                "offsets": make_lists(2 * features.context_lengths, features.offsets.reshape(-1)),
            },
            counts={} if spans is None else {"holding their answer": int((spans.starts > 0).sum())},
        )

    def label_columns(self, layout: RowLayout, sequences: EncodedSequences) -> dict[str, np.ndarray]:
        """Return start_positions and end_positions of rows; -100 in empty slots and without labels."""
        columns = {}
        for name in ("start_positions", "end_positions"):
            within = sequences.labels.get(name)
            absolute = np.full(len(sequences.lengths), IGNORED) if within is None else within + layout.start_of
            columns[name] = layout.per_sequence(absolute, IGNORED).astype(np.int16)
        return columns


def _require_both(path: Path, sides: HeldOutPartition, key: str, section: str) -> None:
    """Refuse held-out questions that all have an answer, or none: they cannot select a threshold.

    Args:
        key: parameter of the held-out fraction.
        section: section of the threshold's parameter, for the message.

    Raises:
        InputError: names the parameters to set.
    """
    kinds: Counter[bool] = Counter()
    for batch in read_batches(path, ["answers", sides.column], READ_AT_ONCE, "questions"):
        answers = batch.filter(sides.held_out(batch)).column("answers")
        kinds.update(bool(count) for count in answers.value_lengths().to_pylist())
    if len(kinds) < 2:
        raise InputError(
            f"{'all' if kinds[True] else 'none'} of the {kinds.total():,} held-out questions have an answer, so they "
            f"cannot select the no-answer threshold. Raise {key}, or set {section}.null_threshold to a number"
        )


def _questions_by(path: Path, column: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for batch in read_batches(path, [column], READ_AT_ONCE, "questions"):
        counts.update(batch.column(column).to_pylist())
    return counts


def _first_answers(answers: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first character and the end of the first answer of every question, [E]; -1 without one."""
    none = to_arrow(np.zeros(len(answers), np.int32))
    counts = from_arrow(pc.coalesce(answers.value_lengths(), none))
    flat = answers.flatten()  # skips values of null entries
    starts, ends = np.full(len(answers), -1), np.full(len(answers), -1)
    first = (np.cumsum(counts) - counts)[counts > 0]
    starts[counts > 0] = from_arrow(flat.field("answer_start"))[first]
    ends[counts > 0] = starts[counts > 0] + from_arrow(pc.utf8_length(flat.field("text")))[first]
    return starts, ends
