"""Rows made up from a manifest alone: as many sequences and tokens in a row as it says, and random numbers in them."""

from __future__ import annotations

from typing import Dict, List, Optional

import numpy as np

from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import FEATURE_IDS, PREDICTIONS, TOKENS, Column, Manifest, columns_of
from ipu_model.rows.reading import Batch, RowFolder

LEAST_TOKENS = 3
"""Of a sequence."""
DEVIATIONS = 3.0
"""Standard deviations above the mean that the fullest of some hundred micro-batches lies."""


class GeneratedRows(RowFolder):
    """Any number of rows, in the place of a folder that need not be there.

    Tokens of a row are spread evenly about their mean, as far as they can be.

    Args:
        manifest: of the rows, or what is assumed of them.
        model: that will read them.
    """

    def __init__(self, manifest: Manifest, model: ModelConfig) -> None:
        self.manifest, self.model = manifest, model
        self._mean = manifest.real_tokens / manifest.rows
        self._spread = max(0.0, min(manifest.row_length - self._mean, self._mean - LEAST_TOKENS))

    def take(self, rows: np.ndarray) -> Batch:
        """Make the rows with these numbers, each always the same."""
        return self._batch(rows, None)

    def fullest(self, count: int) -> Batch:
        """Make rows that hold as many tokens as the fullest of some hundred micro-batches of so many."""
        above = min(1.0, DEVIATIONS / np.sqrt(3 * count))  # an even spread has a deviation of 1 / sqrt(3)
        return self._batch(np.arange(count), self._mean + above * self._spread)

    def _batch(self, rows: np.ndarray, tokens: Optional[float]) -> Batch:
        manifest = self.manifest
        kinds = columns_of(manifest.kind, manifest.vocab_size)
        shapes = {x.name: (len(rows), getattr(manifest, x.width)) for x in kinds}
        columns = {x.name: np.full(shapes[x.name], x.least, dtype=x.type) for x in kinds}
        for place, number in enumerate(rows):
            rng = np.random.Generator(np.random.PCG64(int(number)))
            total = self._mean + self._spread * rng.uniform(-1, 1) if tokens is None else tokens
            self._fill({name: values[place] for name, values in columns.items()}, self._lengths(total, rng), rng)
        return Batch(np.asarray(rows, dtype=np.int64), columns)

    def _lengths(self, tokens: float, rng: np.random.Generator) -> List[int]:
        """Cut the tokens of a row into sequences, from one to as many above the mean: long ones take most memory."""
        manifest = self.manifest
        count = round(rng.uniform(0.5, 2 * manifest.packing_factor - 0.5))
        count = max(1, min(count, manifest.max_sequences, int(tokens) // LEAST_TOKENS))
        shares = rng.uniform(0.5, 1.5, count)
        lengths = np.maximum(LEAST_TOKENS, tokens * shares / shares.sum()).astype(int)
        return [int(length) for length in lengths[np.cumsum(lengths) <= manifest.row_length]]

    def _fill(self, row: Dict[str, np.ndarray], lengths: List[int], rng: np.random.Generator) -> None:
        """Write sequences of these lengths into the columns of one row."""
        manifest, at = self.manifest, 0
        own = [x for x in columns_of(manifest.kind, manifest.vocab_size) if x.name not in COMMON]
        for slot, length in enumerate(lengths):
            here = slice(at, at + length)
            row["input_ids"][here] = rng.integers(1, manifest.vocab_size, length)
            row["position_ids"][here], row["sequence_ids"][here] = np.arange(length), slot + 1
            row["cls_positions"][slot] = at
            for column in own:
                if column.width != PREDICTIONS:
                    places = here if column.width == TOKENS else slot
                    row[column.name][places] = at if column.below == "row_length" else self._value(column, rng)
            at += length
        masked = max(1, round(manifest.max_predictions * at / manifest.row_length))
        for column in own:
            if column.width == PREDICTIONS:
                values = rng.choice(at, min(masked, at), replace=False)
                limit = at if column.below == "row_length" else manifest.vocab_size
                row[column.name][: len(values)] = np.sort(values) % limit

    def _value(self, column: Column, rng: np.random.Generator) -> float:
        """A label, the number of an example, or a value of a regression."""
        if column == FEATURE_IDS or column.below == float("inf"):
            return 0
        return int(rng.integers(0, max(1, int(column.end(self.sizes)))))


COMMON = ("input_ids", "token_type_ids", "position_ids", "sequence_ids", "cls_positions")
"""Columns of all kinds of rows."""
