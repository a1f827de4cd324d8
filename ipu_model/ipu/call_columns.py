"""Columns of a host call, as a training program reads them, in memory that two processes can share.

Needs only NumPy and ipu_model.rows, so that the process that prepares rows starts without torch.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ipu_model.core.errors import RowsError
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest
from ipu_model.rows.row_folder import Batch, RowFolder, UpdateRows

TOKENS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
"""First columns of every program."""
Counts = Dict[str, float]
"""Counts over the rows of a call: `sequences`, `real_tokens` and, under `label_count`, the labels of every update."""
WHOLE_COUNTS = ("sequences", "real_tokens")
RowReader = Callable[[int, int], Batch]
"""piece(first, stop) returns rows first..stop-1 of a call."""
ROWS_PER_COPY = 4096
"""Rows that are copied and checked together: a few MB, which fit the cache of a core."""
ALIGNMENT = 64
"""Alignment of every column in shared memory, bytes: a cache line."""


@dataclass(frozen=True)
class ProgramInputs:
    """Columns of rows that a training program reads."""

    columns: Tuple[str, ...]
    """Names, in the order of the program's arguments."""
    labels: Dict[str, str]
    """Part of the loss -> column of its labels."""
    one_sequence: bool = False
    """True where every row has one sequence: a micro-batch then has one row of positions (share_positions)."""
    class_weights: Optional[np.ndarray] = None
    """[C] weight of each class in the loss, for a program whose last own column is that of the labels; None: all 1."""
    taught: int = 0
    """Columns at the end with a teacher's logits, which follow the weights of the labels."""


def label_count(part: str, update: int) -> str:
    """Return the key in Counts for the labels of a part of the loss, in an update of the call counted from 0."""
    return f"{part}/{update}"


def input_type(column_type: str) -> str:
    """Return the type in which an executor reads a column of rows: PopTorch supports int32 and fp32."""
    return "float32" if np.dtype(column_type).kind == "f" else "int32"


class CallLayout:
    """Memory layout of a host call: its columns (width, type) one after the other in one block."""

    def __init__(self, rows: int, columns: Sequence[Tuple[int, str]]) -> None:
        self.rows, self._columns = rows, list(columns)
        exact = [rows * width * np.dtype(kind).itemsize for width, kind in columns]
        self._sizes = [math.ceil(size / ALIGNMENT) * ALIGNMENT for size in exact]

    @property
    def bytes(self) -> int:
        """Size of one call."""
        return sum(self._sizes)

    def views(self, memory: mmap.mmap, slot: int = 0) -> List[np.ndarray]:
        """Return the columns [rows, width] of the call in one slot of this memory."""
        views, offset = [], slot * self.bytes
        for (width, kind), size in zip(self._columns, self._sizes):
            views.append(np.frombuffer(memory, kind, self.rows * width, offset).reshape(self.rows, width))
            offset += size
        return views


def call_layout(manifest: Manifest, inputs: ProgramInputs, rows: int) -> CallLayout:
    """Return the layout of a call of `rows` rows."""
    columns = {x.name: x for x in manifest.columns}
    selected = (columns[name] for name in inputs.columns)
    return CallLayout(rows, [(getattr(manifest, x.width), input_type(x.type)) for x in selected])


def require_positions(batch: Batch) -> None:
    """Require that positions count from the start of the row where rows have one sequence each.

    Raises:
        RowsError: a sequence does not begin at the start of its row.
    """
    positions = batch.columns["position_ids"]
    if batch.columns["cls_positions"].shape[1] > 1:
        return
    moved = (positions != np.arange(positions.shape[1])) & (batch.columns["sequence_ids"] != 0)
    if moved.any():
        row, token = np.argwhere(moved)[0]
        raise RowsError(
            f"row {int(batch.rows[row])} of all has position {int(positions[row, token])} at token {token}, but rows "
            "of one sequence (max_sequences 1 in their manifest) begin with it: make the rows again"
        )


def fill_columns(piece: RowReader, updates: int, inputs: ProgramInputs, into: Sequence[np.ndarray]) -> Counts:
    """Copy the rows of a call into the columns of its program, and count sequences, tokens and labels.

    `into` has one array [rows, width] for each input column; the rows of the updates follow one another.

    Raises:
        RowsError: rows are damaged (raised by `piece`); `into` is then partly written.
    """
    counts: Counts = dict.fromkeys(WHOLE_COUNTS, 0)
    per_update = len(into[0]) // updates
    for update in range(updates):
        end = (update + 1) * per_update
        counts.update({label_count(part, update): 0 for part in inputs.labels})
        for first in range(update * per_update, end, ROWS_PER_COPY):
            stop = min(first + ROWS_PER_COPY, end)
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
    folder: Tuple[str, str, Dict[str, Any], int, Optional[int], Optional[List[float]]],
    sha256: str,
    order: Tuple[int, int, int, Tuple[int, int], Optional[int]],
    updates: int,
    columns: List[str],
    labels: Dict[str, str],
) -> Iterator[Tuple[int, Counts]]:
    """Run in a companion process (distributed/companion.py): write calls into slots of memory shared with the training.

    Args:
        requests: First update of a call, counted from 0, and the slot for it.
        folder, order: Arguments of RowFolder and UpdateRows.
        sha256: Hash of the manifest that the training was planned with.
        columns, labels: Fields of ProgramInputs.

    Raises:
        RowsError: the folder is damaged, or is not the one that the training was planned with; or a value is outside
            the tables of the model (with the file and the row).
    """
    path, kind, model, classes, masking_seed, weights = folder
    rows = RowFolder(Path(path), kind, ModelConfig(**model), classes, masking_seed, weights)
    if rows.sha256 != sha256:
        raise RowsError(f"{path} was replaced since this training began: run the job again")
    count, per_update, seed, share, total = order
    numbers_of = UpdateRows(count, per_update, seed, slice(*share), total)
    inputs = ProgramInputs(tuple(columns), labels)
    shape = call_layout(rows.manifest, inputs, (share[1] - share[0]) * updates)
    mapped = mmap.mmap(memory, slots * shape.bytes)
    for step, slot in requests:
        piece = row_reader(rows, numbers_of, step, updates)
        yield slot, fill_columns(piece, updates, inputs, shape.views(mapped, slot))


def row_reader(rows: RowFolder, order: UpdateRows, step: int, updates: int) -> RowReader:
    """Return a reader of the rows of a call, from their folder."""
    numbers, epochs = order(step, updates), order.epochs(step, updates)
    return lambda first, stop: rows.take(numbers[first:stop], epochs[first:stop])
