"""Self-attention over packed sequences, in two layouts that give the same numbers.

Legend: T tokens of all sequences one after the other, B rows, L row length, H hidden size, A heads,
D = H / A, G sequences of one group, N tokens of each of them with its pads, K = sum of G * A * N over the groups.

`SequenceAttention` computes every sequence by itself, pads dropped. It is one autograd function (bmm,
softmax, bmm; backward by hand), because the fused CPU kernels refuse dropout and the scores of a
group stay in cache: fastest of eight forms measured on CPU. `RowAttention` computes whole rows
under a block mask: the plain reference, and the form whose shapes never change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from ipu_model.dropout import keep_mask, kept_scale

TILE = 32
"""Tokens to a multiple of which each sequence is padded here. oneDNN compiles a kernel for every new shape of a
product (0.5 to 3 ms each, against 0.05 ms to run it), so real lengths must fall on few shapes."""
SCORES_PER_GROUP = 1 << 18
"""Scores of all heads in a group, at most (a longer sequence is a group of its own): more leave the cache, with
fewer the calls themselves cost most."""


@dataclass(frozen=True)
class Group:
    """Neighbouring sequences that share one call."""

    first_row: int
    """Of its G * A * N rows among all K."""
    sequences: int
    tokens: int
    """N."""
    pads: Optional[Tensor]
    """[G, 1, 1, N] True on padded keys; None where there are none."""

    def scores(self, heads: int) -> Tuple[int, int, int, int]:
        """Shape of its scores."""
        return self.sequences, heads, self.tokens, self.tokens


@dataclass(frozen=True)
class Layout:
    """Where the heads of every token lie among the K rows [D] that the groups work on, ordered [G, A, N] in each."""

    groups: List[Group]
    source: Tensor
    """[K] int64: which of the T * A rows of the tokens; pads repeat the last token of their sequence."""
    target: Tensor
    """[T * A] int64: where they lie among the K."""
    pads: Tensor
    """int64: which of the K rows are pads."""

    @staticmethod
    def of(lengths: Sequence[int], heads: int) -> Layout:
        """Of sequences laid end to end; those of near-equal length should be neighbours."""
        groups: List[Group] = []
        sources, pads = [], []
        rows = token = at = 0
        while at < len(lengths):
            padded, count = _group_size(lengths[at:], heads)
            own = np.array(lengths[at : at + count])
            place = np.arange(padded)
            starts = token + np.cumsum(own) - own
            outside = place >= own[:, None]  # [G, N]
            tokens = starts[:, None] + np.minimum(place, own[:, None] - 1)
            by_head = tokens[:, None, :] * heads + np.arange(heads)[:, None]  # [G, A, N]
            sources.append(by_head.reshape(-1))
            pads.append(np.broadcast_to(outside[:, None, :], by_head.shape).reshape(-1))
            mask = torch.from_numpy(outside[:, None, None, :]) if outside.any() else None
            groups.append(Group(rows, count, padded, mask))
            rows, token, at = rows + by_head.size, token + int(own.sum()), at + count
        source = np.concatenate(sources) if sources else np.empty(0, dtype=np.int64)
        pad = np.concatenate(pads) if pads else np.empty(0, dtype=bool)
        target = np.empty(token * heads, dtype=np.int64)
        target[source[~pad]] = np.nonzero(~pad)[0]
        return Layout(groups, *(torch.from_numpy(x) for x in (source, target, np.nonzero(pad)[0])))

    def spread(self, flat: Tensor, heads: int) -> Tensor:
        """[T, H] -> [K, D]."""
        return flat.reshape(-1, flat.shape[1] // heads).index_select(0, self.source)

    def collect(self, rows: Tensor, hidden: int) -> Tensor:
        """[K, D] -> [T, H]; pads are left behind."""
        return rows.index_select(0, self.target).view(-1, hidden)

    def of_group(self, rows: Tensor, group: Group, heads: int) -> Tensor:
        """The rows of one group: a view [G * A, N, D] of [K, D]."""
        count = group.sequences * heads
        return rows[group.first_row : group.first_row + count * group.tokens].view(count, group.tokens, -1)


def _group_size(lengths: Sequence[int], heads: int) -> Tuple[int, int]:
    """Padded tokens of the next sequence, and how many share its group: a power of two, so that shapes are few."""
    padded = -(-lengths[0] // TILE) * TILE
    most = max(1, SCORES_PER_GROUP // (heads * padded * padded))
    alike = 1
    while alike < min(most, len(lengths)) and padded - TILE < lengths[alike] <= padded:
        alike += 1
    return padded, 1 << (alike.bit_length() - 1)


class SequenceAttention:
    """Attention inside each of several sequences laid end to end.

    Args:
        lengths: Tokens of each sequence in the order of the flat tokens.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._layouts: Dict[int, Layout] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        """query, key, value and the result: [T, H]. `dropout` acts on the attention probabilities."""
        if heads not in self._layouts:  # made once, for all layers
            self._layouts[heads] = Layout.of(self._lengths, heads)
        return _SequenceAttention.apply(query, key, value, self._layouts[heads], heads, dropout)


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


def signed_probabilities(scores: Tensor, pads: Optional[Tensor], keep: Optional[Tensor], scale: float) -> Tensor:
    """softmax(scores * scale) over the last dimension, negative where dropout drops: one tensor says both.

    Args:
        scores: [G, A, N, N].
        pads: [G, 1, 1, N], see Group.
        keep: Dropout mask, as the scores; None for no dropout.
    """
    wide = _wide(scores) * scale
    if pads is not None:
        wide = wide.masked_fill(pads, -math.inf)
    probabilities = wide.softmax(-1)
    if keep is not None:
        probabilities = torch.where(keep, probabilities, -probabilities)
    return probabilities.to(scores.dtype)


def scores_gradient(signed: Tensor, d_dropped: Tensor, factor: float) -> Tensor:
    """Gradient of the scores, [G, A, N, N] like both.

    With P = |signed|, M the dropout mask over 1 - p and c its factor 1 / (1 - p): dP = c M d_dropped and
    dS = P (dP - sum(dP P)) / sqrt(D); M P is what is positive in `signed`.

    Args:
        signed: From signed_probabilities.
        d_dropped: Gradient of M P.
        factor: c / sqrt(D).
    """
    wide, d_wide = _wide(signed), _wide(d_dropped)
    d_kept = d_wide * wide.clamp(min=0)
    return ((d_kept - wide.abs() * d_kept.sum(-1, keepdim=True)) * factor).to(d_dropped.dtype)


class _SequenceAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(D)) v per sequence, and its gradients by hand.

    Padded queries take no part: their share of the output is left behind, and their gradient is set to 0.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, heads: int, dropout: float
    ) -> Tensor:
        q, k, v = (layout.spread(x, heads) for x in (query, key, value))
        output = torch.empty_like(q)
        saved: List[Tensor] = [q, k, v]
        for group in layout.groups:
            q_g, k_g, v_g, out_g = (layout.of_group(x, group, heads) for x in (q, k, v, output))
            scores = torch.bmm(q_g, k_g.transpose(1, 2))
            keep = keep_mask(group.scores(heads), dropout) if dropout > 0 else None
            scale = 1 / math.sqrt(q.shape[1])
            signed = signed_probabilities(scores.view(group.scores(heads)), group.pads, keep, scale)
            signed = signed.view(scores.shape)
            saved.append(signed)
            torch.bmm(signed.clamp(min=0) if dropout > 0 else signed, v_g, out=out_g)
        ctx.save_for_backward(*saved)
        ctx.layout, ctx.heads, ctx.kept = layout, heads, kept_scale(dropout)
        output = layout.collect(output, query.shape[1])
        return output.mul_(ctx.kept) if dropout > 0 else output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> Tuple[Any, ...]:
        layout, heads = ctx.layout, ctx.heads
        q, k, v, *saved = ctx.saved_tensors
        d_o = layout.spread(d_output, heads).index_fill_(0, layout.pads, 0)
        d_q, d_k, d_v = (torch.empty_like(x) for x in (q, k, v))
        factor = ctx.kept / math.sqrt(q.shape[1])
        for group, signed in zip(layout.groups, saved):
            q_g, k_g, v_g, d_o_g = (layout.of_group(x, group, heads) for x in (q, k, v, d_o))
            d_q_g, d_k_g, d_v_g = (layout.of_group(x, group, heads) for x in (d_q, d_k, d_v))
            torch.bmm(signed.clamp(min=0).transpose(1, 2), d_o_g, out=d_v_g)
            d_s = scores_gradient(signed, torch.bmm(d_o_g, v_g.transpose(1, 2)), factor)
            torch.bmm(d_s, k_g, out=d_q_g)
            torch.bmm(d_s.transpose(1, 2), q_g, out=d_k_g)
        gradients = [layout.collect(x, d_output.shape[1]) for x in (d_q, d_k, d_v)]
        return gradients[0], gradients[1], gradients[2].mul_(ctx.kept), None, None, None
