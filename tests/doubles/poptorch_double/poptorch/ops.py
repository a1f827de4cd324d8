"""Functions and contexts that models call in `forward`. On the host, outside an executor, they change nothing."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

from poptorch.enums import MatMulSerializationMode
from poptorch.errors import misuse, refusal
from poptorch.state import STATE


def _begin(user_id: Optional[str], ipu_id: Optional[int]) -> None:
    if STATE.inside_block:
        raise refusal(f"block {user_id} begins inside another block: blocks cannot nest")
    if STATE.program is not None:
        STATE.program.begin_block(user_id, ipu_id)


class Block(nn.Module):
    """What is computed inside belongs to one block, on one IPU.

    Args:
        user_id: Name of the block; a number by default.
        ipu_id: Its IPU; the number of its stage by default.
    """

    def __init__(self, user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        super().__init__()
        self._user_id, self._ipu_id = user_id, ipu_id

    def __enter__(self) -> None:
        if STATE.running:
            _begin(self._user_id, self._ipu_id)
            STATE.inside_block = True

    def __exit__(self, *_: Any) -> None:
        STATE.inside_block = False
        if STATE.program is not None:
            STATE.program.end_block()


class Attribute:
    """Operations inside carry these attributes: Attribute(__outline={"layer": "embeddings"})."""

    _current: Dict[str, Dict[str, str]] = {}

    def __init__(self, **kwargs: Dict[str, str]) -> None:
        self._attributes = kwargs
        self._outer: Dict[str, Dict[str, str]] = {}

    def __enter__(self) -> None:
        self._outer = Attribute._current
        Attribute._current = {name: dict(values) for name, values in self._outer.items()}
        for name, values in self._attributes.items():
            for key, value in values.items():
                self._write(name, key, value)
            Attribute._current.setdefault(name, {}).update(values)

    def __exit__(self, *_: Any) -> None:
        for name, values in self._attributes.items():
            for key in values:
                if key in self._outer.get(name, {}):
                    self._write(name, key, self._outer[name][key])
        Attribute._current = self._outer

    @staticmethod
    def _write(name: str, key: str, value: str) -> None:
        if not all(isinstance(part, str) for part in (name, key, value)):
            raise RuntimeError(f"attributes are text, found {name}: {key!r}={value!r}")
        if STATE.program is not None:
            STATE.program.attributes.append([name, key, value])


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Keep these activations; what lies between two checkpoints is computed again in the backward pass."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        return type(tensors[0])(recomputationCheckpoint(*tensors[0]))
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ValueError(f"only tensors can be kept, found {type(tensor).__name__}")
        if STATE.program is not None:
            STATE.program.checkpoints += 1
    return tensors[0] if len(tensors) == 1 else tensors


def set_available_memory(tensor: Tensor, available_memory_proportion: float) -> Tensor:
    """Memory for temporaries of the product that made this tensor."""
    if not isinstance(tensor, Tensor):
        raise misuse(f"memory is set for the tensor a product made, found {type(tensor).__name__}")
    if STATE.program is not None:
        STATE.program.note_memory(tensor, available_memory_proportion)
    return tensor


def serializedMatMul(
    lhs: Tensor, rhs: Tensor, mode: MatMulSerializationMode, factor: int = 0, keep_precision: bool = False
) -> Tensor:
    """lhs @ rhs, computed on the IPU in `factor` pieces one after the other."""
    assert isinstance(mode, MatMulSerializationMode), f"no MatMulSerializationMode: {mode!r}"
    assert isinstance(factor, int), f"a factor is an int, found {factor!r}"
    assert isinstance(keep_precision, bool), f"on or off, found {keep_precision!r}"
    product = torch.matmul(lhs, rhs)
    if STATE.program is not None:
        sizes = {
            MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
            MatMulSerializationMode.ReducingDim: lhs.shape[-1],
            MatMulSerializationMode.OutputChannels: rhs.shape[-1],
        }
        if mode in sizes and (factor < 1 or sizes[mode] % factor):
            raise refusal(f"serializedMatMul: factor {factor} does not divide the {sizes[mode]} of {mode.value}")
        STATE.program.serialization.append([list(product.shape), mode.value, factor, keep_precision])
    return product


def identity_loss(x: Tensor, reduction: str) -> Tensor:
    """Mark the loss that gradients are taken of; `reduction` is sum, mean or none."""
    assert reduction in ("sum", "mean", "none"), f"reduction {reduction!r} is not one of sum, mean, none"
    loss = x.clone() if reduction == "none" else getattr(torch, reduction)(x)
    if STATE.running:
        STATE.losses.append((loss, "identity_loss", reduction))
    return loss
