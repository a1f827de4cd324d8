"""From rows to the tensors that an inference executor takes, and back."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from ipu_model.ipu.laying import TOKENS, input_type
from ipu_model.models.head import Head, Logits
from ipu_model.rows.format import ABSENT, IGNORED
from ipu_model.rows.reading import Batch


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
        padded: np.ndarray = np.full((rows, values.shape[1]), nothing.get(name, 0), dtype=input_type(str(values.dtype)))
        padded[: len(values)] = values
        tensors.append(torch.from_numpy(padded))
    return tuple(tensors)


def with_shared_positions(tensors: Sequence[Tensor], micro_batch_size: int) -> Tuple[Tensor, ...]:
    """Inputs of a call whose rows hold one sequence each: a micro-batch has one row of positions for all its rows.

    So they are looked up once, and their gradient is a sum over the rows, where one position for each token would cost
    a scatter-add of all of them. Padding gets the positions that it stands at, which nothing reads.

    Args:
        tensors: TOKENS, [rows, L] each, and what follows them; of rows that laying.require_positions let pass.

    Returns:
        The same, but [rows / micro_batch_size, L] positions: PopTorch gives each micro-batch its part.
    """
    ids, types, positions, *rest = tensors
    along = torch.arange(positions.shape[1], dtype=positions.dtype)
    return (ids, types, along.repeat(len(positions) // micro_batch_size, 1), *rest)


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
