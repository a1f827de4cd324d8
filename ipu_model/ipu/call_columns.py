"""The rows of a host call as the columns that a training program reads, in memory that two processes can share.

Needs NumPy and ipu_model.rows only: the process that makes rows ready starts without torch.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ipu_model.errors import RowsError
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest, columns_of
from ipu_model.rows.reading import Batch, RowFolder, UpdateRows

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


def label_count(part: str, update: int) -> str:
    """Name in Counts: labels of a part of the loss in an update of the call, counted from 0."""
    return f"{part}/{update}"


def input_type(column_type: str) -> str:
    """How an executor takes a column of rows: PopTorch knows int32 and fp32."""
    return "float32" if np.dtype(column_type).kind == "f" else "int32"


class CallShape:
    """The columns of a host call, one after the other in one piece of memory.

    Args:
        rows: Of the call.
        columns: Width and type of each, in the order of the program's arguments.
    """

    def __init__(self, rows: int, columns: Sequence[Tuple[int, str]]) -> None:
        self.rows, self._columns = rows, list(columns)
        exact = [rows * width * np.dtype(kind).itemsize for width, kind in columns]
        self._sizes = [math.ceil(size / ALIGNMENT) * ALIGNMENT for size in exact]

    @property
    def bytes(self) -> int:
        """Of one call."""
        return sum(self._sizes)

    def views(self, memory: mmap.mmap, slot: int = 0) -> List[np.ndarray]:
        """The columns [rows, width] of one of several calls in this memory."""
        views, offset = [], slot * self.bytes
        for (width, kind), size in zip(self._columns, self._sizes):
            views.append(np.frombuffer(memory, kind, self.rows * width, offset).reshape(self.rows, width))
            offset += size
        return views


def shape_of(manifest: Manifest, inputs: Inputs, rows: int) -> CallShape:
    """The shape of a call over that many rows."""
    columns = {x.name: x for x in columns_of(manifest.kind, manifest.vocab_size)}
    found = (columns[name] for name in inputs.columns)
    return CallShape(rows, [(getattr(manifest, x.width), input_type(x.type)) for x in found])


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


def lay(piece: Piece, updates: int, inputs: Inputs, into: Sequence[np.ndarray]) -> Counts:
    """Put the rows of a call into the columns of its program, and count what they hold.

    Args:
        into: By input column [rows, width]; the rows of its updates one after the other.

    Raises:
        RowsError: what `piece` raises of damaged rows; `into` is then half written.
    """
    counts: Counts = {"sequences": 0, "real_tokens": 0}
    per_update = len(into[0]) // updates
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


def fill_slots(
    requests: Iterator[Tuple[int, int]],
    memory: int,
    slots: int,
    folder: Tuple[str, str, Dict[str, Any], int],
    sha256: str,
    order: Tuple[int, int, int, Tuple[int, int], Optional[int]],
    updates: int,
    columns: List[str],
    labels: Dict[str, str],
) -> Iterator[Tuple[int, Counts]]:
    """Answers of a companion (distributed/companion.py): put calls into slots of memory that the training sees, too.

    Args:
        requests: First update of a call, counted from 0, and the slot for it.
        memory: Its file descriptor.
        folder: Arguments of RowFolder.
        sha256: Of the manifest that the training was planned with.
        order: Arguments of UpdateRows.
        updates: Of one call.
        columns, labels: Of Inputs.

    Raises:
        RowsError: the folder is damaged, or another one than the training was planned with; a value that the model
            cannot look up, with the file and the row.
    """
    path, kind, model, classes = folder
    rows = RowFolder(Path(path), kind, ModelConfig(**model), classes)
    if rows.sha256 != sha256:
        raise RowsError(f"{path} was replaced since this training began: run the job again")
    count, per_update, seed, share, total = order
    numbers_of = UpdateRows(count, per_update, seed, slice(*share), total)
    inputs = Inputs(tuple(columns), labels)
    shape = shape_of(rows.manifest, inputs, (share[1] - share[0]) * updates)
    mapped = mmap.mmap(memory, slots * shape.bytes)
    for step, slot in requests:
        piece = taking(rows, numbers_of(step, updates))
        yield slot, lay(piece, updates, inputs, shape.views(mapped, slot))


def taking(rows: RowFolder, numbers: np.ndarray) -> Piece:
    """The rows of a call, from their folder."""
    return lambda first, stop: rows.take(numbers[first:stop])
