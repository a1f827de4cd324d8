"""Questions and contexts to features: windows of [CLS] question [SEP] context [SEP] that fit a row.

Only the context is cut; `doc_stride` is the number of context tokens that two neighbouring windows
share (the Hugging Face sense). The functions are pure and serve training, prediction and one question
at the command line alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tasks.encoding import encode, encode_with_offsets, read_vocabulary
from tasks.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL_PER_FEATURE = 3
"""[CLS] question [SEP] context [SEP]"""


@dataclass(frozen=True)
class Features:
    """F features of E examples, in order of the examples, windows from left to right.

    T is the number of tokens of all features, C that of their context tokens.
    """

    token_ids: np.ndarray
    """uint16 or uint32[T], special tokens included, one feature after the other."""
    lengths: np.ndarray
    """int64[F] tokens of each feature; sum T."""
    context_starts: np.ndarray
    """int64[F] position in the feature of its first context token; token types are 1 from here on."""
    offsets: np.ndarray
    """int32[C, 2] characters of each context token in the example's context, end exclusive."""
    example_index: np.ndarray
    """int64[F] which example the feature is a window of."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def context_lengths(self) -> np.ndarray:
        """int64[F] context tokens of each feature; sum C."""
        return self.lengths - self.context_starts - 1

    def offsets_of(self, feature: int) -> np.ndarray:
        """int32[context tokens, 2] of one feature."""
        end = int(self.context_lengths[: feature + 1].sum())
        return self.offsets[end - int(self.context_lengths[feature]) : end]


@dataclass(frozen=True)
class Spans:
    """int64[F] first and last token of the answer, positions in the feature; [CLS] (0) when it is not inside."""

    starts: np.ndarray
    ends: np.ndarray


def windows(context_length: int, window: int, doc_stride: int) -> list[tuple[int, int]]:
    """Spans (start, stop) of context tokens, each `doc_stride` tokens shared with the one before.

    windows(10, window=6, doc_stride=2) == [(0, 6), (4, 10)]; an empty context has one empty window.
    """
    spans = [(0, min(window, context_length))]
    while spans[-1][1] < context_length:
        start = spans[-1][0] + window - doc_stride
        spans.append((start, min(start + window, context_length)))
    return spans


def make_features(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    row_length: int,
    doc_stride: int,
    max_question_length: int,
) -> Features:
    """Features of examples (questions[e], contexts[e]).

    Args:
        row_length: tokens of a feature at most.
        doc_stride: context tokens that neighbouring windows share.
        max_question_length: question tokens kept.

    Returns:
        at least one feature per example.

    Raises:
        InputError: a question leaves the windows no room to move on.
    """
    vocabulary = read_vocabulary(tokenizer)
    unique = list(dict.fromkeys(contexts))  # SQuAD asks several questions on a paragraph: tokenize it once
    encoded = dict(zip(unique, encode_with_offsets(tokenizer, unique), strict=True))
    tokens: list[np.ndarray] = [np.empty(0, dtype=vocabulary.dtype)]
    offsets: list[np.ndarray] = [np.empty((0, 2), dtype=np.int32)]
    shapes: list[tuple[int, int, int]] = []
    cls, sep = (np.array([token], dtype=vocabulary.dtype) for token in (vocabulary.cls, vocabulary.sep))
    for example, question in enumerate(encode(tokenizer, questions, vocabulary.dtype)):
        question = question[:max_question_length]
        room = row_length - SPECIAL_PER_FEATURE - len(question)
        _check_room(room, doc_stride, row_length, questions[example], len(question))
        context, context_offsets = encoded[contexts[example]]
        for start, stop in windows(len(context), room, doc_stride):
            tokens += [cls, question, sep, context[start:stop].astype(vocabulary.dtype), sep]
            offsets.append(context_offsets[start:stop])
            shapes.append((example, len(question) + 2, len(question) + SPECIAL_PER_FEATURE + stop - start))
    shape = np.array(shapes, dtype=np.int64).reshape(-1, 3)
    return Features(
        token_ids=np.concatenate(tokens),
        lengths=shape[:, 2],
        context_starts=shape[:, 1],
        offsets=np.concatenate(offsets),
        example_index=shape[:, 0],
    )


def _check_room(room: int, doc_stride: int, row_length: int, question: str, n_tokens: int) -> None:
    if room <= doc_stride:
        shown = question if len(question) <= 60 else question[:57] + "..."
        raise InputError(
            f"the question {shown!r} keeps {n_tokens} tokens and leaves {max(room, 0)} of {row_length} for the "
            f"context, which must be more than doc_stride={doc_stride}: lower squad_rows.max_question_length or "
            "doc_stride, or raise row_length"
        )


def find_answers(features: Features, answer_starts: np.ndarray, answer_ends: np.ndarray) -> Spans:
    """Token spans of the answers, as Hugging Face's run_qa labels them.

    The first token is the last one that begins at or before the answer, the last token the first one
    that ends at or after it. A window that does not hold the whole answer points at [CLS].

    Args:
        answer_starts, answer_ends: int[E] characters in the context, end exclusive; -1 = no answer.
    """
    starts, ends = np.zeros(len(features), dtype=np.int64), np.zeros(len(features), dtype=np.int64)
    stops = np.cumsum(features.context_lengths)
    for feature, example in enumerate(features.example_index.tolist()):
        begin, end = int(answer_starts[example]), int(answer_ends[example])
        offsets = features.offsets[stops[feature] - features.context_lengths[feature] : stops[feature]]
        if begin < 0 or not len(offsets) or offsets[0, 0] > begin or offsets[-1, 1] < end:
            continue
        first = np.searchsorted(offsets[:, 0], begin, side="right") - 1
        last = np.searchsorted(offsets[:, 1], end, side="left")
        starts[feature] = features.context_starts[feature] + first
        ends[feature] = features.context_starts[feature] + last
    return Spans(starts, ends)
