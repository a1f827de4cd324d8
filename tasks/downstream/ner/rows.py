"""Conversion of sentences to rows: windows of their words, and features.parquet to map them back.

A sequence is the tokens of the words between the first and last special token. A sentence that is longer than a row is
split between words into windows, which overlap. Each word belongs to the window in which it has the most context, and
is labelled and predicted only there, so that no word is lost or counted twice.

Legend: W words of all sentences. A piece is a token of a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tasks.downstream.ner.params import NerRowsParams
from tasks.downstream.ner.schemas import FEATURES_SCHEMA
from tasks.downstream.packed_rows import EncodedSequences, Encoder, make_lists
from tasks.params.entries import TRAIN
from tasks.records.labels import add_labels, read_example_labels
from tasks.rows.row_files import IGNORED, RowLayout, concatenate_ranges
from tasks.vocabulary.encoding import EncodedTexts, TokenizerInfo, encode, join_sequences, read_tokenizer_info

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def split_windows(pieces: Sequence[int], room: int, overlap: int) -> list[tuple[int, int]]:
    """Return the windows (first word, last + 1) of a sentence.

    Args:
        pieces: number of tokens of each word, 1 to `room`.
        room: tokens in a window without special tokens.
        overlap: maximum tokens that neighbouring windows share.

    split_windows([1] * 10, room=6, overlap=2) == [(0, 6), (4, 10)]
    """
    windows: list[tuple[int, int]] = []
    start = 0
    while True:
        stop, held = start, 0
        while stop < len(pieces) and held + pieces[stop] <= room:
            held += pieces[stop]
            stop += 1
        windows.append((start, stop))
        if stop == len(pieces):
            return windows
        # The overlap must leave room for the next word.
        shared, start, most = 0, stop, min(overlap, room - pieces[stop])
        while start > windows[-1][0] + 1 and shared + pieces[start - 1] <= most:
            start -= 1
            shared += pieces[start]


def make_windows(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], row_length: int, overlap: int
) -> EncodedSequences:
    """Return windows of at most `row_length` tokens, without labels, in order of the sentences and from left to right;
    every sentence has at least one word.
    """
    vocabulary = read_tokenizer_info(tokenizer)
    room = row_length - vocabulary.special_per_text
    bounds = np.concatenate([[0], np.cumsum([len(words) for words in sentences], dtype=np.int64)])
    encoded = encode(tokenizer, [vocabulary.as_word(word) for words in sentences for word in words])
    pieces = np.clip(encoded.lengths, 1, room)
    ends = np.cumsum(pieces)
    starts = ends - pieces
    of_sentences = np.diff(np.concatenate([[0], ends])[bounds])
    spans = [
        (number, bounds[number] + first, bounds[number] + stop)
        for number, held in enumerate(of_sentences.tolist())
        for first, stop in _spans_of(pieces[bounds[number] : bounds[number + 1]], held, room, overlap)
    ]
    example, first_words, stop_words = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    begin, inner = starts[first_words], ends[stop_words - 1] - starts[first_words]
    window, positions = _owners(first_words, stop_words, ends)
    joined = join_sequences(vocabulary, (_pieces_of_words(encoded, pieces, vocabulary), begin, inner))
    return EncodedSequences(
        joined.token_ids,
        joined.lengths,
        second_starts=joined.lengths,
        features={
            "example_index": example,
            "n_tokens": joined.lengths,
            "positions": make_lists(np.bincount(window, minlength=len(example)), positions),
        },
        counts={
            "in several windows": int((np.bincount(example) > 1).sum()),
            "words without tokens, replaced by [UNK]": int((encoded.lengths == 0).sum()),
            "words longer than a row, truncated": int((encoded.lengths > room).sum()),
        },
    )


def _spans_of(pieces: np.ndarray, held: int, room: int, overlap: int) -> list[tuple[int, int]]:
    return [(0, len(pieces))] if held <= room else split_windows(pieces.tolist(), room, overlap)


def _pieces_of_words(encoded: EncodedTexts, pieces: np.ndarray, vocabulary: TokenizerInfo) -> np.ndarray:
    """Return the tokens of all words, `pieces` of each; [UNK] for a word without tokens."""
    kept = np.full(int(pieces.sum()), vocabulary.unk, dtype=vocabulary.dtype)
    present, starts = encoded.lengths > 0, np.cumsum(pieces) - pieces
    kept[concatenate_ranges(starts[present], pieces[present])] = encoded.token_ids[
        concatenate_ranges(encoded.starts[present], pieces[present])
    ]
    return kept


def _owners(first_words: np.ndarray, stop_words: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the window of every word and the position of its first token there, int64[W] each.

    Args:
        first_words, stop_words: words of each window.
        ends: end of each word, in tokens of all words.
    """
    counts, starts = stop_words - first_words, np.append(0, ends)
    words, window = concatenate_ranges(first_words, counts), np.repeat(np.arange(len(counts)), counts)
    left = starts[words] - starts[first_words][window]
    around = np.minimum(left, ends[stop_words - 1][window] - ends[words])
    best = np.lexsort((window, -around, words))  # by word, then largest context, then first window
    owner = best[np.concatenate([[True], np.diff(words[best]) > 0])]
    return window[owner], left[owner] + 1


class NerEncoder(Encoder):
    """Rows of sentences: one or more windows of words each."""

    chunk = 16384
    columns = ("tokens", "tags")
    hashed = ("tokens",)

    @property
    def labels(self) -> tuple[str, ...]:
        return read_example_labels(self.entry.examples_file(TRAIN).parent, self.entry.stage("examples"))

    @property
    def features(self) -> pa.Schema:
        return add_labels(FEATURES_SCHEMA, self.labels)

    def hashed_texts(self, examples: pa.RecordBatch) -> Iterable[str]:
        return map("\n".join, examples.column("tokens").to_pylist())

    def sequences(self, tokenizer: Tokenizer, examples: pa.RecordBatch, *, labelled: bool) -> EncodedSequences:
        """Return the sequences; rows for prediction are also labelled, except for types not in train."""
        shape = self.entry.rows
        assert isinstance(shape, NerRowsParams)
        windows = make_windows(tokenizer, examples.column("tokens").to_pylist(), shape.row_length, shape.overlap)
        numbers = {name: number for number, name in enumerate(self.labels)}
        tags = [numbers.get(tag, IGNORED) for tags in examples.column("tags").to_pylist() for tag in tags]
        return replace(windows, labels={"token_labels": token_labels(windows, np.array(tags, dtype=np.int16))})

    def label_columns(self, layout: RowLayout, sequences: EncodedSequences) -> dict[str, np.ndarray]:
        flat = np.full(len(layout.packs) * layout.row_length, IGNORED, dtype=np.int16)
        flat[layout.targets] = sequences.labels["token_labels"]
        return {"token_labels": flat.reshape(len(layout.packs), layout.row_length)}


def token_labels(windows: EncodedSequences, labels: np.ndarray) -> np.ndarray:
    """Return int16 labels of all tokens: the word's label at its first token, else -100.

    Args:
        labels: int16 label of each word.
    """
    positions: pa.ListArray = windows.features["positions"]
    first = np.cumsum(windows.lengths) - windows.lengths
    all_labels = np.full(len(windows.token_ids), IGNORED, dtype=np.int16)
    all_labels[np.repeat(first, positions.value_lengths()) + positions.flatten()] = labels
    return all_labels
