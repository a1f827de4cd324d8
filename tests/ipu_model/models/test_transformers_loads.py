"""What we save, transformers loads: version 4 in the device environment, version 5 in the host's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_jobs import LABELS, TINY, make_columns, write_rows

from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import RowFolder
from ipu_model.runtimes.torch_device import TorchRuntime

transformers = pytest.importorskip("transformers", reason="the device job needs no transformers; this check does")


@pytest.mark.parametrize("head", ["pretraining", "question_answering", "sequence_classification"])
def test_every_weight_is_found_and_none_is_left_over(tmp_path: Path, head: str) -> None:
    labels = LABELS if head == "sequence_classification" else ()
    model = build_model(head, TINY, len(labels))
    initialise(model, TINY, seed=1)
    write_model(tmp_path, head, TINY, model.state_dict(), ModelOrigin("t" * 64, "pretrain", head, 0, 1), labels)
    names = {"pretraining": "PreTraining", "question_answering": "QuestionAnswering"}
    names["sequence_classification"] = "SequenceClassification"
    auto: Any = getattr(transformers, f"AutoModelFor{names[head]}")
    loaded, report = auto.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    theirs = loaded.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(theirs[name], value), name


def test_answer_logits_are_those_of_transformers(tmp_path: Path) -> None:
    model = build_model("question_answering", TINY)
    initialise(model, TINY, seed=1)
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder, "question_answering", TINY, model.state_dict(), ModelOrigin("t" * 64, "finetune", "x", 0, 1))
    loaded = transformers.AutoModelForQuestionAnswering.from_pretrained(str(folder)).eval()
    columns = make_columns("question_answering", 3)
    write_rows(tmp_path / "rows", "question_answering", columns)
    batch = RowFolder(tmp_path / "rows", "question_answering", TINY).take(np.arange(3))
    for answer in TorchRuntime(model, "question_answering", 3, "fp32", None, 0).predict(batch):
        row, slot = np.argwhere(columns["feature_ids"] == answer.feature_id)[0]
        here = columns["sequence_ids"][row] == slot + 1
        ids, types = (columns[c][row][here].astype(np.int64)[None] for c in ("input_ids", "token_type_ids"))
        with torch.no_grad():
            alone = loaded(input_ids=torch.from_numpy(ids), token_type_ids=torch.from_numpy(types))
        np.testing.assert_allclose(answer.columns["start_logits"], alone.start_logits[0].numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(answer.columns["end_logits"], alone.end_logits[0].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["sequence_classification", "sequence_multilabel", "sequence_regression"])
def test_class_logits_and_names_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    labels = ("similarity",) if kind == "sequence_regression" else LABELS
    head, model = "sequence_classification", build_model("sequence_classification", TINY, len(labels))
    initialise(model, TINY, seed=1)
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder, head, TINY, model.state_dict(), ModelOrigin("t" * 64, "finetune", head, 0, 1), labels, kind)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    problems = {"sequence_multilabel": "multi_label_classification", "sequence_regression": "regression"}
    assert loaded.config.problem_type == problems.get(kind, "single_label_classification")
    assert loaded.config.id2label == dict(enumerate(labels))
    assert loaded.config.label2id == {name: number for number, name in enumerate(labels)}
    columns = make_columns(kind, 3)
    write_rows(tmp_path / "rows", kind, columns)
    batch = RowFolder(tmp_path / "rows", kind, TINY, len(labels)).take(np.arange(3))
    for found in TorchRuntime(model, head, 3, "fp32", None, 0).predict(batch):
        row, slot = np.argwhere(columns["feature_ids"] == found.feature_id)[0]
        here = columns["sequence_ids"][row] == slot + 1
        ids, types = (columns[c][row][here].astype(np.int64)[None] for c in ("input_ids", "token_type_ids"))
        with torch.no_grad():
            alone = loaded(input_ids=torch.from_numpy(ids), token_type_ids=torch.from_numpy(types)).logits[0]
        np.testing.assert_allclose(found.columns["logits"], alone.numpy(), rtol=1e-5, atol=1e-6)
