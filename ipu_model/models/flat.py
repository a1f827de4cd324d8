"""Packed rows without their padding: the layout of runtimes that take any shape.

Legend: R rows, L row length, S sequences a row at most, N sequences and T tokens in all (T with the filler), M labels.
Sequences are laid end to end, longest first, so that those of equal length are neighbours and attention
serves them in one call (attention.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional

import numpy as np
import torch
from torch import Tensor

from ipu_model.models.attention import SequenceAttention
from ipu_model.models.encoder import Tokens
from ipu_model.models.tiles import TOKEN_TILE
from ipu_model.rows.format import ABSENT
from ipu_model.rows.reading import Batch, Columns


@dataclass(frozen=True)
class FlatBatch:
    """One micro-batch without padding, but for the filler at its end."""

    tokens: Tokens
    """[T] each, T a multiple of TOKEN_TILE."""
    starts: Tensor
    """[N] int64: first flat token of each sequence, its [CLS]."""
    lengths: np.ndarray
    """[N] int64, descending; on the host, as shapes follow from it."""
    labels: Dict[str, Tensor]
    """What the head learns from (Head.flat_labels): 64-bit numbers of one dimension."""
    feature_ids: np.ndarray
    """[N] int32; empty where rows have none."""

    @property
    def real_tokens(self) -> int:
        """Those before the filler."""
        return int(self.lengths.sum())

    @property
    def blocks(self) -> List[int]:
        """Tokens of everything that attention keeps apart: the sequences, and the filler where there is some."""
        return _blocks(self.lengths, len(self.tokens.input_ids) - self.real_tokens)


@dataclass(frozen=True)
class Places:
    """Where the sequences and tokens of a flat batch lie in its rows."""

    columns: Columns
    """Columns of the rows."""
    row: np.ndarray
    """[N] the row of each sequence."""
    slot: np.ndarray
    """[N] its place among those of the row, 0..S-1."""
    first: np.ndarray
    """[N] int64: its first token among the R * L of the rows."""
    source: np.ndarray
    """[T] int64: each token, without the filler, among the R * L of the rows."""

    def per_sequence(self, column: str) -> np.ndarray:
        """[N] of a column with a value for each sequence."""
        return self.columns[column][self.row, self.slot]

    def per_token(self, column: str, filler: int) -> np.ndarray:
        """[T], filler included, of a column with a value for each token."""
        return fill(self.columns[column].reshape(-1)[self.source], -len(self.source) % TOKEN_TILE, filler)


Labels = Callable[[Places], Dict[str, Tensor]]


def flatten(batch: Batch, labels: Optional[Labels] = None) -> FlatBatch:
    """Drop the padding of whole rows; every step is a NumPy call over all rows at once.

    Args:
        labels: Makes the labels (Head.flat_labels); None: there are none.
    """
    columns = batch.columns
    rows, length = columns["input_ids"].shape
    at_row, at_slot = np.nonzero(columns["cls_positions"] != ABSENT)
    firsts = at_row * length + columns["cls_positions"][at_row, at_slot].astype(np.int64)  # [N], in all R * L tokens
    lengths = _sequence_lengths(columns["sequence_ids"], columns["cls_positions"].shape[1])[at_row, at_slot]
    longest_first = np.argsort(-lengths, kind="stable")
    at_row, at_slot, firsts, lengths = (x[longest_first] for x in (at_row, at_slot, firsts, lengths))
    starts = np.cumsum(lengths) - lengths
    real = int(lengths.sum())
    source = np.repeat(firsts - starts, lengths) + np.arange(real)  # [T] position in the rows
    places = Places(columns, at_row, at_slot, firsts, source)
    tokens = Tokens(
        input_ids=to_tensor(places.per_token("input_ids", 0)),
        token_type_ids=to_tensor(places.per_token("token_type_ids", 0)),
        position_ids=to_tensor(places.per_token("position_ids", 0)),
        attention=SequenceAttention(_blocks(lengths, -real % TOKEN_TILE)),
    )
    ids = columns["feature_ids"][at_row, at_slot] if "feature_ids" in columns else np.empty(0, dtype=np.int32)
    return FlatBatch(tokens, to_tensor(starts), lengths, labels(places) if labels is not None else {}, ids)


def _blocks(lengths: np.ndarray, filler: int) -> List[int]:
    return [*lengths.tolist(), *([filler] if filler else [])]


def _sequence_lengths(sequence_ids: np.ndarray, max_sequences: int) -> np.ndarray:
    """[R, S] tokens of every sequence."""
    rows = len(sequence_ids)
    cells = np.arange(rows)[:, None] * (max_sequences + 1) + sequence_ids
    counts = np.bincount(cells.reshape(-1), minlength=rows * (max_sequences + 1))
    return counts.reshape(rows, max_sequences + 1)[:, 1:]


def fill(values: np.ndarray, count: int, value: int = 0) -> np.ndarray:
    """`values` with `count` times `value` after them."""
    return np.pad(values, (0, count), constant_values=value) if count else values


def to_tensor(values: np.ndarray) -> Tensor:
    """As int64."""
    return torch.from_numpy(values.astype(np.int64))


def per_sequence(logits: Tensor, starts: Tensor, lengths: np.ndarray) -> Tensor:
    """Logits [T, C] of flat tokens -> [N, longest, C], -inf after the end of each sequence.

    A softmax over the middle dimension then covers the tokens of one sequence: no pads, no neighbours.
    All of it happens where `logits` and `starts` are; of the lengths only the largest and the sum are read here.
    """
    tokens = len(logits)
    stops = torch.nn.functional.pad(starts[1:], (0, 1), value=int(lengths.sum()))  # sequences lie end to end
    index = starts[:, None] + torch.arange(int(lengths.max()), device=starts.device)
    outside = index >= stops[:, None]
    return logits[index.clamp(max=tokens - 1)].masked_fill(outside[:, :, None], float("-inf"))


def split_sequences(values: np.ndarray, lengths: np.ndarray) -> List[np.ndarray]:
    """Values [T] of flat tokens -> one array per sequence."""
    return np.split(values, np.cumsum(lengths)[:-1])
