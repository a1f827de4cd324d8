"""Packed rows without their padding: the layout of runtimes that take any shape.

Legend: R rows, L row length, S sequences a row at most, N sequences and T tokens in all (T with the filler), M labels.
Sequences are laid end to end, longest first, so that those of equal length are neighbours and attention
serves them in one call (attention.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List

import numpy as np
import torch
from torch import Tensor

from ipu_model.models.attention import SequenceAttention
from ipu_model.models.encoder import Tokens
from ipu_model.rows.format import ABSENT, IGNORED
from ipu_model.rows.reading import Batch

TILE = 64
"""Tokens, and masked tokens, are filled up to a multiple of it: oneDNN compiles a kernel for every new shape of a
product, some milliseconds each, so that shapes must repeat. The filler is a sequence of its own that no loss reads."""


@dataclass(frozen=True)
class FlatBatch:
    """One micro-batch without padding, but for the filler at its end."""

    tokens: Tokens
    """[T] each, T a multiple of TILE."""
    starts: Tensor
    """[N] int64: first flat token of each sequence, its [CLS]."""
    lengths: np.ndarray
    """[N] int64, descending; on the host, as shapes follow from it."""
    labels: Dict[str, Tensor]
    """pretrain: masked_index [M], masked_labels [M], next_sentence_labels [N];
    question_answering: start_labels [N], end_labels [N] inside their sequence, -100 = none;
    sequence_classification: class_labels [N]; sequence_regression: targets [N], fp64."""
    feature_ids: np.ndarray
    """[N] int32; empty for pretrain rows."""

    @property
    def real_tokens(self) -> int:
        """Those before the filler."""
        return int(self.lengths.sum())

    @property
    def blocks(self) -> List[int]:
        """Tokens of everything that attention keeps apart: the sequences, and the filler where there is some."""
        return _blocks(self.lengths, len(self.tokens.input_ids) - self.real_tokens)


def flatten(batch: Batch) -> FlatBatch:
    """Drop the padding of whole rows; every step is a NumPy call over all rows at once."""
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
    filler = -real % TILE
    tokens = Tokens(
        input_ids=_tensor(_fill(columns["input_ids"].reshape(-1)[source], filler)),
        token_type_ids=_tensor(_fill(columns["token_type_ids"].reshape(-1)[source], filler)),
        position_ids=_tensor(_fill(columns["position_ids"].reshape(-1)[source], filler)),
        attention=SequenceAttention(_blocks(lengths, filler)),
    )
    if "masked_labels" in columns:
        flat_position = np.zeros(rows * length, dtype=np.int64)
        flat_position[source] = np.arange(len(source))
        labels = _pretraining_labels(columns, flat_position, at_row, at_slot)
    elif "start_positions" in columns:
        labels = _answer_labels(columns, firsts, at_row, at_slot)
    else:
        labels = _sequence_labels(columns, at_row, at_slot)
    ids = columns["feature_ids"][at_row, at_slot] if "feature_ids" in columns else np.empty(0, dtype=np.int32)
    return FlatBatch(tokens, _tensor(starts), lengths, labels, ids)


def _blocks(lengths: np.ndarray, filler: int) -> List[int]:
    return [*lengths.tolist(), *([filler] if filler else [])]


def _sequence_lengths(sequence_ids: np.ndarray, max_sequences: int) -> np.ndarray:
    """[R, S] tokens of every sequence."""
    rows = len(sequence_ids)
    cells = np.arange(rows)[:, None] * (max_sequences + 1) + sequence_ids
    counts = np.bincount(cells.reshape(-1), minlength=rows * (max_sequences + 1))
    return counts.reshape(rows, max_sequences + 1)[:, 1:]


def _pretraining_labels(
    columns: Dict[str, np.ndarray], flat_position: np.ndarray, at_row: np.ndarray, at_slot: np.ndarray
) -> Dict[str, Tensor]:
    length = columns["input_ids"].shape[1]
    label_row, label_slot = np.nonzero(columns["masked_labels"] != IGNORED)
    positions = columns["masked_positions"][label_row, label_slot].astype(np.int64)
    filler = -len(positions) % TILE
    return {
        "masked_index": _tensor(_fill(flat_position[label_row * length + positions], filler)),
        "masked_labels": _tensor(_fill(columns["masked_labels"][label_row, label_slot], filler, IGNORED)),
        "next_sentence_labels": _tensor(columns["next_sentence_labels"][at_row, at_slot]),
    }


def _answer_labels(
    columns: Dict[str, np.ndarray], firsts: np.ndarray, at_row: np.ndarray, at_slot: np.ndarray
) -> Dict[str, Tensor]:
    length = columns["input_ids"].shape[1]
    labels = {}
    for name, column in (("start_labels", "start_positions"), ("end_labels", "end_positions")):
        absolute = columns[column][at_row, at_slot].astype(np.int64)
        inside = absolute - (firsts - at_row * length)
        labels[name] = _tensor(np.where(absolute == IGNORED, IGNORED, inside))
    return labels


def _sequence_labels(columns: Dict[str, np.ndarray], at_row: np.ndarray, at_slot: np.ndarray) -> Dict[str, Tensor]:
    if "class_labels" in columns:
        return {"class_labels": _tensor(columns["class_labels"][at_row, at_slot])}
    return {"targets": torch.from_numpy(columns["targets"][at_row, at_slot].astype(np.float64))}


def _fill(values: np.ndarray, count: int, value: int = 0) -> np.ndarray:
    return np.pad(values, (0, count), constant_values=value) if count else values


def _tensor(values: np.ndarray) -> Tensor:
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
