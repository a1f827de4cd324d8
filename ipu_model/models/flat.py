"""Packed rows without padding: the layout of runtimes with dynamic shapes, and its attention.

Legend: R rows, L row length, S maximum sequences per row, N sequences and T tokens in all (T with the filler), M
labels. Sequences are concatenated, longest first, so that those of equal length are neighbours and attention processes
them in one call.

In attention: H hidden size, A heads, D = H / A, G sequences of one group, N tokens of each with its padding, K = sum of
G * A * N over the groups. Attention is one autograd function (bmm, softmax, bmm, with its own backward), because the
fused CPU kernels do not support dropout and the scores of a group stay in cache: the fastest of eight variants measured
on CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from ipu_model.models.band_attention import BandAttention, attend_by_sequence, hide_outside_band
from ipu_model.models.config import LONGEST_WITH_SCORES
from ipu_model.models.layers import Tokens, apply_mask, drop_and_mark, dropout_scale, split_marked
from ipu_model.rows.format import ABSENT
from ipu_model.rows.row_folder import Batch, Columns

SEQUENCE_TILE = 32
"""Attention pads each sequence to a multiple of this many tokens. oneDNN compiles a kernel for every new shape of a
product (0.5 to 3 ms each, compared with 0.05 ms to run it), so the number of shapes must be small."""
SCORES_PER_GROUP = 1 << 20
"""Maximum scores of all heads in a group of attention (a longer sequence is a group of its own): more do not fit the
cache, and with fewer the overhead of calls dominates."""
LONGEST_IN_GROUP = 192
"""Tokens of the longest sequence whose attention with a window computes all scores: those of a band cost as much."""
TOKEN_TILE = 64
"""Tokens, and masked tokens, are padded to a multiple of this: oneDNN compiles a kernel for every new shape of a
product, some milliseconds each, so shapes must repeat. The filler is a separate sequence that no loss reads."""


@dataclass(frozen=True)
class FlatBatch:
    """One micro-batch without padding, except for the filler at its end."""

    tokens: Tokens
    """[T] each, T a multiple of TOKEN_TILE."""
    starts: Tensor
    """[N] int64: first flat token of each sequence, its [CLS]."""
    lengths: np.ndarray
    """[N] int64, descending; on the host, as shapes depend on it."""
    labels: Dict[str, Tensor]
    """Labels for the head (Head.flat_labels): 64-bit numbers of one dimension."""
    feature_ids: np.ndarray
    """[N] int32; empty where rows have none."""
    blocks: List[int]
    """Tokens of each sequence for attention, and of the filler if there is one."""

    @property
    def real_tokens(self) -> int:
        """Number of tokens before the filler."""
        return int(self.lengths.sum())


@dataclass(frozen=True)
class FlatIndex:
    """Indices of the sequences and tokens of a flat batch in its rows."""

    columns: Columns
    row: np.ndarray
    """[N] row of each sequence."""
    slot: np.ndarray
    """[N] slot of each sequence in its row, 0..S-1."""
    first: np.ndarray
    """[N] int64: index of its first token among the R * L of the rows."""
    source: np.ndarray
    """[T] int64: index of each token, without the filler, among the R * L of the rows."""
    class_weights: Optional[np.ndarray] = None
    """[C] fp64: weight of each class in the loss; None: all 1."""

    def per_sequence(self, column: str) -> np.ndarray:
        """Return [N] values of a column that has one for each sequence; [N * K] of a column that has K."""
        rows, slots = self.columns["cls_positions"].shape
        return self.columns[column].reshape(rows, slots, -1)[self.row, self.slot].reshape(-1)

    def per_token(self, column: str, filler: int) -> np.ndarray:
        """Return [T] values, filler included, of a column that has one for each token; [T * K] of one that has K."""
        values = self.columns[column].reshape(self.columns["input_ids"].size, -1)[self.source]
        return append_filler(values.reshape(-1), -len(values) % TOKEN_TILE * values.shape[1], filler)

    def teacher_logits(self, names: Sequence[str], select: Callable[[str], np.ndarray]) -> Dict[str, Tensor]:
        """Return the columns of these names that the rows have, read by `select`, in fp64."""
        return {name: torch.from_numpy(select(name).astype(np.float64)) for name in names if name in self.columns}


Labels = Callable[[FlatIndex], Dict[str, Tensor]]


def flatten(batch: Batch, labels: Optional[Labels] = None) -> FlatBatch:
    """Remove the padding of whole rows; every step is one NumPy call over all rows. `labels` is Head.flat_labels."""
    columns = batch.columns
    rows, length = columns["input_ids"].shape
    at_row, at_slot = np.nonzero(columns["cls_positions"] != ABSENT)
    firsts = at_row * length + columns["cls_positions"][at_row, at_slot].astype(np.int64)  # [N], in all R * L tokens
    lengths = count_tokens(columns["sequence_ids"], columns["cls_positions"].shape[1])[at_row, at_slot]
    longest_first = np.argsort(-lengths, kind="stable")
    at_row, at_slot, firsts, lengths = (x[longest_first] for x in (at_row, at_slot, firsts, lengths))
    starts = np.cumsum(lengths) - lengths
    real = int(lengths.sum())
    source = np.repeat(firsts - starts, lengths) + np.arange(real)  # [T] position in the rows
    blocks = [*lengths.tolist(), *([-real % TOKEN_TILE] if real % TOKEN_TILE else [])]
    places = FlatIndex(columns, at_row, at_slot, firsts, source, batch.class_weights)
    tokens = Tokens(
        input_ids=to_tensor(places.per_token("input_ids", 0)),
        token_type_ids=to_tensor(places.per_token("token_type_ids", 0)),
        position_ids=to_tensor(places.per_token("position_ids", 0)),
        attention=SequenceAttention(blocks),
        lengths=lengths.tolist(),
    )
    ids = columns["feature_ids"][at_row, at_slot] if "feature_ids" in columns else np.empty(0, dtype=np.int32)
    return FlatBatch(tokens, to_tensor(starts), lengths, labels(places) if labels is not None else {}, ids, blocks)


def count_tokens(sequence_ids: np.ndarray, max_sequences: int) -> np.ndarray:
    """Return the tokens of every sequence, [R, S]."""
    rows = len(sequence_ids)
    cells = np.arange(rows)[:, None] * (max_sequences + 1) + sequence_ids
    counts = np.bincount(cells.reshape(-1), minlength=rows * (max_sequences + 1))
    return counts.reshape(rows, max_sequences + 1)[:, 1:]


def append_filler(values: np.ndarray, count: int, value: int = 0) -> np.ndarray:
    """Append `value` to `values` `count` times."""
    return np.pad(values, (0, count), constant_values=value) if count else values


def to_tensor(values: np.ndarray) -> Tensor:
    """Convert to an int64 tensor."""
    return torch.from_numpy(values.astype(np.int64))


def pad_logits(logits: Tensor, starts: Tensor, lengths: np.ndarray) -> Tensor:
    """Pad logits [T, C] of flat tokens -> [N, longest, C], with -inf after the end of each sequence.

    A softmax over the middle dimension then covers only the tokens of one sequence. The computation runs on the device
    of `logits` and `starts`; only the largest and the sum of the lengths are read on the host.
    """
    tokens = len(logits)
    stops = torch.nn.functional.pad(starts[1:], (0, 1), value=int(lengths.sum()))  # sequences are concatenated
    index = starts[:, None] + torch.arange(int(lengths.max()), device=starts.device)
    outside = index >= stops[:, None]
    return logits[index.clamp(max=tokens - 1)].masked_fill(outside[:, :, None], float("-inf"))


def split_sequences(values: np.ndarray, lengths: np.ndarray) -> List[np.ndarray]:
    """Split values [T] of flat tokens into one array per sequence."""
    return np.split(values, np.cumsum(lengths)[:-1])


@dataclass(frozen=True)
class Group:
    """Neighbouring sequences that share one call."""

    first_row: int
    """First of its G * A * N rows among all K."""
    sequences: int
    tokens: int
    """N."""
    hidden: Tensor
    """[G, 1, 1, N] fp32, or [G, 1, N, N] with a window, added to the scores: -inf on hidden keys, 0 on others."""


@dataclass(frozen=True)
class AttentionLayout:
    """Indices of every token's heads among the K rows [D] of the groups, which are ordered [G, A, N] in each."""

    groups: List[Group]
    source: Tensor
    """[K] int64: index among the T * A rows of the tokens; padding repeats the last token of its sequence."""
    target: Tensor
    """[T * A] int64: index among the K rows."""
    pads: Tensor
    """int64: indices of the K rows that are padding."""

    @staticmethod
    def from_lengths(lengths: Sequence[int], heads: int, window: int = 0) -> AttentionLayout:
        """Return the layout of concatenated sequences; those of similar length should be neighbours."""
        groups: List[Group] = []
        sources, pads = [], []
        rows = token = at = 0
        while at < len(lengths):
            padded, count = _group_size(lengths[at:], heads)
            sizes = np.array(lengths[at : at + count])
            index = np.arange(padded)
            starts = token + np.cumsum(sizes) - sizes
            outside = index >= sizes[:, None]  # [G, N]
            tokens = starts[:, None] + np.minimum(index, sizes[:, None] - 1)
            by_head = tokens[:, None, :] * heads + np.arange(heads)[:, None]  # [G, A, N]
            sources.append(by_head.reshape(-1))
            pads.append(np.broadcast_to(outside[:, None, :], by_head.shape).reshape(-1))
            masked = outside[:, None, None, :]
            if 0 < window < padded - 1:  # padded queries see their own position, as a softmax needs one
                masked = (masked & (index[:, None] < sizes[:, None, None, None])) | (
                    abs(index[:, None] - index) > window
                )
            hidden = torch.from_numpy(np.where(masked, -np.inf, 0.0).astype(np.float32))
            groups.append(Group(rows, count, padded, hidden))
            rows, token, at = rows + by_head.size, token + int(sizes.sum()), at + count
        source = np.concatenate(sources) if sources else np.empty(0, dtype=np.int64)
        pad = np.concatenate(pads) if pads else np.empty(0, dtype=bool)
        target = np.empty(token * heads, dtype=np.int64)
        target[source[~pad]] = np.nonzero(~pad)[0]
        return AttentionLayout(groups, *(torch.from_numpy(x) for x in (source, target, np.nonzero(pad)[0])))

    def spread(self, flat: Tensor, heads: int) -> Tensor:
        """Rearrange [T, H] -> [K, D]."""
        return flat.reshape(-1, flat.shape[1] // heads).index_select(0, self.source)

    def collect(self, rows: Tensor, hidden: int) -> Tensor:
        """Rearrange [K, D] -> [T, H] without padding."""
        return rows.index_select(0, self.target).view(-1, hidden)

    def of_group(self, rows: Tensor, group: Group, heads: int) -> Tensor:
        """Return the rows of one group: a view [G * A, N, D] of [K, D]."""
        count = group.sequences * heads
        return rows[group.first_row : group.first_row + count * group.tokens].view(count, group.tokens, -1)


def _group_size(lengths: Sequence[int], heads: int) -> Tuple[int, int]:
    """Return the padded tokens of the next sequence, and the size of its group: a power of two, to limit shapes."""
    padded = -(-lengths[0] // SEQUENCE_TILE) * SEQUENCE_TILE
    most = max(1, SCORES_PER_GROUP // (heads * padded * padded))
    alike = 1
    while alike < min(most, len(lengths)) and padded - SEQUENCE_TILE < lengths[alike] <= padded:
        alike += 1
    return padded, 1 << (alike.bit_length() - 1)


class SequenceAttention:
    """Attention inside each of several concatenated sequences, the longest first; `lengths` are their tokens."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._layouts: Dict[Tuple[int, ...], Any] = {}

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int = 0
    ) -> Tensor:
        """Compute attention; query, key, value and result are [T, H]. `dropout` applies to the probabilities."""
        if window:
            long = sum(length > LONGEST_IN_GROUP for length in self._lengths)
        else:
            long = 0 if dropout else sum(length > LONGEST_WITH_SCORES for length in self._lengths)
        if not long:
            return self._attend_in_groups(query, key, value, heads, dropout, window, 0)
        tokens = sum(self._lengths[:long])
        (q, q_rest), (k, k_rest), (v, v_rest) = (x.split([tokens, len(x) - tokens]) for x in (query, key, value))
        if window:
            attended = self._attend_in_band(q, k, v, heads, dropout, window, long)
        else:
            attended = attend_by_sequence(q, k, v, heads, self._lengths[:long])
        if not len(q_rest):
            return attended
        return torch.cat([attended, self._attend_in_groups(q_rest, k_rest, v_rest, heads, dropout, window, long)])

    def _attend_in_groups(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int, first: int
    ) -> Tensor:
        layout = self._layouts.get((heads, window, first))
        if layout is None:  # created once, for all layers
            layout = AttentionLayout.from_lengths(self._lengths[first:], heads, window)
            self._layouts[heads, window, first] = layout
        return _SequenceAttention.apply(query, key, value, layout, heads, dropout)

    def _attend_in_band(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int, count: int
    ) -> Tensor:
        if (window, count) not in self._layouts:
            self._layouts[window, count] = hide_outside_band(self._lengths[:count], window)
        return BandAttention.apply(query, key, value, self._layouts[window, count], heads, dropout)


class _SequenceAttention(torch.autograd.Function):
    """Attention softmax(q k^T / sqrt(D)) v per sequence; with P the softmax, M the dropout mask and c = 1 / (1 - p):

    output = c (M P) v,  dv = c (M P)^T do,  dP = c M (do v^T),  dS = P (dP - sum(dP P)),  dq = dS k / sqrt(D) and
    dk = dS^T q / sqrt(D). Constant factors are applied at the ends, where there are fewest numbers. Padded queries have
    no effect: their part of the output is dropped, and their gradient is set to 0.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: AttentionLayout, heads: int, dropout: float
    ) -> Tensor:
        q, k, v = (layout.spread(x, heads) for x in (query, key, value))
        output = torch.empty_like(q)
        saved: List[Tensor] = [q, k, v]
        for group in layout.groups:
            q_g, k_g, v_g, out_g = (layout.of_group(x, group, heads) for x in (q, k, v, output))
            scores = torch.bmm(q_g, k_g.transpose(1, 2))
            by_head = scores.view(group.sequences, heads, group.tokens, group.tokens)
            # At least in fp32, as the exponentials need it: 0.4 ms for 295,000 bf16 scores; plain torch takes 1.0.
            wide = torch.add(group.hidden, by_head, alpha=1 / math.sqrt(q.shape[1]))
            kept = probabilities = torch.softmax(wide, -1).to(scores.dtype).view(scores.shape)
            if dropout > 0:
                kept = drop_and_mark(probabilities, dropout)  # most memory of long sequences is here
            saved.append(probabilities)
            torch.bmm(kept, v_g, out=out_g)
        ctx.save_for_backward(*saved)
        ctx.layout, ctx.heads, ctx.dropout, ctx.dropout_scale = layout, heads, dropout, dropout_scale(dropout)
        output = layout.collect(output, query.shape[1])
        return output.mul_(ctx.dropout_scale) if dropout > 0 else output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> Tuple[Any, ...]:
        layout, heads = ctx.layout, ctx.heads
        q, k, v, *saved = ctx.saved_tensors
        d_o = layout.spread(d_output, heads).index_fill_(0, layout.pads, 0)
        d_q, d_k, d_v = (torch.empty_like(x) for x in (q, k, v))
        for group, probabilities in zip(layout.groups, saved):
            q_g, k_g, v_g, d_o_g = (layout.of_group(x, group, heads) for x in (q, k, v, d_o))
            d_q_g, d_k_g, d_v_g = (layout.of_group(x, group, heads) for x in (d_q, d_k, d_v))
            kept = probabilities
            d_p = torch.bmm(d_o_g, v_g.transpose(1, 2))
            if ctx.dropout > 0:
                probabilities, mask = split_marked(probabilities)
                kept, d_p = apply_mask(probabilities, mask), apply_mask(d_p, mask)
            torch.bmm(kept.transpose(1, 2), d_o_g, out=d_v_g)
            d_s = torch._softmax_backward_data(d_p, probabilities, -1, d_p.dtype)  # sums in fp32, whatever the dtype
            torch.bmm(d_s, k_g, out=d_q_g)
            torch.bmm(d_s.transpose(1, 2), q_g, out=d_k_g)
        factor = ctx.dropout_scale / math.sqrt(q.shape[1])
        d_query, d_key, d_value = (layout.collect(x, d_output.shape[1]) for x in (d_q, d_k, d_v))
        return d_query.mul_(factor), d_key.mul_(factor), d_value.mul_(ctx.dropout_scale), None, None, None
