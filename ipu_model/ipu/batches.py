"""From the rows of a host call to the tensors an executor takes, and back."""

from __future__ import annotations

from typing import Dict, List, Tuple

import numpy as np
import torch
from torch import Tensor

from ipu_model.rows.format import ABSENT
from ipu_model.rows.reading import Batch
from ipu_model.runtimes.runtime import AnswerLogits, ClassLogits, Logits
from ipu_model.train.losses import LOSS_PARTS, label_column, label_counts

TOKENS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
LABELS = {
    "pretraining": ("cls_positions", "masked_positions", "masked_labels", "next_sentence_labels"),
    "question_answering": ("start_positions", "end_positions"),
    "sequence_classification": ("cls_positions",),  # and one of rows.LABELS, which says what the loss is
}


def training_tensors(batch: Batch, head: str, updates: int, micro_batches: int, share: slice) -> Tuple[Tensor, ...]:
    """Inputs of a training executor for the rows of one host call.

    The last tensor weighs the labels: PopTorch averages gradients over the micro-batches of an update, so a label
    weighs micro_batches / labels of the update, and the average is the mean over all of them, as on every runtime.

    Args:
        batch: Rows of `updates` updates, one after the other.
        micro_batches: Of one update: accumulation x replicas.
        share: Rows of each update that this process trains on; all of them without PopDist.

    Returns:
        [rows, width] int32 for each column, but fp32 for targets, then [rows, parts] fp32, a weight per part of the
        loss (losses.LOSS_PARTS).
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
    if head == "sequence_classification":
        names += (label_column(batch),)
    columns: List[np.ndarray] = [
        np.concatenate([part.columns[name] for part in mine], dtype=_dtype(name)) for name in names
    ]
    return tuple(torch.from_numpy(x) for x in (*columns, np.concatenate(weights)))


def _dtype(name: str) -> type:
    return np.float32 if name == "targets" else np.int32


def inference_tensors(batch: Batch, head: str, rows: int) -> Tuple[Tensor, ...]:
    """Inputs of an inference executor: the rows of `batch`, filled up with empty ones to `rows`."""
    tensors = []
    for name in TOKENS + (("cls_positions",) if head == "sequence_classification" else ()):
        values = batch.columns[name]
        nothing = ABSENT if name == "cls_positions" else 0
        padded = np.full((rows, values.shape[1]), nothing, dtype=np.int32)
        padded[: len(values)] = values
        tensors.append(torch.from_numpy(padded))
    return tuple(tensors)


def sequence_logits(batch: Batch, head: str, logits: np.ndarray) -> List[Logits]:
    """Logits of every sequence: start and end over its own tokens, or those of its classes.

    Args:
        logits: [rows, L, 2] of question_answering, [rows, S, C] of sequence_classification, fp32; rows beyond those of
            the batch are ignored.
    """
    found: List[Logits] = []
    columns: Dict[str, np.ndarray] = batch.columns
    for row, slot in np.argwhere(columns["cls_positions"] != ABSENT):
        feature = int(columns["feature_ids"][row, slot])
        if head == "sequence_classification":
            found.append(ClassLogits(feature, logits[row, slot].copy()))
            continue
        tokens = columns["sequence_ids"][row] == slot + 1
        own = logits[row][tokens]
        found.append(AnswerLogits(feature, own[:, 0].copy(), own[:, 1].copy()))
    return found
