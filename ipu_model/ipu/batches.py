"""From the rows of a host call to the tensors an executor takes, and back."""

from __future__ import annotations

from typing import Dict, List, Tuple

import numpy as np
import torch
from torch import Tensor

from ipu_model.errors import RowsError
from ipu_model.models.head import Head, Logits
from ipu_model.rows.format import ABSENT, IGNORED
from ipu_model.rows.reading import Batch

TOKENS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")


def training_tensors(batch: Batch, head: Head, updates: int, micro_batches: int, share: slice) -> Tuple[Tensor, ...]:
    """Inputs of a training executor for the rows of one host call.

    The last tensor weighs the labels: PopTorch averages gradients over the micro-batches of an update, so a label
    weighs micro_batches / labels of the update, and the average is the mean over all of them, as on every runtime.

    Args:
        batch: Rows of `updates` updates, one after the other.
        micro_batches: Of one update: accumulation x replicas.
        share: Rows of each update that this process trains on; all of them without PopDist.

    Returns:
        [rows, width] int32 for each column, but fp32 for values, then [rows, parts] fp32, a weight per part of the
        loss (Head.parts).
    """
    per_update = len(batch.rows) // updates
    mine: List[Batch] = []
    weights: List[np.ndarray] = []
    for update in range(updates):
        whole = batch.part(update * per_update, (update + 1) * per_update)
        part = whole.part(*share.indices(per_update)[:2])
        counts = head.label_counts(whole)
        row = np.array([micro_batches / counts[name] for name in head.parts], dtype=np.float32)
        mine.append(part)
        weights.append(np.tile(row, (len(part.rows), 1)))
    names = TOKENS + head.inputs + head.label_inputs(batch)
    columns: List[np.ndarray] = [
        np.concatenate([part.columns[name] for part in mine], dtype=_dtype(batch.columns[name])) for name in names
    ]
    return tuple(torch.from_numpy(x) for x in (*columns, np.concatenate(weights)))


def _dtype(column: np.ndarray) -> type:
    return np.float32 if column.dtype.kind == "f" else np.int32


def inference_tensors(batch: Batch, head: Head, rows: int, judged: bool = False) -> Tuple[Tensor, ...]:
    """Inputs of an inference executor: the rows of `batch`, filled up with empty ones to `rows`.

    Args:
        judged: With the labels, for a program that evaluates.
    """
    labels = head.label_inputs(batch) if judged else ()
    nothing = {"cls_positions": ABSENT, **dict.fromkeys(labels, IGNORED)}
    tensors = []
    for name in TOKENS + head.inputs + labels:
        values = batch.columns[name]
        padded: np.ndarray = np.full((rows, values.shape[1]), nothing.get(name, 0), dtype=_dtype(values))
        padded[: len(values)] = values
        tensors.append(torch.from_numpy(padded))
    return tuple(tensors)


def with_shared_positions(tensors: Tuple[Tensor, ...], micro_batch_size: int) -> Tuple[Tensor, ...]:
    """Inputs of a call whose rows hold one sequence each: a micro-batch has one row of positions for all its rows.

    So they are looked up once, and their gradient is a sum over the rows, where one position for each token would cost
    a scatter-add of all of them. Padding gets the positions that it stands at, which nothing reads.

    Args:
        tensors: TOKENS, [rows, L] each, and what follows them.

    Returns:
        The same, but [rows / micro_batch_size, L] positions: PopTorch gives each micro-batch its part.

    Raises:
        RowsError: a sequence does not begin where its row does.
    """
    ids, types, positions, sequences, *rest = tensors
    along = torch.arange(positions.shape[1], dtype=positions.dtype)
    moved = (positions != along) & (sequences != 0)
    if bool(moved.any()):
        row, place = moved.nonzero()[0].tolist()
        raise RowsError(
            f"row {row} of a call has position {int(positions[row, place])} at token {place}, but rows of one sequence "
            "(max_sequences 1 in their manifest) begin with it: make the rows again"
        )
    return (ids, types, along.repeat(len(positions) // micro_batch_size, 1), sequences, *rest)


def sequence_logits(batch: Batch, head: Head, logits: np.ndarray) -> List[Logits]:
    """Logits of every sequence.

    Args:
        logits: What the program gave, fp32, by row; rows beyond those of the batch are ignored.
    """
    found: List[Logits] = []
    columns: Dict[str, np.ndarray] = batch.columns
    for row, slot in np.argwhere(columns["cls_positions"] != ABSENT):
        feature = int(columns["feature_ids"][row, slot])
        own = head.of_slot(logits[row], int(slot), columns["sequence_ids"][row] == slot + 1)
        found.append(Logits(feature, dict(zip(head.logits, own))))
    return found
