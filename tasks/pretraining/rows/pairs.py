"""Sentence pairs with next-sentence labels, as BERT's pre-training makes them (arXiv 1810.04805).

A pair is two spans of one long array of token ids: nothing is copied until the rows are laid out.
Tokens of a document lie together and in order, so sentences that follow each other are one span.

One departure from BERT's data script: a sentence that alone would not fit into a row is cut into pieces
of half a row, which are then paired like sentences (`cut_long`). The script truncates it to one pair, so
that text without full stops would mostly be lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

SPECIAL_PER_PAIR = 3
"""[CLS] A [SEP] B [SEP]"""
REAL_NEXT, RANDOM_NEXT = 0, 1
OTHER_DOCUMENT_TRIES = 10


@dataclass(frozen=True)
class Documents:
    """Documents as token ids.

    `token_ids` [T] holds all tokens; sentence n is token_ids[sentence_starts[n] : sentence_starts[n + 1]];
    document d has the sentences document_starts[d] .. document_starts[d + 1] - 1, at least one. Both
    starts end with one entry more: the total.
    """

    token_ids: np.ndarray
    sentence_starts: list[int]
    document_starts: list[int]

    def __len__(self) -> int:
        return len(self.document_starts) - 1


@dataclass(frozen=True)
class Pairs:
    """N pairs: segment A is token_ids[first_start : first_start + first_length], B likewise.

    All int64[N], except labels int8[N]: 0 = B follows A in its document, 1 = B comes from elsewhere.
    """

    first_start: np.ndarray
    first_length: np.ndarray
    second_start: np.ndarray
    second_length: np.ndarray
    labels: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """int64[N] tokens of each pair with its special tokens."""
        return self.first_length + self.second_length + SPECIAL_PER_PAIR

    def __len__(self) -> int:
        return len(self.labels)


def cut_long(length: int, row_length: int) -> list[int]:
    """Lengths of the pieces that a sentence of `length` tokens goes into the pairs with.

    cut_long(70, row_length=64) == [30, 30, 10]; up to row_length - 3 tokens it stays whole; none of 0.
    """
    budget = row_length - SPECIAL_PER_PAIR
    if length <= budget:
        return [length] if length else []
    piece = budget // 2
    return [piece] * (length // piece) + ([length % piece] if length % piece else [])


def make_pairs(
    documents: Documents, row_length: int, short_sequence_probability: float, rng: np.random.Generator
) -> Pairs:
    """Pair up all documents once.

    Each document draws its target length: all of the row, or with `short_sequence_probability` any
    length from 2 on. Sentences are collected up to the target and cut in two at random; half of the
    time, and whenever there is only one sentence, B comes from a random place of another document (of
    this document if it is the only one), and the sentences not used go back. What is too long loses
    tokens of its longer segment, at the front or the back at random.
    """
    draw = random.Random(int(rng.integers(2**63)))  # scalar draws: several times faster than numpy's
    budget = row_length - SPECIAL_PER_PAIR
    spans: list[tuple[int, int, int, int, int]] = []
    for document in range(len(documents)):
        target = budget
        if draw.random() < short_sequence_probability:
            target = draw.randint(2, budget)
        _pair_document(documents, document, target, draw, spans)
    values = np.array(spans, dtype=np.int64).reshape(-1, 5)
    return _truncate(values, budget, rng)


def _pair_document(
    documents: Documents,
    document: int,
    target: int,
    draw: random.Random,
    spans: list[tuple[int, int, int, int, int]],
) -> None:
    """Append (first start, first end, second start, second end, label) of every pair of the document."""
    starts = documents.sentence_starts
    sentence, last = documents.document_starts[document], documents.document_starts[document + 1]
    while sentence < last:
        stop = sentence + 1
        while stop < last and starts[stop] - starts[sentence] < target:
            stop += 1
        count = stop - sentence
        middle = sentence + 1 + int(draw.random() * (count - 1))  # = stop for a single sentence
        first = (starts[sentence], starts[middle])
        if count == 1 or draw.random() < 0.5:
            second = _random_span(documents, document, target - (first[1] - first[0]), draw)
            spans.append((*first, *second, RANDOM_NEXT))
            sentence = middle
        else:
            spans.append((*first, starts[middle], starts[stop], REAL_NEXT))
            sentence = stop


def _random_span(documents: Documents, document: int, wanted: int, draw: random.Random) -> tuple[int, int]:
    """Whole sentences from a random one on, of another document, at least `wanted` tokens if it has them."""
    other = document
    for _ in range(OTHER_DOCUMENT_TRIES):
        other = int(draw.random() * len(documents))
        if other != document:
            break
    starts = documents.sentence_starts
    begin, last = documents.document_starts[other], documents.document_starts[other + 1]
    sentence = begin + int(draw.random() * (last - begin))
    stop = sentence + 1
    while stop < last and starts[stop] - starts[sentence] < wanted:
        stop += 1
    return starts[sentence], starts[stop]


def _truncate(spans: np.ndarray, budget: int, rng: np.random.Generator) -> Pairs:
    """Cut pairs to `budget` tokens, one token at a time from the longer segment (from B when equal).

    Which end each token comes off is a fair coin, so the number taken off the front is binomial; that
    gives in one step what taking tokens off one by one gives.
    """
    first_start, first_end, second_start, second_end, labels = spans.T
    first, second = first_end - first_start, second_end - second_start
    excess = np.maximum(first + second - budget, 0)
    # Down to equal lengths at the cost of the longer one, then in turns, B first.
    level = np.minimum(excess, np.abs(first - second))
    turns = excess - level
    off_first = np.where(first > second, level, 0) + turns // 2
    off_second = np.where(first > second, 0, level) + (turns + 1) // 2
    return Pairs(
        first_start=first_start + rng.binomial(off_first, 0.5),
        first_length=first - off_first,
        second_start=second_start + rng.binomial(off_second, 0.5),
        second_length=second - off_second,
        labels=labels.astype(np.int8),
    )
