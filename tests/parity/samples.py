"""Single samples cut out of packed rows, without padding, and models with equal weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tiny_jobs import head_of, labels_of, make_columns, write_rows
from torch import nn

from ipu_model.models.config import ModelConfig
from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import Batch, RowFolder

ORIGIN = ModelOrigin(tokenizer_sha256="t" * 64, kind="pretrain", head="pretraining", steps=0, seed=0)


def make_batch(folder: Path, kind: str, config: ModelConfig, rows: int = 12) -> Batch:
    """All rows of a fresh row folder."""
    write_rows(folder, kind, make_columns(kind, rows, seed=3))
    return RowFolder(folder, kind, config, labels_of(kind)).take(torch.arange(rows).numpy())


def make_models(folder: Path, head: str, config: ModelConfig, theirs: Any, seed: int = 1) -> tuple[nn.Module, Any]:
    """Ours with random weights, biases and LayerNorm included, and theirs loaded from our folder.

    Args:
        head: or the kind of rows that it reads, which says how many labels it has.
    """
    labels = [f"label {number}" for number in range(labels_of(head))]
    head, kind = head_of(head), None if head == head_of(head) else head
    model = build_model(head, config, len(labels))
    initialise(model, config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.empty(parameter.shape).normal_(0, 0.3, generator=generator))
    folder.mkdir()
    write_model(folder, head, config, model.state_dict(), ORIGIN, labels, kind)
    loaded, report = theirs.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"], report
    assert not report["unexpected_keys"], report
    assert not report["mismatched_keys"], report
    return model, loaded


def samples(batch: Batch) -> Iterator[dict[str, torch.Tensor]]:
    """Every sequence alone: its tokens, and its labels counted from its own start; no padding."""
    columns = batch.columns
    for row in range(len(batch.rows)):
        for slot, first in enumerate(columns["cls_positions"][row]):
            if first < 0:
                continue
            here = columns["sequence_ids"][row] == slot + 1
            length = int(here.sum())
            sample = {
                "input_ids": torch.tensor(columns["input_ids"][row][here].astype(int)[None]),
                "token_type_ids": torch.tensor(columns["token_type_ids"][row][here].astype(int)[None]),
            }
            if "masked_labels" in columns:
                labels = torch.full((1, length), -100)
                slots = zip(columns["masked_positions"][row], columns["masked_labels"][row], strict=True)
                for position, label in slots:
                    if label != -100 and here[position]:
                        labels[0, position - first] = int(label)
                sample["labels"] = labels
                if "next_sentence_labels" in columns:
                    sample["next_sentence_label"] = torch.tensor([int(columns["next_sentence_labels"][row, slot])])
            elif "start_positions" in columns:
                sample["start_positions"] = torch.tensor([int(columns["start_positions"][row, slot] - first)])
                sample["end_positions"] = torch.tensor([int(columns["end_positions"][row, slot] - first)])
            elif "class_labels" in columns:
                sample["labels"] = torch.tensor([int(columns["class_labels"][row, slot])])
            elif "label_flags" in columns:
                flags = columns["label_flags"][row].reshape(len(columns["cls_positions"][row]), -1)[slot]
                sample["labels"] = torch.tensor(flags[None].astype("float32"))
            elif "token_labels" in columns:
                sample["labels"] = torch.tensor(columns["token_labels"][row][here].astype(int)[None])
            else:
                sample["labels"] = torch.tensor([float(columns["targets"][row, slot])])
            if "feature_ids" in columns:
                sample["feature_id"] = torch.tensor(int(columns["feature_ids"][row, slot]))
            yield sample
