"""Layer of ModernBERT (arXiv 2412.13663): norms before its halves, rotary positions, a gated feed-forward part.

Legend: T tokens of all sequences one after the other (or B rows of L tokens), H hidden size, I feed-forward size, A
heads, D = H / A.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

import torch
from torch import Tensor, nn

from ipu_model.models.config import ModelConfig
from ipu_model.models.families.modernbert import list_layers
from ipu_model.models.layers import Attention, Dense, add_dropped, draw_mask_for, drop, make_norm, normalise


class RotaryAttention:
    """Attention of a batch whose queries and keys are rotated by their positions.

    Args:
        attention: Of the layout of the batch.
        positions: [...] int64.
    """

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


class _Rotate(torch.autograd.Function):
    """Query, key and value [..., H] of their joint product [..., 3 H], the first two rotated."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> Tuple[Tensor, ...]:
        ctx.save_for_backward(cosines, sines)
        ctx.heads = heads
        query, key, value = mixed.chunk(3, -1)
        turned = (rotate(x.unflatten(-1, (heads, -1)), cosines, sines).flatten(-2) for x in (query, key))
        return (*turned, value.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tuple[Any, ...]:
        cosines, sines = ctx.saved_tensors
        query, key, value = (x.unflatten(-1, (ctx.heads, -1)) for x in gradients)
        turned = (rotate(x, cosines, -sines) for x in (query, key))
        return torch.cat([x.flatten(-2) for x in (*turned, value)], -1), None, None, None


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


class RotaryLayer(nn.Module):
    """One encoder layer. Modules are nested for names like those of encoder.Layer.

    Args:
        values: Content of config.json (Family.write_values).
        number: Of the layer.
    """

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
