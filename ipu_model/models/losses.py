"""Cross-entropy over real labels: as a sum to learn from, and with the number of right ones to judge by."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ipu_model.rows.format import IGNORED


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropy over the real labels, in fp32: [N, C], [N] -> a scalar."""
    if len(labels) == 0:
        return logits.sum() * 0.0
    return cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


def judged(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed cross-entropy, right predictions, and number of the real labels; [N, C], [N] -> [3] fp64."""
    real = labels != IGNORED
    losses = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none").double()
    return torch.stack([losses.sum(), ((logits.argmax(1) == labels) & real).sum().double(), real.sum().double()])
