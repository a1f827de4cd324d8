"""From the rows of a host call to the tensors an executor takes, and back."""

from __future__ import annotations

from typing import Dict, List, Tuple

import numpy as np
import torch
from torch import Tensor

from ipu_model.models.head import Head, Logits
from ipu_model.rows.format import ABSENT
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


def inference_tensors(batch: Batch, head: Head, rows: int) -> Tuple[Tensor, ...]:
    """Inputs of an inference executor: the rows of `batch`, filled up with empty ones to `rows`."""
    tensors = []
    for name in TOKENS + head.inputs:
        values = batch.columns[name]
        nothing = ABSENT if name == "cls_positions" else 0
        padded = np.full((rows, values.shape[1]), nothing, dtype=np.int32)
        padded[: len(values)] = values
        tensors.append(torch.from_numpy(padded))
    return tuple(tensors)


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
