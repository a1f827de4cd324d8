"""Attention over flat tokens on GPUs: every sequence by itself, without a score outside it.

Legend: T tokens of all sequences one after the other, N sequences, H hidden size, A heads, D = H / A.

`VarlenAttention` calls torch's flash kernel for sequences of any length. torch offers it as
`torch.nn.attention.varlen.varlen_attn`, which has no dropout (torch 2.13), so the operator underneath is called, as
torch's own nested tensors call it (torch/nested/_internal/sdpa.py): it has dropout and a backward pass.
`PaddedAttention` uses public operators only and serves every precision, head size and device.
"""

from __future__ import annotations

from typing import Callable, Optional, Tuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ipu_model.models.encoder import Attention

MakeAttention = Callable[[Tensor, int], Attention]
"""(offsets, longest) -> attention; offsets [N + 1] int32: where each sequence begins, then T."""

LARGEST_HEAD = 256
"""For flash attention; it must also be a multiple of 8 (torch, aten/src/ATen/native/transformers/cuda/sdp_utils)."""
AMPERE = (8, 0)
"""Compute capability from which flash attention and fast bf16 are there."""
AGREEMENT = 0.05
"""Largest difference between the two forms on numbers of size 1 in 16 bits; a wrong result differs by 1."""


class VarlenAttention:
    """Flash attention over cumulative lengths.

    Args:
        offsets: [N + 1] int32, where each sequence begins among the flat tokens, then their number.
        longest: Tokens of the longest sequence.
    """

    def __init__(self, offsets: Tensor, longest: int) -> None:
        self._offsets, self._longest = offsets, longest

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        """query, key, value and the result: [T, H] fp16 or bf16. `dropout` acts on the attention probabilities."""
        split, offsets, longest = (len(query), heads, -1), self._offsets, self._longest
        views = [x.view(split) for x in (query, key, value)]
        attend = torch.ops.aten._flash_attention_forward
        context = attend(*views, offsets, offsets, longest, longest, dropout, False, False)[0]
        return context.reshape(query.shape)


class PaddedAttention:
    """scaled_dot_product_attention over sequences padded to the longest.

    The padding costs little: attention is a small part of the work at lengths up to 512, and the kernels that
    torch chooses on a GPU (here the memory-efficient one) keep no scores.

    Args:
        offsets: [N + 1] int32, where each sequence begins among the flat tokens, then their number.
        longest: Tokens of the longest sequence.
    """

    def __init__(self, offsets: Tensor, longest: int) -> None:
        self._offsets, self._longest = offsets.long(), longest
        self._layout: Optional[Tuple[Tensor, Tensor]] = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        """query, key, value and the result: [T, H]. `dropout` acts on the attention probabilities."""
        count, longest = len(self._offsets) - 1, self._longest
        if self._layout is None:  # made once, for all layers
            self._layout = self._places(len(query))
        places, real = self._layout

        def padded(flat: Tensor) -> Tensor:  # [T, H] -> [N, A, longest, D]
            rows = flat.new_zeros(count * longest, flat.shape[1]).index_copy(0, places, flat)
            return rows.view(count, longest, heads, -1).transpose(1, 2)

        context = scaled_dot_product_attention(
            padded(query), padded(key), padded(value), attn_mask=real[:, None, None, :], dropout_p=dropout
        )
        return context.transpose(1, 2).reshape(count * longest, -1).index_select(0, places)

    def _places(self, tokens: int) -> Tuple[Tensor, Tensor]:
        """[T] where each token goes among the N * longest padded ones, and [N, longest] True for real tokens."""
        starts, lengths = self._offsets[:-1], self._offsets.diff()
        # With output_size the device need not be asked how many there are.
        of = torch.repeat_interleave(torch.arange(len(starts), device=starts.device), lengths, output_size=tokens)
        places = of * self._longest + torch.arange(tokens, device=starts.device) - starts[of]
        return places, torch.arange(self._longest, device=starts.device) < lengths[:, None]


def choose_attention(
    device: torch.device, dtype: torch.dtype, heads: int, hidden: int, flash: MakeAttention = VarlenAttention
) -> Tuple[MakeAttention, str]:
    """The attention of a GPU and why.

    Flash attention is no public operator: it is taken only after it gave the numbers of the public one, forward and
    backward, on a few tokens.

    Args:
        flash: What to try.
    """
    size = hidden // heads
    if dtype not in (torch.bfloat16, torch.float16):
        return PaddedAttention, f"padded: flash attention has no {str(dtype).partition('.')[2]}"
    if size % 8 or size > LARGEST_HEAD:
        return PaddedAttention, f"padded: flash attention takes heads of a multiple of 8 up to 256, not {size}"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < AMPERE:
        return PaddedAttention, "padded: flash attention needs a GPU of compute capability 8.0"
    try:
        difference = _difference(flash, PaddedAttention, device, dtype, heads, hidden)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:  # another torch: other arguments
        return PaddedAttention, f"padded: flash attention failed here ({str(error).strip().splitlines()[0]})"
    if not difference < AGREEMENT:
        return PaddedAttention, f"padded: flash attention gave other numbers here (by {difference:.2g})"
    return flash, "flash over cumulative lengths"


def _difference(
    one: MakeAttention, other: MakeAttention, device: torch.device, dtype: torch.dtype, heads: int, hidden: int
) -> float:
    """Largest difference of two forms on sequences of 19, 8 and 1 tokens, results and gradients."""
    offsets = torch.tensor([0, 19, 27, 28], dtype=torch.int32)
    generator = torch.Generator().manual_seed(0)  # the job's own generators stay as they are
    inputs = [torch.randn(28, hidden, generator=generator).to(device, dtype) for _ in range(4)]
    found = []
    for make in (one, other):
        leaves = [x.clone().requires_grad_() for x in inputs[:3]]
        context = make(offsets.to(device), 19)(leaves[0], leaves[1], leaves[2], heads, 0.0)
        context.backward(inputs[3])
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        found.append(torch.cat([x.float() for x in (context.detach(), *gradients)]))
    return float((found[0] - found[1]).abs().max())
