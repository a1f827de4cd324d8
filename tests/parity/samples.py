"""Single samples cut out of packed rows, without padding, and models with equal weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_jobs import LABELS, TINY, head_of, labels_of, make_columns, write_rows
from torch import nn

from ipu_model.models.config import ModelConfig
from ipu_model.models.families import configure_model, get_family
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import ModelFolder, ModelOrigin, missing_parameters, read_model, write_model
from ipu_model.models.modeling import build_model, initialise, is_exempt
from ipu_model.rows.row_folder import Batch, RowFolder
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

RATE, DECAY = 1e-3, 0.1
EPS = 1e-4
"""Far above the gradients that are zero but for rounding, as those of key biases are; Adam would scale them up."""
ORIGIN = ModelOrigin(tokenizer_sha256="t" * 64, kind="pretrain", head="pretraining", steps=0, seed=0)


def make_batch(folder: Path, kind: str, config: ModelConfig, rows: int = 12, stretch: int = 1) -> Batch:
    columns = make_columns(kind, rows, seed=3, stretch=stretch)
    if config.type_vocab_size == 1:
        columns["token_type_ids"][:] = 0
    write_rows(folder, kind, columns)
    return RowFolder(folder, kind, config, labels_of(kind)).take(np.arange(rows))


def make_models(folder: Path, head: str, config: ModelConfig, theirs: Any, seed: int = 1) -> tuple[nn.Module, Any]:
    """Ours with random weights, biases and LayerNorm included, and theirs loaded from our folder."""
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


def configure_theirs(family: str, labels: int, **dropouts: float) -> Any:
    """The configuration of transformers for a tiny model of one of our families."""
    sizes = {name: getattr(TINY, name) for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size")}
    rates = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.5}
    values = get_family(family).write_values(configure_model(60, family, max_positions=24, **sizes, **rates))
    values.update({"embedding_size": 8} if "embedding_size" in values else {})
    values.update({"local_attention": 8} if "local_attention" in values else {})
    values.update({"qa_dropout": 0.0, "seq_classif_dropout": 0.0, **dropouts})
    names = {"id2label": {str(number): name for number, name in enumerate(LABELS)}} if labels else {}
    return transformers.AutoConfig.for_model(**values, **names)


def draw_theirs(config: Any, task: str, **options: Any) -> Any:
    """A random model of transformers, biases and norms included."""
    torch.manual_seed(5)
    theirs = getattr(transformers, f"AutoModel{task}").from_config(config, **options).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    return theirs


def import_theirs(theirs: Any, folder: Path) -> ModelFolder:
    """Ours, imported from folder/theirs, where their model is saved; nothing is left out."""
    (folder / "ours").mkdir()
    report = import_model(folder / "theirs", folder / "ours", "t" * 64)
    assert (report.architecture, report.left_out) == (type(theirs).__name__, [])
    return read_model(folder / "ours")


def build(found: ModelFolder, kind: str) -> nn.Module:
    """The model of an imported folder, whose every weight is there."""
    model = build_model(head_of(kind), found.config, labels_of(kind))
    assert missing_parameters(found, model.state_dict()) == []
    model.load_state_dict({name: found.state[name] for name in model.state_dict()})
    return model


def read_by_theirs(sample: dict[str, torch.Tensor], config: ModelConfig) -> dict[str, torch.Tensor]:
    unread = {"feature_id"} if config.type_vocab_size else {"feature_id", "token_type_ids"}
    return {name: x for name, x in sample.items() if name not in unread}


def require_same_logits(model: nn.Module, kind: str, batch: Batch, config: ModelConfig, *others: Any) -> None:
    """Packed rows give the logits of their models on each sequence alone."""
    found = {x.feature_id: x.columns for x in TorchRuntime(model, head_of(kind), 4, "fp32", None, 0).predict(batch)}
    assert len(found) == batch.sequences
    for sample in samples(batch):
        asked = {name: x for name, x in read_by_theirs(sample, config).items() if name.endswith("_ids")}
        for theirs in others:
            with torch.no_grad():
                alone = theirs.eval()(**asked)
            for name, logits in found[int(sample["feature_id"])].items():
                np.testing.assert_allclose(logits, alone[name][0].flatten().numpy(), rtol=1e-5, atol=1e-5)


def require_same_updates(model: nn.Module, kind: str, batch: Batch, config: ModelConfig, theirs: Any) -> None:
    """Three updates have the losses and end with the weights of torch's AdamW over their model."""
    optimizer = optimizer_config(learning_rate=RATE, weight_decay=DECAY, eps=EPS)
    runtime = TorchRuntime(model, head_of(kind), 4, "fp32", optimizer, seed=0)
    groups = [
        {"params": [p for p in theirs.parameters() if is_exempt(p) is exempt], "weight_decay": decay}
        for exempt, decay in ((False, DECAY), (True, 0.0))
    ]
    stepper = torch.optim.AdamW(groups, lr=RATE, eps=EPS)
    every = [read_by_theirs(sample, config) for sample in samples(batch)]
    counts = [int((x["labels"] != -100).sum()) if "labels" in x else 1 for x in every]
    for _ in range(3):
        stepper.zero_grad()
        total = 0.0
        for sample, count in zip(every, counts, strict=True):
            if count:
                loss = theirs.train()(**sample).loss * (count / sum(counts))
                loss.backward()
                total += loss.item()
        stepper.step()
        assert runtime.train_step(batch, RATE).loss == pytest.approx(total, rel=1e-5)
    expected = theirs.state_dict()
    for name, ours in get_family(config.family).to_theirs(runtime.state_dict()).items():
        torch.testing.assert_close(ours, expected[name], rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
