"""Jobs with a sequence_classification head: trained, saved, read back, predicted; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pyarrow as pa
import pytest
from tiny_jobs import LABELS, STEADY, head_of, make_columns, make_job, run_here, write_rows

from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.jobs.job import EvaluationConfig, Job, ScheduleConfig
from ipu_model.models.model_folder import read_model
from tests.optimizers import optimizer_config

HEAD, TOKENS = "sequence_classification", "token_classification"


def job_of(folder: Path, kind: str, rows: Path, **changes: Any) -> Job:
    values = {"head": HEAD, "labels": list(LABELS), "checkpoint_every_updates": 0, **changes}
    return make_job(folder, kind, rows, **values)


def learnable(kind: str, rows: int) -> Any:
    """A token that stands nowhere else says the class (its own, or of the sequence), or twice the value."""
    columns = make_columns(kind, rows)
    ids = columns["input_ids"]
    if kind == TOKENS:
        named = (ids >= 10) & (ids < 13)
        columns["token_labels"] = np.where(named, ids.astype(np.int16) - 10, -100).astype(np.int16)
        return columns
    ids[(ids >= 10) & (ids < 13)] = 20
    for row, slot in np.argwhere(columns["cls_positions"] >= 0):
        number = (row + slot) % 3
        ids[row, columns["cls_positions"][row, slot] + 1] = 10 + number
        if kind == HEAD:
            columns["class_labels"][row, slot] = number
        else:
            columns["targets"][row, slot] = number / 2
    return columns


@pytest.mark.parametrize("kind", [HEAD, "sequence_regression", TOKENS])
def test_a_trained_model_predicts_the_labels_it_was_taught(tmp_path: Path, kind: str) -> None:
    columns, labels = learnable(kind, 60), ["value"] if kind == "sequence_regression" else list(LABELS)
    write_rows(tmp_path / "rows", kind, columns)
    optimizer = optimizer_config(learning_rate=1e-2, weight_decay=0.0, max_grad_norm=1.0)
    changes = {"model": STEADY, "optimizer": optimizer, "schedule": ScheduleConfig(steps=120, warmup_fraction=0.1)}
    changes["evaluation"] = EvaluationConfig(str(tmp_path / "rows"), 60, keep="best")
    head = head_of(kind)
    run_here(job_of(tmp_path, "finetune", tmp_path / "rows", head=head, labels=labels, **changes))
    assert list(read_model(tmp_path / "model").labels) == labels
    header = (tmp_path / "run" / "evaluations.csv").read_text().split("\n")[0]
    accuracy = {HEAD: ",label_accuracy", TOKENS: ",token_accuracy"}.get(kind, "")
    assert header == f"step,loss,label_loss{accuracy}"
    model = str(tmp_path / "model")
    run_here(job_of(tmp_path / "p", "predict", tmp_path / "rows", head=head, labels=None, init_checkpoint=model))
    with pa.memory_map(str(tmp_path / "p" / "logits.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    here = np.argwhere(columns["feature_ids"] >= 0)
    assert table["feature_id"].to_pylist() == list(range(len(here)))
    right = []
    for feature, flat in enumerate(table["logits"].to_pylist()):
        row, slot = np.argwhere(columns["feature_ids"] == feature)[0]
        if kind == TOKENS:
            expected = columns["token_labels"][row][columns["sequence_ids"][row] == slot + 1]
            found = np.array(flat).reshape(-1, len(LABELS)).argmax(1)
            right += (found == expected)[expected != -100].tolist()
        elif kind == HEAD:
            right.append(np.argmax(flat) == columns["class_labels"][row, slot])
        else:
            right.append(abs(flat[0] - columns["targets"][row, slot]) < 0.3)
    assert np.mean(right) > 0.95


def test_labels_and_heads_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", HEAD, make_columns(HEAD, 20))
    for changes, error, message in (
        ({"labels": None}, ConfigError, "job.labels"),
        ({"head": "question_answering"}, ConfigError, "job.labels="),
        ({"labels": ["no", "yes"]}, RowsError, "3 classes, but the model has 2"),
        ({"labels": ["value"]}, RowsError, "sequence_classification rows, but the job needs sequence_regression"),
        ({"head": "pretraining", "labels": None}, ConfigError, "question_answering or .*sequence_classification"),
    ):
        with pytest.raises(error, match=message):
            run_here(job_of(tmp_path, "finetune", tmp_path / "rows", **changes))


def test_a_model_of_other_classes_is_not_taken_for_one_of_these_but_gets_a_new_head(tmp_path: Path) -> None:
    for kind in (HEAD, TOKENS):
        write_rows(tmp_path / kind, kind, make_columns(kind, 20))
    run_here(job_of(tmp_path, "finetune", tmp_path / HEAD, schedule=ScheduleConfig(steps=0)))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "yes", "2": "maybe"}
    assert config["problem_type"] == "single_label_classification"
    start: Dict[str, Any] = {"model": None, "init_checkpoint": str(tmp_path / "model")}
    other = job_of(tmp_path / "b", "finetune", tmp_path / HEAD, **start, labels=["a", "b", "c"])
    said = [x["text"] for x in run_here(other).of("message")]
    assert any("no, yes, maybe" in text and "a, b, c" in text for text in said), said
    assert list(read_model(tmp_path / "b" / "model").labels) == ["a", "b", "c"]
    said = [
        x["text"]
        for x in run_here(job_of(tmp_path / "c", "finetune", tmp_path / TOKENS, head=TOKENS, **start)).of("message")
    ]
    assert any("lacks classifier.weight, classifier.bias" in text for text in said), said


@pytest.mark.parametrize(
    ("kind", "column", "slot", "value"),
    [
        (HEAD, "class_labels", 0, 3),
        ("token_classification", "token_labels", 1, 3),
        ("sequence_regression", "targets", 0, -np.inf),
    ],
)
def test_a_label_out_of_range_is_named_with_its_file_and_row(
    tmp_path: Path, kind: str, column: str, slot: int, value: float
) -> None:
    columns = make_columns(kind, 8)
    columns[column][5, slot] = value
    write_rows(tmp_path / "rows", kind, columns)
    labels = ["value"] if kind == "sequence_regression" else list(LABELS)
    with pytest.raises(RowsError, match=rf"rows-00000.arrow, row 5: {column}\[{slot}\]"):
        run_here(job_of(tmp_path, "finetune", tmp_path / "rows", labels=labels, head=head_of(kind)))
