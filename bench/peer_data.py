"""Data of the peer: our packed rows split into single sequences, and batches as in Hugging Face's scripts."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ipu_model.rows.format import ABSENT, IGNORED
from ipu_model.rows.row_folder import Batch, RowFolder, UpdateRows

Item = dict[str, Any]
ROWS_PER_READ = 64
LABELS = {
    "pretrain": ("next_sentence_label",),
    "masked_lm": (),
    "squad": ("start_positions", "end_positions"),
    "classification": ("labels",),
    "predict": (),
}
"""Labels with one value per sequence."""


def split_batch(batch: Batch) -> list[Item]:
    """Split rows into sequences: input_ids and token_type_ids as lists, and labels relative to the sequence.

    pretrain: labels (-100 for unmasked tokens), next_sentence_label; masked_lm: labels; squad: start_positions,
    end_positions, feature_id; classification: labels, the class.
    """
    columns, items = batch.columns, []
    for row, slot in np.argwhere(columns["cls_positions"] != ABSENT):
        first = int(columns["cls_positions"][row, slot])
        here = np.flatnonzero(columns["sequence_ids"][row] == slot + 1)
        item = {name: columns[name][row, here].tolist() for name in ("input_ids", "token_type_ids")}
        if "masked_labels" in columns:
            labels = np.full(columns["input_ids"].shape[1], IGNORED)
            used = columns["masked_labels"][row] != IGNORED
            labels[columns["masked_positions"][row][used]] = columns["masked_labels"][row][used]
            item["labels"] = labels[here].tolist()
            if "next_sentence_labels" in columns:
                item["next_sentence_label"] = int(columns["next_sentence_labels"][row, slot])
        elif "class_labels" in columns:
            item["labels"] = int(columns["class_labels"][row, slot])
        else:
            for name in ("start_positions", "end_positions"):
                absolute = int(columns[name][row, slot])
                item[name] = absolute if absolute == IGNORED else absolute - first
            item["feature_id"] = int(columns["feature_ids"][row, slot])
        items.append(item)
    return items


class Sequences(Dataset[Item]):
    """Dataset of sequences for Trainer."""

    def __init__(self, items: list[Item]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Item:
        return self._items[index]


def read_sequences(rows: RowFolder, count: int, seed: int) -> Sequences:
    """Return the first `count` sequences in the row order of our training, if necessary over several epochs."""
    order, items, step = UpdateRows(len(rows), min(ROWS_PER_READ, len(rows)), seed), list[Item](), 0
    while len(items) < count:
        items += split_batch(rows.take(order(step)))
        step += 1
    return Sequences(items[:count])


class Collator:
    """Collator of items to padded tensors; it records the real tokens of each batch, oldest first.

    Args:
        task: pretrain, masked_lm, squad, classification, or predict (without labels).
        padded_to: Length of every batch; None pads to its longest sequence.
        multiple: Lengths of the latter are rounded up to a multiple of this.
        pad_id: Token of the padding.
        types: Batches have token types.
    """

    def __init__(
        self, task: str, padded_to: int | None, multiple: int = 1, *, pad_id: int = 0, types: bool = True
    ) -> None:
        self._task, self._padded_to, self._multiple = task, padded_to, multiple
        self._fills = {"input_ids": pad_id} | ({"token_type_ids": 0} if types else {})
        self._fills |= {"labels": IGNORED} if task in ("pretrain", "masked_lm") else {}
        self.real_tokens: deque[int] = deque()

    def __call__(self, items: list[Item]) -> dict[str, Tensor]:
        lengths = [len(item["input_ids"]) for item in items]
        self.real_tokens.append(sum(lengths))
        width = self._padded_to or -(-max(lengths) // self._multiple) * self._multiple
        batch = {name: torch.full((len(items), width), fill) for name, fill in self._fills.items()}
        batch["attention_mask"] = torch.zeros((len(items), width), dtype=torch.int64)
        for number, (item, length) in enumerate(zip(items, lengths, strict=True)):
            batch["attention_mask"][number, :length] = 1
            for name in self._fills:
                batch[name][number, :length] = torch.tensor(item[name])
        return batch | {name: torch.tensor([item[name] for item in items]) for name in LABELS[self._task]}
