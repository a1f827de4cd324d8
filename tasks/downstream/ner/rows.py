"""Sentences as sequences of rows: windows of their words, with features.parquet to find the way back.

A sequence is [CLS] pieces of the words [SEP]; a sentence that is longer than a row is cut into windows, between words.
Neighbouring windows share words; each word belongs to the window in which it has most tokens around it, learns there
and is predicted there, so that no word is lost and none counts twice.

Legend: W words of all sentences together, F windows, T their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.ner import about
from tasks.downstream.ner.about import FEATURES_SCHEMA
from tasks.downstream.ner.params import WindowParams
from tasks.downstream.rows import RowsTask, Sequences, Sides, make_lists
from tasks.plan.kinds import TRAIN
from tasks.records.labels import labels_of_examples, with_labels
from tasks.rows.row_files import IGNORED, Layout, ranges
from tasks.vocabulary.encoding import Encoded, Vocabulary, encode, lay_out_sequences, read_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Windows:
    """F windows, in order of the sentences and from left to right."""

    token_ids: np.ndarray
    """uint16 or uint32[T], special tokens included, one window after the other."""
    lengths: np.ndarray
    """int64[F] tokens of each window, sum T."""
    example_index: np.ndarray
    """int64[F] which sentence the window is of."""
    own_words: np.ndarray
    """int64[F] words that belong to each window; sum W. Taken one after the other, they are all words in order."""
    positions: np.ndarray
    """int64[W] position of each word's first piece in the window that it belongs to."""
    unknown: int
    """Words of which the tokenizer leaves nothing; they become [UNK]."""
    shortened: int
    """Words that are longer than a row, and lose pieces at their end."""
    divided: int
    """Sentences of several windows."""


def spans(pieces: Sequence[int], room: int, overlap: int) -> list[tuple[int, int]]:
    """Windows (first word, last + 1) of a sentence.

    Args:
        pieces: of each word, 1 to `room`.
        room: pieces that a window holds.
        overlap: pieces at most that neighbouring windows share.

    spans([1] * 10, room=6, overlap=2) == [(0, 6), (4, 10)]
    """
    found: list[tuple[int, int]] = []
    start = 0
    while True:
        stop, held = start, 0
        while stop < len(pieces) and held + pieces[stop] <= room:
            held += pieces[stop]
            stop += 1
        found.append((start, stop))
        if stop == len(pieces):
            return found
        # What is shared must leave room for the word that comes next.
        shared, start, most = 0, stop, min(overlap, room - pieces[stop])
        while start > found[-1][0] + 1 and shared + pieces[start - 1] <= most:
            start -= 1
            shared += pieces[start]


def make_windows(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], row_length: int, overlap: int) -> Windows:
    """Windows of at most `row_length` tokens; every sentence has a word or more."""
    room = row_length - 2
    bounds = np.concatenate([[0], np.cumsum([len(words) for words in sentences], dtype=np.int64)])
    encoded = encode(tokenizer, [word for words in sentences for word in words])
    pieces = np.clip(encoded.lengths, 1, room)
    ends = np.cumsum(pieces)
    starts = ends - pieces
    of_sentences = np.diff(np.concatenate([[0], ends])[bounds])
    found = [
        (number, bounds[number] + first, bounds[number] + stop)
        for number, held in enumerate(of_sentences.tolist())
        for first, stop in _spans_of(pieces[bounds[number] : bounds[number + 1]], held, room, overlap)
    ]
    example, first_words, stop_words = np.array(found, dtype=np.int64).reshape(-1, 3).T
    begin, inner = starts[first_words], ends[stop_words - 1] - starts[first_words]
    window, positions = _owners(first_words, stop_words, pieces, starts, begin, inner)
    vocabulary = read_vocabulary(tokenizer)
    token_ids, lengths = lay_out_sequences(vocabulary, (_pieces_of_words(encoded, pieces, vocabulary), begin, inner))
    return Windows(
        token_ids=token_ids,
        lengths=lengths,
        example_index=example,
        own_words=np.bincount(window, minlength=len(example)),
        positions=positions,
        unknown=int((encoded.lengths == 0).sum()),
        shortened=int((encoded.lengths > room).sum()),
        divided=int((np.bincount(example) > 1).sum()),
    )


def _spans_of(pieces: np.ndarray, held: int, room: int, overlap: int) -> list[tuple[int, int]]:
    return [(0, len(pieces))] if held <= room else spans(pieces.tolist(), room, overlap)


def _pieces_of_words(encoded: Encoded, pieces: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """The pieces of all words that are kept, `pieces` of each; [UNK] of a word of which nothing is left."""
    kept = np.full(int(pieces.sum()), vocabulary.unk, dtype=vocabulary.dtype)
    there, starts = encoded.lengths > 0, np.cumsum(pieces) - pieces
    kept[ranges(starts[there], pieces[there])] = encoded.token_ids[ranges(encoded.starts[there], pieces[there])]
    return kept


def _owners(
    first_words: np.ndarray,
    stop_words: np.ndarray,
    pieces: np.ndarray,
    starts: np.ndarray,
    begin: np.ndarray,
    inner: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The window of every word, and the position of its first piece there, int64[W] each.

    Args:
        first_words, stop_words: of each window.
        pieces, starts: of each word, counted over all words.
        begin, inner: first piece of each window, and how many it holds.
    """
    counts = stop_words - first_words
    words, window = ranges(first_words, counts), np.repeat(np.arange(len(counts)), counts)
    left = starts[words] - begin[window]
    around = np.minimum(left, inner[window] - left - pieces[words])
    best = np.lexsort((window, -around, words))  # by word, then most around, then the first window
    owner = best[np.concatenate([[True], np.diff(words[best]) > 0])]
    return window[owner], left[owner] + 1


class Task(about.Task, RowsTask):
    """Each sentence becomes one window or several, of [CLS] words [SEP]."""

    chunk: ClassVar[int] = 16384
    columns: ClassVar[tuple[str, ...]] = ("tokens", "tags")

    @property
    def labels(self) -> tuple[str, ...]:
        """As the examples have them: rows that lie there may be of others."""
        return labels_of_examples(self.examples_file(TRAIN).parent, self.entry.stage("examples"))

    @property
    def features(self) -> pa.Schema:
        return with_labels(FEATURES_SCHEMA, self.labels)

    def hold_out(self, source: Path, fraction: float) -> Sides:
        """By hashes of the words."""
        return self.hold_out_by_hash(
            source, fraction, ("tokens",), lambda batch: map("\n".join, batch.column("tokens").to_pylist())
        )

    def sequences(self, tokenizer: Tokenizer, examples: pa.RecordBatch, *, labelled: bool) -> Sequences:
        """Rows to predict are labelled, too; types that train has not have no label."""
        shape = self.entry.rows
        assert isinstance(shape, WindowParams)
        windows = make_windows(tokenizer, examples.column("tokens").to_pylist(), shape.row_length, shape.overlap)
        numbers = {name: number for number, name in enumerate(self.labels)}
        tags = [numbers.get(tag, IGNORED) for tags in examples.column("tags").to_pylist() for tag in tags]
        return Sequences(
            windows.token_ids,
            windows.lengths,
            second_starts=windows.lengths,
            labels={"token_labels": token_labels(windows, np.array(tags, dtype=np.int16))},
            features={
                "example_index": windows.example_index,
                "n_tokens": windows.lengths,
                "positions": make_lists(windows.own_words, windows.positions),
            },
            counts={
                "in several windows": windows.divided,
                "words that the tokenizer leaves nothing of, as [UNK]": windows.unknown,
                "words longer than a row, shortened": windows.shortened,
            },
        )

    def label_columns(self, layout: Layout, sequences: Sequences) -> dict[str, np.ndarray]:
        flat = np.full(len(layout.packs) * layout.row_length, IGNORED, dtype=np.int16)
        flat[layout.targets()] = sequences.labels["token_labels"]
        return {"token_labels": flat.reshape(len(layout.packs), layout.row_length)}


def token_labels(windows: Windows, labels: np.ndarray) -> np.ndarray:
    """int16 of each token of the windows: the label of the word whose first piece it is, else -100.

    Args:
        labels: int16 of each word.
    """
    first = np.cumsum(windows.lengths) - windows.lengths
    found = np.full(len(windows.token_ids), IGNORED, dtype=np.int16)
    found[np.repeat(first, windows.own_words) + windows.positions] = labels
    return found
