"""Conversion of questions to rows: windows of their contexts, and features.parquet to map them back.

A window (feature) is a question and a part of its context that fit a row. As in Hugging Face, `doc_stride` is the
number of context tokens that two neighbouring windows share. The functions for features are pure and used for training,
prediction and `podium predict --context`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.downstream.packed_rows import READ_AT_ONCE, EncodedSequences, Encoder, HeldOutPartition, make_lists
from tasks.downstream.squad.params import SquadParams, SquadRowsParams
from tasks.downstream.squad.schemas import FEATURES_SCHEMA
from tasks.records.parquet import read_batches, read_columns
from tasks.rows.held_out import choose_groups
from tasks.rows.row_files import IGNORED, RowLayout, concatenate_ranges, from_arrow, to_arrow
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import encode, join_sequences, read_tokenizer_info

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def make_features(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    row_length: int,
    doc_stride: int,
    max_question_length: int,
    context_of: np.ndarray | None = None,
) -> EncodedSequences:
    """Return features of E examples, without labels: questions[e] about contexts[e], or about contexts[context_of[e]].

    Every example has at least one feature; they are in order of the examples, windows from left to right.

    Args:
        row_length: maximum tokens of a feature.
        doc_stride: context tokens that neighbouring windows share.
        max_question_length: maximum question tokens; longer questions are truncated.
        context_of: int[E]; SQuAD has several questions per paragraph, which is then tokenized once.

    Raises:
        InputError: a question leaves too little room for the context.
    """
    asked, about = encode(tokenizer, questions), encode(tokenizer, contexts)
    question_lengths = np.minimum(asked.lengths, max_question_length)
    vocabulary = read_tokenizer_info(tokenizer)
    room = row_length - vocabulary.special_per_pair - question_lengths
    tight = np.flatnonzero(room <= doc_stride)
    if len(tight):
        first = int(tight[0])
        question, tokens, left = questions[first], int(question_lengths[first]), int(room[first])
        shown = question if len(question) <= 60 else question[:57] + "..."
        raise InputError(
            f"the question {shown!r} has {tokens} tokens and leaves {max(left, 0)} of {row_length} for the context, "
            f"more than doc_stride={doc_stride} are required (questions of up to {tokens + left - doc_stride - 1} "
            "tokens fit). Shorten it, lower max_question_length or doc_stride of section rows, or raise row_length"
        )
    context = np.arange(len(questions)) if context_of is None else np.asarray(context_of, dtype=np.int64)
    example, start, stop = _all_windows(about.lengths[context], room, doc_stride)
    first_tokens = about.starts[context][example] + start
    joined = join_sequences(
        vocabulary,
        (asked.token_ids, asked.starts[example], question_lengths[example]),
        (about.token_ids, first_tokens, stop - start),
    )
    offsets = about.offsets[concatenate_ranges(first_tokens, stop - start)]
    return EncodedSequences(
        joined.token_ids,
        joined.lengths,
        joined.second_starts,
        features={
            "example_index": example,
            "n_tokens": joined.lengths,
            "context_start": joined.text_starts[1],
            "offsets": make_lists(2 * (stop - start), offsets.reshape(-1)),
        },
    )


def _all_windows(
    context_lengths: np.ndarray, room: np.ndarray, doc_stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the windows of all contexts, sharing `doc_stride` tokens with the previous one: example, start and stop,
    int64[F]. An empty context has one empty window."""
    more = np.maximum(context_lengths - room, 0)
    counts = 1 - (-more // (room - doc_stride))
    example = np.repeat(np.arange(len(counts)), counts)
    start = concatenate_ranges(np.zeros(len(counts), dtype=np.int64), counts) * (room - doc_stride)[example]
    return example, start, np.minimum(start + room[example], context_lengths[example])


def find_answers(
    features: EncodedSequences, answer_starts: np.ndarray, answer_ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the first and last answer token in each feature, int64[F] each, as in Hugging Face's
    run_qa.

    The first token is the last one that begins at or before the answer, the last token the first one that ends at or
    after it. A window that does not contain the whole answer points to [CLS].

    Args:
        answer_starts, answer_ends: int[E] characters in the context, end exclusive; -1 = no answer.
    """
    columns, count = features.features, len(features.lengths)
    begins, ends = (positions[columns["example_index"]] for positions in (answer_starts, answer_ends))  # [F]
    lists: pa.ListArray = columns["offsets"]
    offsets = from_arrow(lists.values).reshape(-1, 2)
    bounds = from_arrow(lists.offsets).astype(np.int64) // 2
    firsts, stops = bounds[:-1], bounds[1:]
    held = np.flatnonzero((begins >= 0) & (stops > firsts))
    inside = (offsets[firsts[held], 0] <= begins[held]) & (offsets[stops[held] - 1, 1] >= ends[held])
    held = held[inside]
    # Characters ascend in each window. An offset per window makes them ascend overall, so that one search is enough.
    far = np.int64(offsets.max(initial=0)) + 2
    window = np.repeat(np.arange(count), stops - firsts)
    characters = offsets + (window * far)[:, None]
    first = np.searchsorted(characters[:, 0], held * far + begins[held], side="right") - 1
    last = np.searchsorted(characters[:, 1], held * far + ends[held])
    first_tokens, last_tokens = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    to_position = columns["context_start"][held] - firsts[held]
    first_tokens[held], last_tokens[held] = first + to_position, last + to_position
    return first_tokens, last_tokens


class SquadEncoder(Encoder):
    """Rows of questions: one or more windows of question and context each."""

    chunk = 4096
    """On 7,110 real features, rows of 384 have 0.960 real tokens with chunks of 1,024 questions, and 0.967 with 4,096
    or with a single chunk."""
    columns = ("id", "question", "context", "answers")
    features = FEATURES_SCHEMA

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

        sides = HeldOutPartition(column, held_out)
        params = self.entry.params_as(SquadParams)
        if params.nullable and params.evaluate.null_threshold == "auto":
            _require_both(source, sides, key, self.entry.key("evaluate"))
        return sides

    def sequences(self, tokenizer: Tokenizer, examples: pa.RecordBatch, *, labelled: bool) -> EncodedSequences:
        shape, contexts = self.entry.rows, examples.column("context").dictionary_encode()
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
        ids = examples.column("id").take(to_arrow(features.features["example_index"]))
        return replace(
            features,
            labels={} if spans is None else {"start_positions": spans[0], "end_positions": spans[1]},
            features={**features.features, "example_id": ids},
            counts={} if spans is None else {"holding their answer": int((spans[0] > 0).sum())},
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
    """Refuse held-out questions that all have an answer, or none: they cannot select a threshold."""
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
    [values] = read_columns(path, [column], READ_AT_ONCE, "questions")
    return Counter(values)


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
