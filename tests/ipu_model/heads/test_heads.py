"""What every head states of itself, and what becomes of the classes of another head."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from tiny_jobs import LABELS, TINY, head_of, make_columns, make_job, run_here, write_rows
from tiny_torch import make_model

from ipu_model import heads
from ipu_model.core.errors import ConfigError
from ipu_model.models.config import read_head_spec
from ipu_model.models.model_folder import read_model
from ipu_model.rows.format import get_columns
from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config


def test_a_head_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    for get in (heads.get_head, heads.get_head_spec):
        with pytest.raises(ConfigError, match="'tagging' .*masked_lm, pretraining"):
            get("tagging")
    (tmp_path / "empty.py").write_text("class Head:\n    title = 'a title alone'\n")
    with pytest.raises(LookupError, match="title and stage"):
        read_head_spec(tmp_path / "empty.py")


@pytest.mark.parametrize("name", heads.list_heads())
def test_what_a_head_states_fits_together(name: str) -> None:
    head, labels = heads.get_head(name), 3 if heads.get_head(name).labelled else 0
    assert head.name == name
    assert not head.weight or head.weight in head.build(TINY, labels).state_dict()
    for kind in head.row_kinds(labels):
        assert set(head.inputs) <= {column.name for column in get_columns(kind, TINY.vocab_size)}
    assert head.pretrains == (not head.logits)
    figures = set(head.figures(dict.fromkeys(head.sums, 1.0)))
    assert {*head.parts, "loss", *filter(None, [head.best])} <= figures
    outline = dataclasses.asdict(heads.get_head_spec(name))  # what planning reads without torch
    assert outline == {field: getattr(head, field) for field in outline}
    for field in ("suffix", "stage", "title"):
        assert [x for x in heads.list_heads() if getattr(heads.get_head(x), field) == getattr(head, field)] == [name]


KINDS = ("sequence_classification", "sequence_multilabel", "token_classification")


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_is_right_when_its_logit_is_the_largest_and_flags_when_all_are_on_their_side_of_zero(kind: str) -> None:
    head, batch = heads.get_head(head_of(kind)), Batch(np.arange(10), make_columns(kind, 10, seed=5))
    runtime = TorchRuntime(make_model(head.name), head.name, 10, "fp32", None, 7)
    columns, right, total = batch.columns, 0, 0
    for answer in runtime.predict(batch):
        row, slot = np.argwhere(columns["feature_ids"] == answer.feature_id)[0]
        logits, wrong, count = answer.columns["logits"], answer.feature_id % 3 == 0, 1
        if kind == "sequence_classification":
            columns["class_labels"][row, slot] = (int(logits.argmax()) + wrong) % 3
        elif kind == "sequence_multilabel":
            columns["label_flags"][row, 3 * slot : 3 * slot + 3] = logits > 0
            columns["label_flags"][row, 3 * slot] ^= int(wrong)
        else:
            own = columns["sequence_ids"][row] == slot + 1
            labels = (logits.reshape(-1, 3).argmax(1) + wrong) % 3
            columns["token_labels"][row, own] = np.where(columns["token_labels"][row, own] == -100, -100, labels)
            count = int((columns["token_labels"][row, own] != -100).sum())
        right, total = right + count * (not wrong), total + count
    accuracy = head.figures(runtime.evaluate([batch.part(0, 4), batch.part(4, 10)]))[head.best]
    assert accuracy == pytest.approx(right / total)
    assert 0 < right < total


def started(tmp_path: Path, kind: str, labels: List[str]) -> Dict[str, Any]:
    """The classifier that a model becomes for these classes, and what is reported."""
    folder = read_model(tmp_path / "model").for_labels(heads.get_head(kind), labels)
    return {"labels": list(folder.labels), "weight": folder.state.get("classifier.weight"), "note": folder.note}


@pytest.mark.parametrize(("kind", "named"), [("sequence_classification", True), ("token_classification", False)])
def test_the_classes_of_a_model_are_taken_by_their_names_or_numbers(tmp_path: Path, kind: str, named: bool) -> None:
    names = list(LABELS) if named else [f"LABEL_{number}" for number in range(len(LABELS))]
    labels = names if named else [str(number) for number in range(len(LABELS))]
    write_rows(tmp_path / "rows", kind, make_columns(kind, 20))
    run_here(make_job(tmp_path, "finetune", tmp_path / "rows", head=kind, labels=names))
    own = read_model(tmp_path / "model").state["classifier.weight"]
    same, turned = started(tmp_path, kind, labels), started(tmp_path, kind, labels[::-1])
    assert (same["labels"], same["note"]) == (labels, "")
    assert torch.equal(same["weight"], own)
    assert turned["labels"] == labels[::-1]
    assert torch.equal(turned["weight"], own.flip(0))
    for other in (["x", "y", "z"], [*labels, "more"], labels[:-1]):
        new = started(tmp_path, kind, other)
        assert (new["labels"], new["weight"]) == ([], None)
        assert "the head is new" in new["note"]


def test_tokens_without_a_label_teach_nothing() -> None:
    head, columns = "token_classification", make_columns("token_classification", 4, seed=6)
    columns["token_labels"][:] = -100
    runtime = TorchRuntime(make_model(head), head, 4, "fp32", optimizer_config(learning_rate=1e-3), 7)
    step = runtime.train_step(Batch(np.arange(4), columns), 1e-3)
    assert (step.loss, step.gradient_norm) == (0.0, 0.0)
