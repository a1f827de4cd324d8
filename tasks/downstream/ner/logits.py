"""The logits of every word: those of its first piece, in the window that it belongs to.

Legend: W words of all sentences together, C classes, F windows, N sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.project.errors import InputError
from tasks.reading.labels import all_labels_in

Array = NDArray[Any]
FEATURES_SCHEMA = pa.schema(
    [
        pa.field("feature_id", pa.int32(), nullable=False),
        pa.field("example_index", pa.int32(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("positions", pa.list_(pa.int32()), nullable=False),
    ]
)
"""One line per window: its sentence, its tokens, and the positions of the first pieces of the words that belong to it.
The words of a sentence's windows, one after the other, are the sentence's."""


@dataclass(frozen=True)
class WordLogits:
    """What a model computed for a development set."""

    labels: tuple[str, ...]
    """Names of the C classes."""
    values: Array
    """float32[W, C]."""
    bounds: Array
    """int64[N + 1]: sentence n has the words bounds[n] to bounds[n + 1] - 1."""


def read_word_logits(features: Path, logits: Path, words: Sequence[int], again: str) -> WordLogits:
    """Join features.parquet and the file of logits, checked against each other and the sentences.

    Args:
        features: of the rows (tasks.downstream.ner.rows writes it).
        logits: what the predict job wrote for them.
        words: of every sentence.
        again: what to run where something is wrong, for messages.

    Raises:
        InputError: missing, damaged or not finite; windows of other sentences.
    """
    labels, table = all_labels_in(features)[0], _read_features(features, again)
    own = table["counts"]
    bounds = np.concatenate([[0], np.cumsum(words, dtype=np.int64)])
    index = table["example_index"]
    ordered = len(index) > 0 and index.min() >= 0 and index.max() < len(words) and (np.diff(index) >= 0).all()
    if not ordered or not np.array_equal(np.bincount(index, own, len(words)), words):
        raise InputError(f"{features} is of other sentences than those of the development set; {again}")
    values = _read_logits(logits, table["n_tokens"], len(labels), again)
    first = np.cumsum(table["n_tokens"]) - table["n_tokens"]
    return WordLogits(labels, values[np.repeat(first, own) + table["positions"]], bounds)


def _read_features(path: Path, again: str) -> dict[str, Array]:
    names = ["feature_id", "example_index", "n_tokens", "positions"]
    try:
        table = pq.read_table(path, columns=names).combine_chunks()
        columns = {name: table[name].to_numpy().astype(np.int64) for name in names[:3]}
        lists = table["positions"].combine_chunks()
        columns["counts"] = np.asarray(lists.value_lengths()).astype(np.int64)
        columns["positions"] = lists.flatten().to_numpy().astype(np.int64)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise InputError(f"{path} cannot be read as windows of sentences ({error}); {again}") from None
    lengths = np.repeat(columns["n_tokens"], columns["counts"])
    inside = (columns["positions"] > 0) & (columns["positions"] < lengths)
    if not inside.all() or not np.array_equal(columns["feature_id"], np.arange(table.num_rows)):
        raise InputError(f"{path} holds windows that cannot be; {again}")
    return columns


def _read_logits(path: Path, n_tokens: Array, classes: int, again: str) -> Array:
    """float32[T, C] of the tokens of all windows, one after the other."""
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all().combine_chunks()
        numbers = table["feature_id"].to_numpy()
        lists = table["logits"].combine_chunks()
        lengths, flat = np.asarray(lists.value_lengths()), lists.flatten().to_numpy()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InputError(f"{path} cannot be read ({error}); {again}") from None
    if not np.array_equal(numbers, np.arange(len(n_tokens))) or not np.array_equal(lengths, n_tokens * classes):
        raise InputError(
            f"{path} holds {len(flat):,} logits of {len(numbers):,} windows, required are {classes} for each of "
            f"{int(n_tokens.sum()):,} tokens of {len(n_tokens):,}; {again}"
        )
    if not np.isfinite(flat).all():
        raise InputError(
            f"{path} holds logits that are not finite; the model is not usable (its training diverged, or precision is "
            "too low: try device.precision fp32)"
        )
    return flat.reshape(-1, classes)
