"""The rows of a host call as the columns that a training program reads, in memory that two processes can share.

Needs NumPy and ipu_model.rows only: the row worker (row_worker.py) starts without torch.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import Callable, Dict, List, Sequence, Tuple

import numpy as np

from ipu_model.errors import RowsError
from ipu_model.rows.format import Manifest, columns_of
from ipu_model.rows.reading import Batch

TOKENS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
"""Columns that every program reads first."""
Counts = Dict[str, int]
"""What the rows of a call hold: `sequences`, `real_tokens` and the labels of every update, by label_count."""
Piece = Callable[[int, int], Batch]
"""piece(first, stop) gives rows first..stop-1 of a call."""
ROWS_AT_ONCE = 4096
"""Rows that are copied and checked together: a few MB, which stay in the cache of a core on their way."""
ALIGNMENT = 64
"""Of every column in shared memory, bytes: a cache line."""


@dataclass(frozen=True)
class Inputs:
    """What a training program reads of rows."""

    columns: Tuple[str, ...]
    """In the order of its arguments."""
    labels: Dict[str, str]
    """Part of the loss -> the column of its labels."""
    one_sequence: bool = False
    """Every row holds one sequence: a micro-batch has one row of positions (feeding.with_shared_positions)."""


@dataclass(frozen=True)
class Shape:
    """One column of a host call."""

    rows: int
    width: int
    dtype: str

    @property
    def bytes(self) -> int:
        """Rounded up, so that what follows is aligned."""
        exact = self.rows * self.width * np.dtype(self.dtype).itemsize
        return math.ceil(exact / ALIGNMENT) * ALIGNMENT


def label_count(part: str, update: int) -> str:
    """Name in Counts: labels of a part of the loss in an update of the call, counted from 0."""
    return f"{part}/{update}"


def input_type(column_type: str) -> str:
    """How an executor takes a column of rows: PopTorch knows int32 and fp32."""
    return "float32" if np.dtype(column_type).kind == "f" else "int32"


def shapes_of(manifest: Manifest, inputs: Inputs, rows: int) -> List[Shape]:
    """The shape of every input column of a call over so many rows."""
    columns = {x.name: x for x in columns_of(manifest.kind, manifest.vocab_size)}
    found = (columns[name] for name in inputs.columns)
    return [Shape(rows, getattr(manifest, x.width), input_type(x.type)) for x in found]


class Slots:
    """Places for the columns of several calls, one after the other in one piece of memory."""

    def __init__(self, shapes: Sequence[Shape], count: int) -> None:
        self._shapes, self.count = list(shapes), count
        self._of_one = sum(shape.bytes for shape in shapes)

    @property
    def bytes(self) -> int:
        """Of all slots."""
        return self._of_one * self.count

    def columns(self, memory: mmap.mmap, slot: int) -> List[np.ndarray]:
        """The columns [rows, width] of one slot, as views of the memory."""
        views, offset = [], slot * self._of_one
        for shape in self._shapes:
            numbers = np.frombuffer(memory, shape.dtype, shape.rows * shape.width, offset)
            views.append(numbers.reshape(shape.rows, shape.width))
            offset += shape.bytes
        return views


def require_positions(batch: Batch) -> None:
    """Rows of one sequence need none of their positions but those that they stand at.

    Raises:
        RowsError: a sequence does not begin where its row does.
    """
    positions = batch.columns["position_ids"]
    if batch.columns["cls_positions"].shape[1] > 1:
        return
    moved = (positions != np.arange(positions.shape[1])) & (batch.columns["sequence_ids"] != 0)
    if moved.any():
        row, place = np.argwhere(moved)[0]
        raise RowsError(
            f"row {int(batch.rows[row])} of all has position {int(positions[row, place])} at token {place}, but rows "
            "of one sequence (max_sequences 1 in their manifest) begin with it: make the rows again"
        )


def lay(piece: Piece, rows: int, updates: int, inputs: Inputs, into: Sequence[np.ndarray]) -> Counts:
    """Put the rows of a call into the columns of its program, and count what they hold.

    Args:
        rows: Of the call, those of its updates one after the other.
        into: By input column [rows, width].

    Raises:
        RowsError: what `piece` raises of damaged rows; `into` is then half written.
    """
    counts: Counts = {"sequences": 0, "real_tokens": 0}
    per_update = rows // updates
    for update in range(updates):
        end = (update + 1) * per_update
        counts.update({label_count(part, update): 0 for part in inputs.labels})
        for first in range(update * per_update, end, ROWS_AT_ONCE):
            stop = min(first + ROWS_AT_ONCE, end)
            batch = piece(first, stop)
            require_positions(batch)
            for name, column in zip(inputs.columns, into):
                column[first:stop] = batch.columns[name]
            counts["sequences"] += batch.sequences
            counts["real_tokens"] += batch.real_tokens
            for part, column_name in inputs.labels.items():
                counts[label_count(part, update)] += batch.labels(column_name)
    return counts
