"""Self-attention over packed sequences, in two layouts that give the same numbers.

Legend: T tokens of all sequences one after the other, B rows, L row length, H hidden size, A heads,
D = H / A, G sequences of one group, N the longest of them.

`SequenceAttention` computes every sequence by itself, pads dropped. It is one autograd function (bmm,
softmax, bmm; backward by hand), because the fused CPU kernels refuse dropout and the scores of one
sequence stay in cache: fastest of eight forms measured on CPU. `RowAttention` computes whole rows
under a block mask: the plain reference, and the form whose shapes never change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ipu_model.dropout import keep_mask

SCORES_PER_GROUP = 1 << 17
"""Scores of all heads in a group, at most (a longer sequence is a group of its own): more leave the cache, with
fewer the calls themselves cost most. Short sequences of near-equal length share a call, long ones go alone."""
LONGEST_TO_SHORTEST = 1.25
"""Sequences of a group differ in length by at most this ratio, as the shorter ones are padded."""


@dataclass(frozen=True)
class Group:
    """Neighbouring sequences that share one call."""

    start: int
    """First token; the group ends at `stop`."""
    stop: int
    lengths: Tuple[int, ...]
    """Descending."""
    places: Optional[Tensor]
    """[stop - start] where each token goes among the G * N padded ones; None if all lengths are equal."""
    pads: Optional[Tensor]
    """[G, 1, 1, N] True on padded keys; None if all lengths are equal."""

    @property
    def longest(self) -> int:
        return self.lengths[0]


def make_groups(lengths: Sequence[int], heads: int) -> List[Group]:
    """Cut sequences, longest first, into groups: lengths 5, 5, 4 and 2 give (5, 5, 4) and (2,)."""
    groups: List[Group] = []
    start, first = 0, 0
    for index in range(1, len(lengths) + 1):
        longest = lengths[first]
        full = (index - first + 1) * heads * longest * longest > SCORES_PER_GROUP
        if index == len(lengths) or full or lengths[index] * LONGEST_TO_SHORTEST < longest:
            groups.append(_make_group(start, tuple(lengths[first:index])))
            start, first = groups[-1].stop, index
    return groups


def _make_group(start: int, lengths: Tuple[int, ...]) -> Group:
    stop = start + sum(lengths)
    if lengths[0] == lengths[-1]:
        return Group(start, stop, lengths, None, None)
    inside = torch.arange(lengths[0])[None, :] < torch.tensor(lengths)[:, None]  # [G, N]
    return Group(start, stop, lengths, inside.reshape(-1).nonzero().reshape(-1), ~inside[:, None, None, :])


class SequenceAttention:
    """Attention inside each of several sequences laid end to end.

    Args:
        lengths: Tokens of each sequence, descending, in the order of the flat tokens.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._groups: Dict[int, List[Group]] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        """query, key, value and the result: [T, H]. `dropout` acts on the attention probabilities."""
        if heads not in self._groups:  # made once, for all layers
            self._groups[heads] = make_groups(self._lengths, heads)
        return _SequenceAttention.apply(query, key, value, self._groups[heads], heads, dropout)


class RowAttention:
    """Attention inside each sequence of whole rows.

    Args:
        sequence_ids: [B, L], 1.. for the sequences of a row, 0 for padding.
    """

    def __init__(self, sequence_ids: Tensor) -> None:
        # Padding attends to padding: a row of scores without any key would make softmax NaN.
        self.allowed = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]  # [B, 1, L, L]

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
    """[T, H] -> [G * A, N, D], zeros where a sequence is shorter; a view when the group is one sequence."""
    part = flat[group.start : group.stop]
    count, longest = len(group.lengths), group.longest
    if group.places is not None:
        part = part.new_zeros(count * longest, part.shape[1]).index_copy_(0, group.places, part)
    return part.view(count, longest, heads, -1).transpose(1, 2).reshape(count * heads, longest, -1)


def _merge(into: Tensor, part: Tensor, group: Group, heads: int) -> None:
    """The inverse of _split, written into the tokens of the group."""
    count, longest = len(group.lengths), group.longest
    by_sequence = part.view(count, heads, longest, -1).transpose(1, 2)
    target = into[group.start : group.stop]
    if group.places is None:
        target.view(count, longest, heads, -1).copy_(by_sequence)
    else:
        torch.index_select(by_sequence.reshape(count * longest, -1), 0, group.places, out=target)


def _probabilities(query: Tensor, key: Tensor, group: Group, scale: float) -> Tensor:
    """softmax over the keys of each sequence: [G * A, N, D] twice -> [G * A, N, N]; 0 on padded keys."""
    scores = _wide(torch.bmm(query, key.transpose(1, 2))).mul_(scale)
    if group.pads is not None:
        scores.view(len(group.lengths), -1, *scores.shape[1:]).masked_fill_(group.pads, -math.inf)
    return scores.softmax(-1)


class _SequenceAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(D)) v per sequence; with P = softmax and M the dropout mask over 1 - p,

    dV = (P M)^T dO,  dP = (dO V^T) M,  dS = P (dP - sum(dP P)),  dQ = dS K / sqrt(D),  dK = dS^T Q / sqrt(D).
    Padded queries take no part: their dO is 0, hence their dP, dS and share of dK and dV.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, groups: List[Group], heads: int, dropout: float
    ) -> Tensor:
        ctx.groups, ctx.heads, ctx.dropout, ctx.scale = groups, heads, dropout, 1 / math.sqrt(query.shape[1] // heads)
        ctx.kept_scale = 1.0
        output = torch.empty_like(query)
        saved: List[Tensor] = []
        for group in groups:
            q, k, v = (_split(x, group, heads) for x in (query, key, value))
            probabilities = _probabilities(q, k, group, ctx.scale)
            saved.append(probabilities)
            if dropout > 0:
                keep, ctx.kept_scale = keep_mask(probabilities.shape, dropout)
                probabilities = (probabilities * keep).mul_(ctx.kept_scale)
                saved.append(keep)
            _merge(output, torch.bmm(probabilities.to(v.dtype), v), group, heads)
        ctx.save_for_backward(query, key, value, *saved)
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> Tuple[Any, ...]:
        query, key, value, *saved = ctx.saved_tensors
        d_query, d_key, d_value = (torch.empty_like(x) for x in (query, key, value))
        remaining = iter(saved)
        for group in ctx.groups:
            q, k, v, d_o = (_split(x, group, ctx.heads) for x in (query, key, value, d_output))
            probabilities = next(remaining)
            d_p = _wide(torch.bmm(d_o, v.transpose(1, 2)))
            dropped = probabilities
            if ctx.dropout > 0:
                keep = next(remaining)
                dropped = (probabilities * keep).mul_(ctx.kept_scale)
                d_p = d_p.mul_(keep).mul_(ctx.kept_scale)
            d_p.sub_((d_p * probabilities).sum(-1, keepdim=True)).mul_(probabilities).mul_(ctx.scale)
            d_s = d_p.to(q.dtype)
            _merge(d_value, torch.bmm(dropped.to(v.dtype).transpose(1, 2), d_o), group, ctx.heads)
            _merge(d_query, torch.bmm(d_s, k), group, ctx.heads)
            _merge(d_key, torch.bmm(d_s.transpose(1, 2), q), group, ctx.heads)
        return d_query, d_key, d_value, None, None, None
