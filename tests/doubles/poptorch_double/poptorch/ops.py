"""Functions and contexts that models call in `forward`. On the host, outside an executor, they change nothing."""

import torch
from torch import nn

from poptorch.kinds import MatMulSerializationMode, refusal
from poptorch.poptorch_core import STATE


class Block(nn.Module):
    def __init__(self, user_id=None, ipu_id=None):
        super().__init__()
        self._user_id, self._ipu_id = user_id, ipu_id

    def __enter__(self):
        if not STATE.running:
            return
        if STATE.inside_block:
            raise refusal(f"block {self._user_id} begins inside another block: blocks cannot nest")
        STATE.inside_block = True
        if STATE.program is not None:
            STATE.program.begin_block(self._user_id, self._ipu_id)

    def __exit__(self, *_):
        STATE.inside_block = False
        if STATE.program is not None:
            STATE.program.end_block()


class Attribute:
    def __init__(self, **attributes):
        self._attributes = attributes

    def __enter__(self):
        for name, values in self._attributes.items():
            for key, value in values.items():
                if not (isinstance(key, str) and isinstance(value, str)):
                    raise RuntimeError(f"attributes are text, found {name}: {key!r}={value!r}")
                if STATE.program is not None:
                    STATE.program.attributes.append([name, key, value])

    def __exit__(self, *_):
        """Operations after it carry none."""


def recomputationCheckpoint(*tensors):
    """Keep this activation; what lies between two checkpoints is computed again in the backward pass."""
    [tensor] = tensors
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"only tensors can be kept, found {type(tensor).__name__}")
    if STATE.program is not None:
        STATE.program.checkpoints += 1
    return tensor


def serializedMatMul(lhs, rhs, mode, factor=0, keep_precision=False):
    assert isinstance(mode, MatMulSerializationMode), f"no MatMulSerializationMode: {mode!r}"
    product = torch.matmul(lhs, rhs)
    if STATE.program is not None:
        if factor < 1 or rhs.shape[-1] % factor:
            raise refusal(f"serializedMatMul: factor {factor} does not divide {rhs.shape[-1]} columns")
        STATE.program.serialization.append([list(product.shape), mode.value, factor, keep_precision])
    return product


def identity_loss(x, reduction):
    """Mark the loss that gradients are taken of."""
    assert reduction == "none", f"the double reduces no loss: {reduction!r}"
    loss = x.clone()
    if STATE.running:
        STATE.losses.append(loss)
    return loss
