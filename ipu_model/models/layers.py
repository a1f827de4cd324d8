"""Parts that every encoder is built of: products in low precision, and dropout.

Dropout masks are bit patterns, drawn separately from their use. A mask has int16 -1 (all bits set: kept) or 0 (dropped)
for every element and is applied with a bitwise and. On a CPU this takes less time than a comparison and a product, in
both passes.

Legend: H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

WORDS = "bert.embeddings.word_embeddings.weight"
STEPS = 1 << 15
"""A probability is rounded to a multiple of 1 / STEPS, as the mask uses 15 random bits per element."""
LOW_BITS = 0x7FFF7FFF7FFF7FFF
"""All bits of four int16 in a 64-bit word except the signs."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by the size of an element in bytes."""
Attention = Callable[..., Tensor]
"""(query, key, value, heads, dropout, window=0) -> context, all [..., H]. Tokens attend to those of their sequence that
are at most `window` tokens away; 0: to all."""


@dataclass(frozen=True)
class Tokens:
    """Inputs of the encoder."""

    input_ids: Tensor
    """[...] int64, like the next two."""
    token_type_ids: Tensor
    position_ids: Tensor
    attention: Attention
    lengths: Sequence[int] = ()
    """Tokens of each sequence without the filler, on the host; only where padding is dropped."""


class Dense(nn.Linear):
    """nn.Linear whose product may be computed with a low-precision copy of its weight (LowPrecisionCopies)."""

    copy: Optional[Tensor] = None
    """[out, in], a leaf that accumulates the gradient; None: use the weight itself."""

    @property
    def factor(self) -> Tensor:
        """Matrix of the product: the copy or the weight."""
        return self.weight if self.copy is None else self.copy

    def forward(self, values: Tensor) -> Tensor:
        """Compute [..., in] -> [..., out], in the precision of `factor`."""
        bias = None if self.bias is None else self.bias.to(self.factor.dtype)
        return nn.functional.linear(values.to(self.factor.dtype), self.factor, bias)


def make_norm(width: int, eps: float, bias: bool) -> nn.LayerNorm:
    """Return a LayerNorm, with or without bias."""
    norm: Any = nn.LayerNorm(width, eps=eps)
    if not bias:
        norm.bias = None  # torch 2.0 has no argument for it
    return norm


def normalise(values: Tensor, norm: Any) -> Tensor:
    """Apply a LayerNorm to [..., H], computed in fp32; the result has the precision of `values`."""
    if values.dtype == norm.weight.dtype or values.device.type == "cpu":  # CPU kernels accept mixed precision
        return nn.functional.layer_norm(values, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    wide = values.to(norm.weight.dtype)
    return nn.functional.layer_norm(wide, norm.weight.shape, norm.weight, norm.bias, norm.eps).to(values.dtype)


class TiedDecoder(nn.Module):
    """Head whose last matrix is the word table."""

    words_copy: Optional[Tensor] = None


class LowPrecisionCopies:
    """Low-precision copies of all matrices of a model, used in products; the weights stay and are updated in fp32.

    torch.autocast creates such copies in every forward pass and casts every gradient back to fp32; these copies are
    made once per update. LayerNorms, biases and the look-up in the embedding tables stay in fp32. Without `dtype`,
    there are no copies, and products use the weights.
    """

    def __init__(self, model: nn.Module, dtype: Optional[torch.dtype]) -> None:
        self.pairs: List[Tuple[Tensor, Tensor]] = []
        """(weight, copy)."""
        if dtype is None:
            return
        for module in model.modules():
            if isinstance(module, Dense):
                module.copy = self._add(module.weight, dtype)
        for module in model.modules():
            if isinstance(module, TiedDecoder):
                module.words_copy = self._add(model.get_parameter(WORDS), dtype)

    def _add(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        copy = weight.detach().to(dtype).requires_grad_()
        self.pairs.append((weight, copy))
        return copy

    def zero_grad(self) -> None:
        """Clear the gradients of the copies."""
        for _, copy in self.pairs:
            copy.grad = None

    def collect_gradients(self) -> None:
        """Add the gradients of the copies to those of the weights, in fp32; call it after every micro-batch."""
        for weight, copy in self.pairs:
            if copy.grad is not None:
                weight.grad = copy.grad.to(weight.dtype) if weight.grad is None else weight.grad.add_(copy.grad)
                copy.grad = None

    def gradients(self, parameters: Iterable[Tensor]) -> List[Tensor]:
        """Return every gradient of the model once: of a weight or its copy, or their sum if both have one."""
        for weight, copy in self.pairs:
            if weight.grad is not None and copy.grad is not None:  # the word table: looked up, and the decoder
                weight.grad.add_(copy.grad)
                copy.grad = None
        every = (*parameters, *(copy for _, copy in self.pairs))
        for weight in every:
            if weight.grad is not None and weight.grad.is_sparse:
                weight.grad = weight.grad.to_dense()
        return [x.grad for x in every if x.grad is not None]

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the copies; call it after every change of the weights."""
        for weight, copy in self.pairs:
            copy.copy_(weight)


def draw_mask(shape: Sequence[int], probability: float) -> Tensor:
    """Draw a random mask on the CPU, from torch's generator: int16 -1 where a value is kept, 0 where it is dropped.

    Each random word gives four elements: seven to ten times faster than `bernoulli_`, and torch.manual_seed applies.
    """
    count = torch.Size(shape).numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).bitwise_and_(LOW_BITS)
    # (dropped - 1 - bits) is negative where bits >= dropped, and its sign spread over all 16 bits is the mask.
    return words.view(torch.int16)[:count].neg_().add_(_dropped(probability) - 1).bitwise_right_shift_(15).view(shape)


def dropout_scale(probability: float) -> float:
    """Return the factor for kept values: 1 / (1 - probability), for the rounded probability."""
    return STEPS / (STEPS - _dropped(probability))


def _dropped(probability: float) -> int:
    return round(probability * STEPS)


def draw_mask_for(values: Tensor, probability: float) -> Optional[Tensor]:
    """Draw the mask that `drop` needs for values of this shape; None if nothing is dropped.

    Also None on accelerators, whose dropout kernel draws its own mask.
    """
    if probability == 0 or values.device.type != "cpu":
        return None
    return draw_mask(values.shape, probability)


def apply_mask(values: Tensor, keep: Tensor) -> Tensor:
    """Return kept values, and +0 elsewhere; no gradient flows through it."""
    integer = INTEGERS[values.element_size()]
    return torch.bitwise_and(values.view(integer), keep.to(integer)).view(values.dtype)


def drop_and_mark(values: Tensor, probability: float) -> Tensor:
    """Return what dropout on the CPU keeps of `values`, which are not negative, and +0 elsewhere; nothing is scaled.

    The sign of the kept ones is set in `values`, so that numbers and mask are one tensor to save (`split_marked`).
    """
    keep, integer = draw_mask(values.shape, probability), INTEGERS[values.element_size()]
    kept = apply_mask(values, keep)
    values.view(integer).bitwise_or_(keep.to(integer) & torch.iinfo(integer).min)
    return kept


def split_marked(marked: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the values and the mask of `drop_and_mark`; the mask has integers of the size of the values."""
    integer = INTEGERS[marked.element_size()]
    return marked.abs(), marked.view(integer) >> (torch.iinfo(integer).bits - 1)


def drop(values: Tensor, keep: Optional[Tensor], probability: float) -> Tensor:
    """Apply dropout with the mask from draw_mask_for; at probability 0, return `values`."""
    if probability == 0:
        return values
    if keep is None:
        return torch.nn.functional.dropout(values, probability)
    return _Drop.apply(values, keep, dropout_scale(probability))


def add_dropped(residual: Tensor, values: Tensor, keep: Optional[Tensor], probability: float) -> Tensor:
    """Return residual + drop(values, keep, probability), with one pass less over the numbers."""
    if keep is None or probability == 0:
        return residual + drop(values, keep, probability)
    return _AddDropped.apply(residual, values, keep, dropout_scale(probability))


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return apply_mask(values, keep).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Any, ...]:
        (keep,) = ctx.saved_tensors
        return apply_mask(gradient.contiguous(), keep).mul_(ctx.scale), None, None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, values: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return torch.add(residual, apply_mask(values, keep), alpha=scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Any, ...]:
        (keep,) = ctx.saved_tensors
        return gradient, apply_mask(gradient.contiguous(), keep).mul_(ctx.scale), None, None
