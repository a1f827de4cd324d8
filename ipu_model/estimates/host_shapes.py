"""What one micro-batch of a job holds on CPU and CUDA, pads dropped; from the rows themselves, or from what they say.

Legend: R rows of a micro-batch, L row length, T tokens of its sequences with the filler, M masked tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Sequence

import numpy as np

from ipu_model.models.tiles import SEQUENCE_TILE, TOKEN_TILE
from ipu_model.rows.format import Manifest
from ipu_model.rows.reading import RowFolder

LOOKED_AT = 64
"""Micro-batches of which the rows are read: the spread over them tells how full the fullest of a run will be."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a micro-batch, or means over several."""

    tokens: float
    """T, a multiple of TOKEN_TILE."""
    sequences: float
    padded: float
    """Tokens as attention holds them: each sequence, and the filler, up to a multiple of SEQUENCE_TILE."""
    squares: float
    """Sum of the squares of these: scores of one head."""
    masked: float
    """M, a multiple of TOKEN_TILE; 0 where no words are predicted."""
    real_tokens: float
    """Without the filler."""

    def times(self, factor: float) -> Shape:
        """As many times the sequences, of the same lengths."""
        values = (self.tokens, self.sequences, self.padded, self.squares, self.masked, self.real_tokens)
        return Shape(*(factor * value for value in values))


@dataclass(frozen=True)
class Shapes:
    """The micro-batches of a run."""

    rows: int
    """Of each."""
    mean: Shape
    spread: float
    """Standard deviation of their tokens, as a share of the mean."""
    known: bool
    """From the rows themselves; else from their counts, with sequences taken to be equally long."""

    @staticmethod
    def from_plain(values: Mapping[str, Any]) -> Shapes:
        """The inverse of dataclasses.asdict."""
        return Shapes(**{**values, "mean": Shape(**values["mean"])})

    def of(self, rows: int) -> Shapes:
        """Those of micro-batches with so many rows."""
        factor = rows / self.rows
        return Shapes(rows, self.mean.times(factor), self.spread / math.sqrt(factor), self.known)

    def fullest(self, count: int, most: float) -> Shape:
        """The one with the most tokens of so many: for normal deviates sqrt(2 ln count) deviations above the mean.

        Args:
            most: Tokens that no micro-batch exceeds.
        """
        above = self.spread * math.sqrt(2 * math.log(max(1, count)))
        return self.mean.times(min(1 + above, max(1.0, most / self.mean.tokens)))


def shape_of(lengths: Sequence[int], masked: int) -> Shape:
    """The sizes of a micro-batch with sequences of these lengths and so many masked tokens."""
    real = int(sum(lengths))
    filler = -real % TOKEN_TILE
    blocks = np.array([*lengths, *([filler] if filler else [])], dtype=np.int64)
    padded = -(-blocks // SEQUENCE_TILE) * SEQUENCE_TILE
    squares = float((padded * padded).sum())
    tokens, masked = real + filler, masked + -masked % TOKEN_TILE
    return Shape(tokens, len(lengths), float(padded.sum()), squares, masked, real)


def assumed_shapes(manifest: Manifest, rows: int) -> Shapes:
    """Shapes from the counts of a manifest alone, for micro-batches of so many rows.

    Sequences are taken to be equally long, and all masked positions of a row to be used; the spread is that of lengths
    which are equally probable up to the row length, where rows are not packed full.
    """
    efficiency = min(1.0, max(manifest.packing_efficiency, 1 / manifest.row_length))
    count = max(1, round(rows * max(1.0, manifest.packing_factor)))
    length = max(1, round(rows * manifest.row_length * efficiency / count))
    mean = shape_of([length] * count, rows * manifest.max_predictions)
    return Shapes(rows, mean, min(1 - efficiency, 1 / math.sqrt(12)) / math.sqrt(count), known=False)


def read_shapes(folder: RowFolder, rows: int, order: Callable[[int], np.ndarray], updates: int) -> Shapes:
    """Shapes of the micro-batches of some updates, LOOKED_AT of them at most; needs no torch.

    Args:
        rows: Of a micro-batch.
        order: Which rows each update has, such as UpdateRows.
        updates: How many.

    Raises:
        RowsError: damaged rows.
    """
    found: List[Shape] = []
    for update in range(updates):
        numbers = order(update)
        for first in range(0, len(numbers), rows):
            batch = folder.take(numbers[first : first + rows])
            masked = batch.labels("masked_labels") if "masked_labels" in batch.columns else 0
            found.append(shape_of(_lengths(batch.columns["sequence_ids"]), masked))
            if len(found) == LOOKED_AT:
                return _summary(rows, found)
    return _summary(rows, found)


def _summary(rows: int, found: List[Shape]) -> Shapes:
    names = ("tokens", "sequences", "padded", "squares", "masked", "real_tokens")
    mean = Shape(*(sum(getattr(one, name) for one in found) / len(found) for name in names))
    tokens = np.array([one.tokens for one in found])
    return Shapes(rows, mean, float(tokens.std() / tokens.mean()), known=True)


def _lengths(sequence_ids: np.ndarray) -> List[int]:
    """Tokens of every sequence of rows [R, L]; ids are below 256, and 0 is padding."""
    cells = sequence_ids.astype(np.int64) + 256 * np.arange(len(sequence_ids))[:, None]
    counts = np.bincount(cells.reshape(-1), minlength=256 * len(sequence_ids)).reshape(-1, 256)[:, 1:]
    return [int(count) for count in counts[counts > 0]]
