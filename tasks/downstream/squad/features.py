"""Conversion of questions and contexts to features: pairs of a question and a window of its context that fit a row.

Only the context is split. As in Hugging Face, `doc_stride` is the number of context tokens that two neighbouring
windows share. The functions are pure and used for training, prediction and `podium ask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tasks.rows.row_files import concatenate_ranges
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import encode, join_sequences, read_tokenizer_info

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Features:
    """F features of E examples, in order of the examples, windows from left to right.

    T is the number of tokens of all features, C that of their context tokens.
    """

    token_ids: np.ndarray
    """uint16 or uint32[T], concatenated features with special tokens."""
    lengths: np.ndarray
    """int64[F] tokens of each feature; sum T."""
    context_starts: np.ndarray
    """int64[F] position of the first context token in the feature."""
    second_starts: np.ndarray
    """int64[F] first position with token type 1."""
    context_tokens: np.ndarray
    """int64[F] number of the first context token in its context."""
    offsets: np.ndarray
    """int32[C, 2] characters of each context token in the context, end exclusive."""
    example_index: np.ndarray
    """int64[F] example of each feature."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def context_lengths(self) -> np.ndarray:
        """int64[F] context tokens of each feature; sum C."""
        return self.lengths - self.context_starts - 1


@dataclass(frozen=True)
class AnswerPositions:
    """int64[F] positions of the first and last answer token in the feature; [CLS] (0) if the answer is not inside."""

    starts: np.ndarray
    ends: np.ndarray


def make_features(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    row_length: int,
    doc_stride: int,
    max_question_length: int,
    context_of: np.ndarray | None = None,
) -> Features:
    """Return features of E examples: questions[e] about contexts[e], or about contexts[context_of[e]].

    Args:
        row_length: maximum tokens of a feature.
        doc_stride: context tokens that neighbouring windows share.
        max_question_length: maximum question tokens; longer questions are truncated.
        context_of: int[E]; SQuAD has several questions per paragraph, which is then tokenized once.

    Returns:
        At least one feature per example.

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
        raise _too_long(questions[first], int(question_lengths[first]), int(room[first]), row_length, doc_stride)
    context = np.arange(len(questions)) if context_of is None else np.asarray(context_of, dtype=np.int64)
    example, start, stop = _all_windows(about.lengths[context], room, doc_stride)
    first_tokens = about.starts[context][example] + start
    joined = join_sequences(
        vocabulary,
        (asked.token_ids, asked.starts[example], question_lengths[example]),
        (about.token_ids, first_tokens, stop - start),
    )
    offsets = about.offsets[concatenate_ranges(first_tokens, stop - start)]
    return Features(
        joined.token_ids, joined.lengths, joined.text_starts[1], joined.second_starts, start, offsets, example
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


def _too_long(question: str, n_tokens: int, room: int, row_length: int, doc_stride: int) -> InputError:
    shown = question if len(question) <= 60 else question[:57] + "..."
    return InputError(
        f"the question {shown!r} has {n_tokens} tokens and leaves {max(room, 0)} of {row_length} for the context, more "
        f"than doc_stride={doc_stride} are required (questions of up to {n_tokens + room - doc_stride - 1} tokens "
        "fit). Shorten it, lower max_question_length or doc_stride of section rows, or raise row_length"
    )


def find_answers(features: Features, answer_starts: np.ndarray, answer_ends: np.ndarray) -> AnswerPositions:
    """Return the token spans of the answers, labelled as in Hugging Face's run_qa.

    The first token is the last one that begins at or before the answer, the last token the first one that ends at or
    after it. A window that does not contain the whole answer points to [CLS].

    Args:
        answer_starts, answer_ends: int[E] characters in the context, end exclusive; -1 = no answer.
    """
    begins, ends = answer_starts[features.example_index], answer_ends[features.example_index]  # [F]
    stops = np.cumsum(features.context_lengths)
    firsts = stops - features.context_lengths
    held = np.flatnonzero((begins >= 0) & (features.context_lengths > 0))
    inside = (features.offsets[firsts[held], 0] <= begins[held]) & (features.offsets[stops[held] - 1, 1] >= ends[held])
    held = held[inside]
    # Characters ascend in each window. An offset per window makes them ascend overall, so that one search is enough.
    far = np.int64(features.offsets.max(initial=0)) + 2
    window = np.repeat(np.arange(len(features)), features.context_lengths)
    characters = features.offsets + (window * far)[:, None]
    first = np.searchsorted(characters[:, 0], held * far + begins[held], side="right") - 1
    last = np.searchsorted(characters[:, 1], held * far + ends[held])
    spans = AnswerPositions(np.zeros(len(features), dtype=np.int64), np.zeros(len(features), dtype=np.int64))
    to_position = features.context_starts[held] - firsts[held]
    spans.starts[held], spans.ends[held] = first + to_position, last + to_position
    return spans
