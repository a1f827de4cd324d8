"""Functions and contexts that models call in `forward`. On the host, outside an executor, they change nothing."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

from poptorch.enums import MatMulSerializationMode
from poptorch.errors import refusal
from poptorch.record import STATE


class Block(nn.Module):
    def __init__(self, user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        super().__init__()
        self._user_id, self._ipu_id = user_id, ipu_id

    def __enter__(self) -> None:
        if not STATE.running:
            return
        if STATE.inside_block:
            raise refusal(f"block {self._user_id} begins inside another block: blocks cannot nest")
        STATE.inside_block = True
        if STATE.program is not None:
            STATE.program.begin_block(self._user_id, self._ipu_id)

    def __exit__(self, *_: Any) -> None:
        STATE.inside_block = False
        if STATE.program is not None:
            STATE.program.end_block()


class Attribute:
    def __init__(self, **kwargs: Dict[str, str]) -> None:
        self._attributes = kwargs

    def __enter__(self) -> None:
        for name, values in self._attributes.items():
            for key, value in values.items():
                if not all(isinstance(part, str) for part in (name, key, value)):
                    raise RuntimeError(f"attributes are text, found {name}: {key!r}={value!r}")
                if STATE.program is not None:
                    STATE.program.attributes.append([name, key, value])

    def __exit__(self, *_: Any) -> None:
        """Operations after it carry none."""


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Keep this activation; what lies between two checkpoints is computed again in the backward pass."""
    [tensor] = tensors
    if not isinstance(tensor, Tensor):
        raise ValueError(f"only tensors can be kept, found {type(tensor).__name__}")
    if STATE.program is not None:
        STATE.program.checkpoints += 1
    return tensor


def serializedMatMul(
    lhs: Tensor, rhs: Tensor, mode: MatMulSerializationMode, factor: int = 0, keep_precision: bool = False
) -> Tensor:
    assert isinstance(mode, MatMulSerializationMode), f"no MatMulSerializationMode: {mode!r}"
    assert isinstance(factor, int), f"a factor is an int, found {factor!r}"
    product = torch.matmul(lhs, rhs)
    if STATE.program is not None:
        if mode == MatMulSerializationMode.OutputChannels and (factor < 1 or rhs.shape[-1] % factor):
            raise refusal(f"serializedMatMul: factor {factor} does not divide {rhs.shape[-1]} columns")
        STATE.program.serialization.append([list(product.shape), mode.value, factor, keep_precision])
    return product


def identity_loss(x: Tensor, reduction: str) -> Tensor:
    """Mark the loss that gradients are taken of; `reduction` is sum, mean or none."""
    assert reduction in ("sum", "mean", "none"), f"reduction {reduction!r} is not one of sum, mean, none"
    loss = x.clone() if reduction == "none" else getattr(torch, reduction)(x)
    if STATE.running:
        STATE.losses.append((loss, reduction))
    return loss
