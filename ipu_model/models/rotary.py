"""Layer of ModernBERT (arXiv 2412.13663): norms before its halves, rotary positions, a gated feed-forward part.

Legend: T tokens of all sequences one after the other (or B rows of L tokens), H hidden size, I feed-forward size, A
heads, D = H / A.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Mapping, Sequence, Tuple

import torch
from torch import Tensor, nn

from ipu_model.models.config import ModelConfig
from ipu_model.models.families.modernbert import list_layers
from ipu_model.models.layers import Attention, Dense, add_dropped, draw_mask_for, drop, make_norm, normalise

ROTATED_AT_ONCE = 256
"""Tokens whose numbers in fp32 stay in the cache of a core."""


class RotaryAttention:
    """Attention of a batch whose queries and keys are rotated by their positions, [...] int64."""

    def __init__(self, attention: Attention, positions: Tensor) -> None:
        self._attention, self._positions = attention, positions
        self._turns: Dict[Tuple[float, int], Tuple[Tensor, Tensor]] = {}

    def __call__(self, mixed: Tensor, heads: int, dropout: float, theta: float, window: int) -> Tensor:
        """Compute [..., 3 H] -> [..., H]; theta is the base of the rotation, for `window` see layers.Attention."""
        key = theta, mixed.shape[-1] // (3 * heads)
        if key not in self._turns:  # made once, for all layers
            self._turns[key] = find_turns(self._positions, *key)
        return self._attention(*_Rotate.apply(mixed, *self._turns[key], heads), heads, dropout, window)


def find_turns(positions: Tensor, theta: float, size: int) -> Tuple[Tensor, Tensor]:
    """Return cosines and sines [..., 1, D / 2] in fp32 of the angles of positions [...], for heads of D = `size`."""
    exponents = torch.arange(0, size, 2, dtype=torch.float, device=positions.device) / size
    angles = (positions[..., None].float() * (1.0 / torch.pow(theta, exponents)))[..., None, :]
    return angles.cos(), angles.sin()


def rotate(values: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate pairs of numbers: [..., A, D], of which number i and i + D / 2 are a pair."""
    first, second = values.chunk(2, -1)
    turned = torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
    return turned.to(values.dtype)


def _rotate_into(output: Tensor, values: Tensor, cosines: Tensor, sines: Tensor) -> None:
    """Write `rotate` of values [T, A, D] to a tensor, in blocks whose numbers in fp32 stay in the cache of a CPU."""
    rows = ROTATED_AT_ONCE if values.device.type == "cpu" else len(values)
    for part in (slice(first, first + rows) for first in range(0, len(values), rows)):
        (first, second), cos, sin = values[part].to(cosines.dtype).chunk(2, -1), cosines[part], sines[part]
        wide = output[part] if output.dtype == cosines.dtype else torch.empty_like(values[part], dtype=cosines.dtype)
        half, other = wide.chunk(2, -1)
        torch.mul(first, cos, out=half).addcmul_(second, sin, value=-1)
        torch.mul(second, cos, out=other).addcmul_(first, sin)
        if wide.dtype != output.dtype:
            output[part] = wide


class _Rotate(torch.autograd.Function):
    """Query, key and value [T, H] of their joint product [T, 3 H], the first two rotated."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> Tuple[Tensor, ...]:
        ctx.save_for_backward(cosines, sines)
        ctx.heads = heads
        parts = mixed.unflatten(1, (3, heads, -1)).unbind(1)
        results = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in parts]
        for part, result in zip(parts[:2], results):
            _rotate_into(result, part, cosines, sines)
        results[2].copy_(parts[2])
        return tuple(x.flatten(1) for x in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tuple[Any, ...]:
        cosines, sines = ctx.saved_tensors
        d_query, d_key, d_value = (x.unflatten(1, (ctx.heads, -1)) for x in gradients)
        d_mixed = torch.empty(len(d_query), 3, *d_query.shape[1:], dtype=d_query.dtype, device=d_query.device)
        for number, part in enumerate((d_query, d_key)):
            _rotate_into(d_mixed[:, number], part, cosines, -sines)
        d_mixed[:, 2] = d_value
        return d_mixed.flatten(1), None, None, None


class _Gate(torch.autograd.Function):
    """gelu(a) * b of a product [..., 2 I] with halves a and b; only the product is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor) -> Tensor:
        ctx.save_for_backward(mixed)
        return gate(mixed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (mixed,) = ctx.saved_tensors
        inner, factor = mixed.chunk(2, -1)
        d_mixed = torch.empty_like(mixed)
        d_inner, d_factor = d_mixed.chunk(2, -1)
        torch.mul(gradient, nn.functional.gelu(inner), out=d_factor)
        d_inner.copy_(torch.ops.aten.gelu_backward(gradient * factor, inner))
        return d_mixed


def gate(mixed: Tensor) -> Tensor:
    """Compute [..., 2 I] -> [..., I]."""
    inner, factor = mixed.chunk(2, -1)
    return nn.functional.gelu(inner) * factor


@contextlib.contextmanager
def rotated_by(model: nn.Module, thetas: Sequence[float]) -> Iterator[None]:
    """Compute with these bases of the rotation, one for each layer, while the body runs."""
    layers = [module for module in model.modules() if isinstance(module, RotaryLayer)]
    originals = [layer.theta for layer in layers]
    try:
        for layer, theta in zip(layers, thetas):
            layer.theta = theta
        yield
    finally:
        for layer, theta in zip(layers, originals):
            layer.theta = theta


class RotaryLayer(nn.Module):
    """Encoder layer `number`, from the content of config.json. Modules are nested for names as in encoder.Layer."""

    def __init__(self, config: ModelConfig, values: Mapping[str, Any], number: int) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, values["attention_bias"]
        self.heads, self.theta, self.window = config.num_heads, *list_layers(values, config.num_layers)[number]
        self.attention: Any = nn.ModuleDict(
            {"qkv": Dense(hidden, 3 * hidden, bias), "output": nn.ModuleDict({"dense": Dense(hidden, hidden, bias)})}
        )
        parts = {"dense": Dense(hidden, 2 * inner, values["mlp_bias"])}
        self.intermediate = nn.ModuleDict(parts)
        self.output: Any = nn.ModuleDict({"dense": Dense(inner, hidden, values["mlp_bias"])})
        for part in (self.attention, self.intermediate) if number else (self.intermediate,):
            part["LayerNorm"] = make_norm(hidden, config.layer_norm_eps, values["norm_bias"])
        self.attention_dropout, self.dropout = config.attention_dropout, values["mlp_dropout"]

    def forward(self, hidden: Tensor, attention: RotaryAttention) -> Tensor:
        """Compute [..., H] -> [..., H]."""
        dropout, rate = (x if self.training else 0.0 for x in (self.attention_dropout, self.dropout))
        mixed = self.attention["qkv"](self.normalise(self.attention, hidden))
        context = attention(mixed, self.heads, dropout, self.theta, self.window)
        finished = self.attention["output"].dense(context)
        hidden = add_dropped(hidden, finished, draw_mask_for(hidden, dropout), dropout)
        inner = _Gate.apply(self.intermediate["dense"](self.normalise(self.intermediate, hidden)))
        return hidden + self.output.dense(drop(inner, draw_mask_for(inner, rate), rate))

    def normalise(self, part: Any, hidden: Tensor) -> Tensor:
        """Normalise the input of a half; that of the first layer's attention is normalised already."""
        return normalise(hidden, part["LayerNorm"]) if "LayerNorm" in part else hidden
