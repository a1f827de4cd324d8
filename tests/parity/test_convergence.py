"""Training at speed learns what plain training learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from samples import ORIGIN
from tiny_jobs import make_columns, write_rows
from transformers import BertForPreTraining

from ipu_model.models.config import ModelConfig
from ipu_model.models.model_folder import write_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import Batch, RowFolder, UpdateRows
from ipu_model.runtimes.torch_device import TorchRuntime
from ipu_model.train.training import learning_rate
from tests.optimizers import optimizer_config

CONFIG = ModelConfig(
    vocab_size=60,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    intermediate_size=64,
    max_positions=32,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.1,
)
UPDATES, PEAK = 150, 3e-3


def ours(rows: RowFolder, precision: str) -> float:
    """Mean loss of the last 20 updates."""
    model = build_model("pretraining", CONFIG)
    initialise(model, CONFIG, seed=1)
    optimizer = optimizer_config(learning_rate=PEAK, weight_decay=0.01, eps=1e-6, max_grad_norm=1.0)
    runtime = TorchRuntime(model, "pretraining", 16, precision, optimizer, seed=0)
    order, losses = UpdateRows(len(rows), 16, seed=3), []
    for step in range(UPDATES):
        losses.append(runtime.train_step(rows.take(order(step)), learning_rate(step, UPDATES, 15, PEAK)).loss)
    return sum(losses[-20:]) / 20


def plain(folder: Path, rows: RowFolder) -> float:
    """The same with transformers' model on whole rows, torch's AdamW over all tensors, and clip_grad_norm_."""
    model = build_model("pretraining", CONFIG)
    initialise(model, CONFIG, seed=1)
    folder.mkdir()
    write_model(folder, "pretraining", CONFIG, model.state_dict(), ORIGIN)
    theirs = BertForPreTraining.from_pretrained(folder, attn_implementation="eager").train()
    exempt = [p for n, p in theirs.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    decayed = [p for n, p in theirs.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": exempt, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, eps=1e-6, foreach=False, fused=False)
    order, losses = UpdateRows(len(rows), 16, seed=3), []
    for step in range(UPDATES):
        loss = loss_of(theirs, rows.take(order(step)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, UPDATES, 15, PEAK)
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[-20:]) / 20


def loss_of(theirs: BertForPreTraining, batch: Batch) -> torch.Tensor:
    """Mean losses of both heads over the labels of packed rows, under a block mask."""
    columns = {name: torch.from_numpy(x.astype("int64")) for name, x in batch.columns.items()}
    ids = columns["sequence_ids"]
    allowed = ids[:, None, :, None] == ids[:, None, None, :]  # padding too: softmax needs a key
    hidden = theirs.bert(
        columns["input_ids"],
        attention_mask=torch.where(allowed, 0.0, torch.finfo(torch.float32).min),
        token_type_ids=columns["token_type_ids"],
        position_ids=columns["position_ids"],
    ).last_hidden_state
    at = torch.arange(len(hidden))[:, None]
    predictions = theirs.cls.predictions(hidden[at, columns["masked_positions"]])
    first = hidden[at, columns["cls_positions"].clamp(min=0)]
    related = theirs.cls.seq_relationship(torch.tanh(theirs.bert.pooler.dense(first)))
    entropy = torch.nn.functional.cross_entropy
    return entropy(predictions.flatten(0, 1), columns["masked_labels"].flatten()) + entropy(
        related.flatten(0, 1), columns["next_sentence_labels"].flatten()
    )


@pytest.mark.soak
def test_fp32_and_bf16_end_where_plain_training_ends(tmp_path: Path) -> None:
    columns = make_columns("pretrain", 64, seed=5)
    columns["masked_labels"][columns["masked_labels"] >= 0] %= 7  # something to learn
    write_rows(tmp_path / "rows", "pretrain", columns)
    rows = RowFolder(tmp_path / "rows", "pretrain", CONFIG)
    expected = plain(tmp_path / "model", rows)
    assert expected < 2.0  # log(60) + log(2) = 4.8 before
    assert ours(rows, "fp32") == pytest.approx(expected, rel=1e-3)
    assert ours(rows, "bf16") == pytest.approx(expected, rel=1e-2)
