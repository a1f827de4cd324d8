"""What PopTorch adds to torch where a device model is computed (model.py); it comes in, so that nothing imports it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, ContextManager

from torch import Tensor


def _serially(left: Tensor, right: Tensor, factor: int) -> Tensor:
    return left @ right


@dataclass(frozen=True)
class DeviceOps:
    """What PopTorch adds to torch; the defaults compute the same numbers on any device."""

    block: Callable[[str, int], ContextManager[Any]] = lambda name, ipu: contextlib.nullcontext()
    """(name, IPU): everything inside is computed on that IPU."""
    outline: Callable[[str], ContextManager[Any]] = lambda name: contextlib.nullcontext()
    """Operations with another name here are never compiled into shared code."""
    checkpoint: Callable[[Tensor], Tensor] = lambda x: x
    """Keep this activation; what lies between two of them is computed again in the backward pass."""
    serial_matmul: Callable[[Tensor, Tensor, int], Tensor] = _serially
    """(x, y, factor): x @ y in `factor` pieces over the columns of y, to bound temporary memory."""
    final_loss: Callable[[Tensor], Tensor] = lambda x: x
    """Marks the loss that gradients are taken of."""


def device_ops(poptorch: Any) -> DeviceOps:
    """The device model's operations as PopTorch has them."""
    columns = poptorch.MatMulSerializationMode.OutputChannels
    return DeviceOps(
        block=lambda name, ipu: poptorch.Block(name, ipu_id=ipu),
        outline=lambda name: poptorch.Attribute(__outline={"layer": name}),
        checkpoint=poptorch.recomputationCheckpoint,
        serial_matmul=lambda x, y, factor: x @ y if factor == 1 else poptorch.serializedMatMul(x, y, columns, factor),
        final_loss=lambda loss: poptorch.identity_loss(loss, reduction="none"),
    )
