"""Self-attention over packed sequences, in two layouts that give the same numbers.

Legend: T tokens of all sequences one after the other, B rows, L row length, H hidden size, A heads,
D = H / A, G sequences of one group, N their length.

`SequenceAttention` computes every sequence at its exact length, pads dropped. It is one autograd
function (bmm, softmax, bmm; backward by hand), because the fused CPU kernels refuse dropout and the
scores of one sequence stay in cache: fastest of eight forms measured on CPU. `RowAttention` computes
whole rows under a block mask: the plain reference, and the form whose shapes never change.
"""

from __future__ import annotations

import math
from typing import Any, List, Sequence, Tuple

import torch
from torch import Tensor

Group = Tuple[int, int, int]
"""First token, number of sequences, their length: G sequences of equal length, one after the other."""


def group_equal_lengths(lengths: Sequence[int]) -> List[Group]:
    """Runs of equal length: group_equal_lengths([5, 5, 3]) == [(0, 2, 5), (10, 1, 3)]."""
    groups: List[Group] = []
    start = 0
    for length in lengths:
        if groups and groups[-1][2] == length:
            first, count, _ = groups[-1]
            groups[-1] = (first, count + 1, length)
        else:
            groups.append((start, 1, length))
        start += length
    return groups


class SequenceAttention:
    """Attention inside each of several sequences laid end to end.

    Args:
        lengths: Tokens of each sequence, in the order of the flat tokens. Sorting equal lengths
            together on the host lets one call serve all of them.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.groups = group_equal_lengths(lengths)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        """query, key, value and the result: [T, H]. `dropout` acts on the attention probabilities."""
        return _SequenceAttention.apply(query, key, value, self.groups, heads, dropout)


class RowAttention:
    """Attention inside each sequence of whole rows.

    Args:
        sequence_ids: [B, L], 1.. for the sequences of a row, 0 for padding.
    """

    def __init__(self, sequence_ids: Tensor) -> None:
        # Padding attends to padding: a row of scores without any key would make softmax NaN.
        self.allowed = (sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :])  # [B, 1, L, L]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        """query, key, value and the result: [B, L, H]."""
        rows, length, hidden = query.shape
        split = (rows, length, heads, hidden // heads)
        q, k, v = (x.view(split).transpose(1, 2) for x in (query, key, value))  # [B, A, L, D]
        scores = _wide(q @ k.transpose(-1, -2)) / math.sqrt(hidden // heads)
        probabilities = scores.masked_fill(~self.allowed, -math.inf).softmax(-1)
        probabilities = torch.nn.functional.dropout(probabilities, dropout).to(v.dtype)
        return (probabilities @ v).transpose(1, 2).reshape(rows, length, hidden)


def _wide(x: Tensor) -> Tensor:
    """Scores in at least fp32: the exponentials of a softmax need it."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _split(flat: Tensor, group: Group, heads: int) -> Tensor:
    """[T, H] -> [G * A, N, D]; a view when the group is one sequence."""
    start, count, length = group
    part = flat[start : start + count * length].view(count, length, heads, -1)
    return part.transpose(1, 2).reshape(count * heads, length, -1)


def _merge(into: Tensor, part: Tensor, group: Group, heads: int) -> None:
    """The inverse of _split, written into the tokens of the group."""
    start, count, length = group
    target = into[start : start + count * length].view(count, length, heads, -1)
    target.copy_(part.view(count, heads, length, -1).transpose(1, 2))


class _SequenceAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(D)) v per sequence; with P = softmax and M the dropout mask over 1 - p,

    dV = (P M)^T dO,  dP = (dO V^T) M,  dS = P (dP - sum(dP P)),  dQ = dS K / sqrt(D),  dK = dS^T Q / sqrt(D).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, groups: List[Group], heads: int, dropout: float
    ) -> Tensor:
        scale = 1 / math.sqrt(query.shape[1] // heads)
        output = torch.empty_like(query)
        kept: List[Tensor] = []
        for group in groups:
            q, k, v = (_split(x, group, heads) for x in (query, key, value))
            probabilities = _wide(torch.bmm(q, k.transpose(1, 2))).mul_(scale).softmax(-1)
            mask = None
            kept.append(probabilities)
            if dropout > 0:
                mask = torch.empty_like(probabilities).bernoulli_(1 - dropout).div_(1 - dropout)
                probabilities = probabilities * mask
                kept.append(mask)
            _merge(output, torch.bmm(probabilities.to(v.dtype), v), group, heads)
        ctx.save_for_backward(query, key, value, *kept)
        ctx.groups, ctx.heads, ctx.dropout, ctx.scale = groups, heads, dropout, scale
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> Tuple[Any, ...]:
        query, key, value, *kept = ctx.saved_tensors
        d_query, d_key, d_value = (torch.empty_like(x) for x in (query, key, value))
        remaining = iter(kept)
        d_output = d_output.contiguous()
        for group in ctx.groups:
            q, k, v, d_o = (_split(x, group, ctx.heads) for x in (query, key, value, d_output))
            probabilities = next(remaining)
            d_p = _wide(torch.bmm(d_o, v.transpose(1, 2)))
            dropped = probabilities
            if ctx.dropout > 0:
                mask = next(remaining)
                dropped = probabilities * mask
                d_p = d_p.mul_(mask)
            d_scores = d_p.sub_((d_p * probabilities).sum(-1, keepdim=True)).mul_(probabilities).mul_(ctx.scale)
            d_s = d_scores.to(q.dtype)
            _merge(d_value, torch.bmm(dropped.to(v.dtype).transpose(1, 2), d_o), group, ctx.heads)
            _merge(d_query, torch.bmm(d_s, k), group, ctx.heads)
            _merge(d_key, torch.bmm(d_s.transpose(1, 2), q), group, ctx.heads)
        return d_query, d_key, d_value, None, None, None
