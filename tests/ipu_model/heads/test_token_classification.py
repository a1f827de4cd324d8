"""Classes of tokens: what counts, what a packed row changes (nothing), jobs, and the same logits in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny_jobs import LABELS, STEADY, make_columns, make_job, run_here, write_rows

from ipu_model import heads
from ipu_model.jobs.job import EvaluationConfig, ScheduleConfig
from ipu_model.models.model_folder import read_model
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


def learnable(rows: int) -> Columns:
    """Three tokens that stand for the three classes; all others have none."""
    columns = make_columns(HEAD, rows)
    named = (columns["input_ids"] >= 10) & (columns["input_ids"] < 13)
    columns["token_labels"] = np.where(named, columns["input_ids"].astype(np.int16) - 10, -100).astype(np.int16)
    return columns


def test_a_trained_model_predicts_the_classes_it_was_taught(tmp_path: Path) -> None:
    columns = learnable(60)
    write_rows(tmp_path / "rows", HEAD, columns)
    job: Dict[str, Any] = {"head": HEAD, "checkpoint_every_updates": 0}
    changes: Dict[str, Any] = {"labels": list(LABELS), "model": STEADY, "schedule": ScheduleConfig(steps=60)}
    changes["optimizer"] = optimizer_config(learning_rate=1e-2, weight_decay=0.0)
    changes["evaluation"] = EvaluationConfig(str(tmp_path / "rows"), 30, keep="best")
    run_here(make_job(tmp_path, "finetune", tmp_path / "rows", **job, **changes))
    lines = (tmp_path / "run" / "evaluations.csv").read_text().splitlines()
    assert lines[0] == "step,loss,label_loss,token_accuracy"
    assert float(lines[-1].split(",")[-1]) > 0.95
    assert list(read_model(tmp_path / "model").labels) == list(LABELS)
    run_here(make_job(tmp_path / "p", "predict", tmp_path / "rows", **job, init_checkpoint=str(tmp_path / "model")))
    with pa.memory_map(str(tmp_path / "p" / "logits.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table["feature_id"].to_pylist() == list(range(len(table)))
    right = []
    for feature, flat in enumerate(table["logits"].to_pylist()):
        row, own = tokens_of(columns, feature)
        labels, logits = columns["token_labels"][row][own], np.array(flat).reshape(-1, len(LABELS))
        assert len(logits) == len(labels)
        right += (logits.argmax(1) == labels)[labels != -100].tolist()
    assert np.mean(right) > 0.95


def test_classes_of_sequences_are_not_taken_for_those_of_tokens(tmp_path: Path) -> None:
    sequences = "sequence_classification"
    for kind in (sequences, HEAD):
        write_rows(tmp_path / kind, kind, make_columns(kind, 20))
    run_here(make_job(tmp_path, "finetune", tmp_path / sequences, head=sequences, labels=list("abc")))
    changes = {"labels": list(LABELS), "model": None, "init_checkpoint": str(tmp_path / "model")}
    again = make_job(tmp_path / "b", "finetune", tmp_path / HEAD, head=HEAD, **changes)
    said = [event["text"] for event in run_here(again).of("message")]
    assert any("lacks classifier.weight, classifier.bias: initialised from seed 7" in text for text in said)
