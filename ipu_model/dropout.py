"""Dropout with masks that are drawn apart from where they are used."""

from __future__ import annotations

from typing import Optional, Sequence

import torch
from torch import Tensor

STEPS = 65536
"""A probability is rounded to a multiple of 1 / STEPS, as the mask takes 16 random bits per element."""


def keep_mask(shape: Sequence[int], probability: float) -> Tensor:
    """A random mask on the CPU, from torch's generator: True where a value is kept.

    Sixteen random bits per element instead of a float: seven to ten times faster than `bernoulli_`, and it
    follows torch.manual_seed all the same.
    """
    count = torch.Size(shape).numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.int16)[:count].view(shape) >= round(probability * STEPS) - STEPS // 2


def kept_scale(probability: float) -> float:
    """What kept values are multiplied with: 1 / (1 - probability), of the rounded probability."""
    return STEPS / (STEPS - round(probability * STEPS))


def mask_for(values: Tensor, probability: float) -> Optional[Tensor]:
    """What `drop` needs besides values of this shape; None where nothing is dropped.

    None on accelerators too, which draw inside the kernel that drops.
    """
    if probability == 0 or values.device.type != "cpu":
        return None
    return keep_mask(values.shape, probability)


def drop(values: Tensor, keep: Optional[Tensor], probability: float) -> Tensor:
    """Dropout of `values`.

    Args:
        keep: From mask_for.
        probability: 0 where nothing is dropped.
    """
    if probability == 0:
        return values
    if keep is None:
        return torch.nn.functional.dropout(values, probability)
    # A product, not torch.where, which takes almost twice as long with its gradient.
    return values * (keep * kept_scale(probability)).to(values.dtype)
