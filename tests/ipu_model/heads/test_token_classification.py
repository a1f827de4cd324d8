"""Classes of tokens: what counts, what a packed row changes (nothing), jobs, and the same logits in transformers."""

from __future__ import annotations

from typing import Dict, Tuple

import numpy as np
import pytest
import torch
from tiny_jobs import LABELS, STEADY, make_columns

from ipu_model import heads
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

HEAD = "token_classification"
Columns = Dict[str, np.ndarray]


def runtime_of(precision: str = "fp32") -> TorchRuntime:
    model = build_model(HEAD, STEADY, len(LABELS))
    initialise(model, STEADY, seed=3)
    return TorchRuntime(model, HEAD, 4, precision, optimizer_config(learning_rate=1e-3), 7)


def by_feature(runtime: TorchRuntime, columns: Columns) -> Dict[int, np.ndarray]:
    """Logits [tokens, C] of every sequence."""
    batch = Batch(np.arange(len(columns["input_ids"])), columns)
    return {x.feature_id: x.columns["logits"].reshape(-1, len(LABELS)) for x in runtime.predict(batch)}


def tokens_of(columns: Columns, feature: int) -> Tuple[int, np.ndarray]:
    """Row of a sequence, and which of its tokens are the sequence's own."""
    row, slot = np.argwhere(columns["feature_ids"] == feature)[0]
    return int(row), columns["sequence_ids"][row] == slot + 1


def test_the_loss_is_the_mean_over_the_labelled_tokens_of_an_update() -> None:
    columns, runtime = make_columns(HEAD, 12, seed=2), runtime_of()
    total, right, count = 0.0, 0, 0
    for feature, logits in by_feature(runtime, columns).items():
        row, own = tokens_of(columns, feature)
        labels = columns["token_labels"][row][own]
        for scores, label in zip(torch.from_numpy(logits).double(), labels):
            if label != -100:
                total -= float(scores.log_softmax(0)[label])
                right, count = right + int(scores.argmax() == label), count + 1
    assert 0 < count < columns["sequence_ids"].astype(bool).sum()
    batch = Batch(np.arange(12), columns)
    found = heads.get_head(HEAD).figures(runtime.evaluate([batch.part(0, 5), batch.part(5, 12)]))
    assert found["loss"] == pytest.approx(total / count, rel=1e-5)
    assert found["token_accuracy"] == pytest.approx(right / count)
    assert runtime.train_step(batch, 1e-3).loss == pytest.approx(total / count, rel=1e-5), "micro-batches of 4 rows"


def test_tokens_without_a_label_teach_nothing() -> None:
    columns = make_columns(HEAD, 4, seed=6)
    columns["token_labels"][:] = -100
    runtime = runtime_of()
    step = runtime.train_step(Batch(np.arange(4), columns), 1e-3)
    assert (step.loss, step.gradient_norm) == (0.0, 0.0)
