"""Logits of words, taken from the first token of each word in its own window.

Legend: W words of all sentences together, C classes, F windows, N sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring.logits import Array, FeatureFiles
from tasks.records.labels import read_parquet_labels


@dataclass(frozen=True)
class WordLogits:
    """Logits of a development set."""

    labels: tuple[str, ...]
    """Names of the C labels."""
    values: Array
    """float32[W, C]."""
    bounds: Array
    """int64[N + 1]: sentence n has the words bounds[n] to bounds[n + 1] - 1."""


def read_word_logits(files: FeatureFiles, words: Sequence[int]) -> WordLogits:
    """Join the windows of sentences (from tasks.downstream.ner.rows) with their logits.

    Raises:
        InputError: missing or damaged files, logits that are not finite, or windows of other sentences.
    """
    index = files.read_numbers("example_index", "n_tokens")
    labels, example, n_tokens = read_parquet_labels(files.features)[0], index["example_index"], index["n_tokens"]
    ordered = len(example) > 0 and example.min() >= 0 and example.max() < len(words) and (np.diff(example) >= 0).all()
    lists = next(files.read_lists("positions", [len(example)])) if ordered else pa.array([], pa.list_(pa.int32()))
    own, positions = np.asarray(lists.value_lengths()), lists.flatten().to_numpy()
    if not ordered or not np.array_equal(np.bincount(example, own, len(words)), words):
        raise files.refuse_rows("the windows do not match the sentences of the development set")
    if not ((positions > 0) & (positions < np.repeat(n_tokens, own))).all():
        raise files.refuse_rows("invalid word positions")
    [[values]] = files.read_logits(("logits",), n_tokens * len(labels), [len(example)])
    first = np.cumsum(n_tokens) - n_tokens
    bounds = np.concatenate([[0], np.cumsum(words, dtype=np.int64)])
    return WordLogits(labels, values.reshape(-1, len(labels))[np.repeat(first, own) + positions], bounds)
