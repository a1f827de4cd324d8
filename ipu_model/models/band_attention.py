"""Attention of long sequences on a CPU: in windows, and over whole sequences without keeping probabilities.

With a window w, the scores are a band. The tokens of all sequences are cut into blocks of B tokens, wherever sequences
begin. Each block of queries is multiplied with the keys of the B + 2 w tokens around it; a mask hides those of other
sequences and those that are too far away. Blocks of keys overlap, but are views of one tensor.

Legend: T tokens of all sequences one after the other, n blocks of B tokens, w window, W = B + 2 w, H hidden size, A
heads, D = H / A.
"""

from __future__ import annotations

import math
from typing import Any, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ipu_model.models.layers import apply_mask, drop_and_mark, dropout_scale, split_marked

BLOCK = 64
"""Queries of a block."""


def attend_by_sequence(query: Tensor, key: Tensor, value: Tensor, heads: int, lengths: Sequence[int]) -> Tensor:
    """Compute attention within each sequence with torch's fused kernel, which keeps no probabilities: [T, H]."""
    outputs = []
    for parts in zip(*(x.unflatten(1, (heads, -1)).split(list(lengths)) for x in (query, key, value))):
        q, k, v = (x.transpose(0, 1)[None] for x in parts)  # [1, A, length, D]
        outputs.append(scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def hide_outside_band(lengths: Sequence[int], window: int) -> Tensor:
    """Return what is added to the scores [n, B, W]: -inf on hidden keys, 0 on others.

    Queries after the last sequence see themselves, as a softmax needs a key.
    """
    tokens = sum(lengths)
    blocks = -(-tokens // BLOCK)
    numbers = np.full(blocks * BLOCK + 2 * window, -1)  # of the sequence of each token
    numbers[window : window + tokens] = np.repeat(np.arange(len(lengths)), lengths)
    of_queries = numbers[window : window + blocks * BLOCK].reshape(blocks, BLOCK, 1)
    at_keys = np.arange(blocks)[:, None] * BLOCK + np.arange(BLOCK + 2 * window)
    distances = np.arange(BLOCK + 2 * window) - window - np.arange(BLOCK)[:, None]
    visible = (abs(distances) <= window) & (of_queries == numbers[at_keys][:, None])
    return torch.from_numpy(np.where(visible, 0.0, -np.inf).astype(np.float32))


class BandAttention(torch.autograd.Function):
    """Attention with a window: see flat._SequenceAttention for the formulas."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, heads: int, dropout: float
    ) -> Tensor:
        """Args: query, key, value [T, H]; hidden of hide_outside_band."""
        blocks, _, width = hidden.shape
        q, k, v = _cut(query, key, value, blocks, width, heads)
        saved: List[Tensor] = [query, key, value, hidden]
        output = query.new_empty(heads, blocks, BLOCK, query.shape[1] // heads)
        for q_h, k_h, v_h, out_h in zip(q, k, v, output):
            scores = torch.bmm(q_h, k_h.transpose(1, 2))
            wide = torch.add(hidden, scores, alpha=1 / math.sqrt(q_h.shape[-1]))
            kept = probabilities = torch.softmax(wide, -1).to(scores.dtype)
            if dropout > 0:
                kept = drop_and_mark(probabilities, dropout)
            saved.append(probabilities)
            torch.bmm(kept, v_h, out=out_h)
        ctx.save_for_backward(*saved)
        ctx.heads, ctx.dropout, ctx.dropout_scale = heads, dropout, dropout_scale(dropout)
        context = output.permute(1, 2, 0, 3).reshape(blocks * BLOCK, -1)[: len(query)]
        return context * ctx.dropout_scale if dropout > 0 else context

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> Tuple[Any, ...]:
        query, key, value, hidden, *saved = ctx.saved_tensors
        blocks, _, width = hidden.shape
        q, k, v = _cut(query, key, value, blocks, width, ctx.heads)
        d_o, _, _ = _cut(d_output, key, value, blocks, width, ctx.heads)
        tokens, size = blocks * BLOCK, query.shape[1] // ctx.heads
        d_q = query.new_empty(ctx.heads, blocks, BLOCK, size)
        d_k, d_v = (query.new_zeros(ctx.heads, tokens + width - BLOCK, size) for _ in range(2))
        for number, (q_h, k_h, v_h, d_o_h, probabilities) in enumerate(zip(q, k, v, d_o, saved)):
            kept = probabilities
            d_p = torch.bmm(d_o_h, v_h.transpose(1, 2))
            if ctx.dropout > 0:
                probabilities, mask = split_marked(probabilities)
                kept, d_p = apply_mask(probabilities, mask), apply_mask(d_p, mask)
            _add_blocks(d_v[number], torch.bmm(kept.transpose(1, 2), d_o_h))
            d_s = torch._softmax_backward_data(d_p, probabilities, -1, d_p.dtype)
            torch.bmm(d_s, k_h, out=d_q[number])
            _add_blocks(d_k[number], torch.bmm(d_s.transpose(1, 2), q_h))
        factor, before = ctx.dropout_scale / math.sqrt(size), (width - BLOCK) // 2
        inside = slice(before, before + len(query))
        d_query = d_q.permute(1, 2, 0, 3).reshape(tokens, -1)[: len(query)]
        d_key, d_value = (x[:, inside].transpose(0, 1).reshape(len(query), -1) for x in (d_k, d_v))
        return d_query * factor, d_key * factor, d_value * ctx.dropout_scale, None, None, None


def _cut(query: Tensor, key: Tensor, value: Tensor, blocks: int, width: int, heads: int) -> Tuple[Tensor, ...]:
    """Return query [A, n, B, D], and views of key and value [A, n, W, D] that overlap."""
    tokens, hidden = query.shape
    size, before, filler = hidden // heads, (width - BLOCK) // 2, blocks * BLOCK - tokens
    strides = (size, BLOCK * hidden, hidden, 1)
    q = pad(query, (0, 0, 0, filler)) if filler else query.contiguous()
    k, v = (pad(x, (0, 0, before, before + filler)) for x in (key, value))
    return (
        q.as_strided((heads, blocks, BLOCK, size), strides),
        *(x.as_strided((heads, blocks, width, size), strides) for x in (k, v)),
    )


def _add_blocks(total: Tensor, blocks: Tensor) -> None:
    """Add blocks [n, W, D], each of which begins B rows after the one before, to [n B + W - B, D]."""
    count, width, size = blocks.shape
    for first in range(0, width, BLOCK):
        part = blocks[:, first : first + BLOCK]
        total[first:].as_strided(part.shape, (BLOCK * size, size, 1)).add_(part)
