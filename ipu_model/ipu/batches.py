"""From the rows of a host call to the tensors an executor takes, and back."""

from __future__ import annotations

from typing import Dict, List, Tuple

import numpy as np
import torch
from torch import Tensor

from ipu_model.data import Batch
from ipu_model.losses import LOSS_PARTS, label_counts
from ipu_model.rows import ABSENT, IGNORED

TOKENS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
LABELS = {
    "pretraining": ("cls_positions", "masked_positions", "masked_labels", "next_sentence_labels"),
    "question_answering": ("start_positions", "end_positions"),
}
EMPTY = {"cls_positions": ABSENT, "feature_ids": ABSENT, "masked_labels": IGNORED, "next_sentence_labels": IGNORED,
         "start_positions": IGNORED, "end_positions": IGNORED}  # fmt: skip
"""Values of a row that holds nothing; 0 in the other columns."""


def training_tensors(batch: Batch, head: str, updates: int, micro_batches: int, share: slice) -> Tuple[Tensor, ...]:
    """Inputs of a training executor for the rows of one host call.

    The last tensor weighs the labels: PopTorch averages gradients over the micro-batches of an update, so a label
    weighs micro_batches / labels of the update, and the average is the mean over all of them, as on every runtime.

    Args:
        batch: Rows of `updates` updates, one after the other.
        micro_batches: Of one update: accumulation x replicas.
        share: Rows of each update that this process trains on; all of them without PopDist.

    Returns:
        [rows, width] int32 for each column, then [rows, 2] fp32, a weight per part of the loss (losses.LOSS_PARTS).
    """
    per_update = len(batch.rows) // updates
    mine: List[Batch] = []
    weights: List[np.ndarray] = []
    for update in range(updates):
        whole = batch.part(update * per_update, (update + 1) * per_update)
        part = whole.part(*share.indices(per_update)[:2])
        counts = label_counts(whole, head)
        row = np.array([micro_batches / counts[name] for name in LOSS_PARTS[head]], dtype=np.float32)
        mine.append(part)
        weights.append(np.tile(row, (len(part.rows), 1)))
    names = TOKENS + LABELS[head]
    columns = [_int32(np.concatenate([part.columns[name] for part in mine])) for name in names]
    weight = torch.from_numpy(np.concatenate(weights))
    return (*columns, weight)


def inference_tensors(batch: Batch, rows: int) -> Tuple[Tensor, ...]:
    """Inputs of an inference executor: the rows of `batch`, filled up with empty ones to `rows`."""
    padded = []
    for name in TOKENS:
        values = batch.columns[name]
        empty = np.full((rows - len(values), values.shape[1]), EMPTY.get(name, 0), dtype=values.dtype)
        padded.append(_int32(np.concatenate([values, empty])))
    return tuple(padded)


def sequence_logits(batch: Batch, logits: np.ndarray) -> List[Tuple[int, np.ndarray, np.ndarray]]:
    """(feature id, start logits, end logits) of every sequence, over its own tokens.

    Args:
        logits: [rows, L, 2] fp32; rows beyond those of the batch are ignored.
    """
    found = []
    columns: Dict[str, np.ndarray] = batch.columns
    for row, slot in np.argwhere(columns["cls_positions"] != ABSENT):
        tokens = columns["sequence_ids"][row] == slot + 1
        own = logits[row][tokens]
        found.append((int(columns["feature_ids"][row, slot]), own[:, 0].copy(), own[:, 1].copy()))
    return found


def _int32(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values.astype(np.int32)))
