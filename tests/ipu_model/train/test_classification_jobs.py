"""Jobs with a sequence_classification head: trained, saved, read back, predicted; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tiny_jobs import LABELS, STEADY, head_of, make_columns, make_job, run_here, write_rows

from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.jobs.job import Job, ScheduleConfig
from ipu_model.models.model_folder import read_model
from tests.optimizers import optimizer_config

HEAD = "sequence_classification"


def job_of(folder: Path, kind: str, rows: Path, **changes: Any) -> Job:
    values = {"head": HEAD, "labels": list(LABELS), "checkpoint_every_updates": 0, **changes}
    return make_job(folder, kind, rows, **values)


def learnable(kind: str, rows: int) -> Any:
    """The token after [CLS], one that stands nowhere else, says the class, or twice the value."""
    columns = make_columns(kind, rows)
    ids = columns["input_ids"]
    ids[(ids >= 10) & (ids < 13)] = 20
    for row, slot in np.argwhere(columns["cls_positions"] >= 0):
        at = columns["cls_positions"][row, slot]
        number = (row + slot) % 3
        columns["input_ids"][row, at + 1] = 10 + number
        if kind == HEAD:
            columns["class_labels"][row, slot] = number
        else:
            columns["targets"][row, slot] = number / 2
    return columns


@pytest.mark.parametrize("kind", [HEAD, "sequence_regression"])
def test_a_trained_model_predicts_the_labels_it_was_taught(tmp_path: Path, kind: str) -> None:
    columns, labels = learnable(kind, 60), list(LABELS) if kind == HEAD else ["value"]
    write_rows(tmp_path / "rows", kind, columns)
    optimizer = optimizer_config(learning_rate=1e-2, weight_decay=0.0, max_grad_norm=1.0)
    changes = {"model": STEADY, "optimizer": optimizer, "schedule": ScheduleConfig(steps=120, warmup_fraction=0.1)}
    run_here(job_of(tmp_path, "finetune", tmp_path / "rows", labels=labels, **changes))
    assert list(read_model(tmp_path / "model").labels) == labels
    run_here(job_of(tmp_path / "p", "predict", tmp_path / "rows", labels=None, init_checkpoint=str(tmp_path / "model")))
    with pa.memory_map(str(tmp_path / "p" / "logits.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    logits = np.array(table["logits"].to_pylist())
    here = columns["feature_ids"] >= 0
    expected = np.empty(here.sum())
    expected[columns["feature_ids"][here]] = columns["class_labels" if kind == HEAD else "targets"][here]
    assert table["feature_id"].to_pylist() == list(range(len(expected)))
    if kind == HEAD:
        assert (logits.argmax(1) == expected).mean() > 0.95
    else:
        assert np.abs(logits[:, 0] - expected).max() < 0.3


def test_labels_and_heads_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", HEAD, make_columns(HEAD, 20))
    with pytest.raises(ConfigError, match="needs job.labels"):
        run_here(job_of(tmp_path, "finetune", tmp_path / "rows", labels=None))
    with pytest.raises(ConfigError, match="job.labels="):
        run_here(job_of(tmp_path, "finetune", tmp_path / "rows", head="question_answering"))
    with pytest.raises(RowsError, match="have 3 classes, but the model has 2"):
        run_here(job_of(tmp_path, "finetune", tmp_path / "rows", labels=["no", "yes"]))
    with pytest.raises(RowsError, match="has sequence_classification rows, but the job needs sequence_regression"):
        run_here(job_of(tmp_path, "finetune", tmp_path / "rows", labels=["value"]))
    with pytest.raises(ConfigError, match="question_answering or .*sequence_classification"):
        run_here(job_of(tmp_path, "finetune", tmp_path / "rows", head="pretraining", labels=None))


def test_a_model_of_other_classes_is_not_taken_for_one_of_these_but_gets_a_new_head(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", HEAD, make_columns(HEAD, 20))
    run_here(job_of(tmp_path, "finetune", tmp_path / "rows", schedule=ScheduleConfig(steps=0)))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "yes", "2": "maybe"}
    assert config["problem_type"] == "single_label_classification"
    changes = {"labels": ["a", "b", "c"], "model": None, "init_checkpoint": str(tmp_path / "model")}
    again = job_of(tmp_path / "b", "finetune", tmp_path / "rows", **changes)
    said = [x["text"] for x in run_here(again).of("message")]
    assert any("no, yes, maybe" in text and "a, b, c" in text and "the head is new" in text for text in said), said
    assert list(read_model(tmp_path / "b" / "model").labels) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("kind", "column", "slot", "value"),
    [
        (HEAD, "class_labels", 0, 3),
        ("token_classification", "token_labels", 1, 3),
        ("sequence_regression", "targets", 0, np.nan),
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
