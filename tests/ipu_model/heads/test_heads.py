"""What every head states of itself, what becomes of the classes of another head, and jobs with labels."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from tiny_jobs import LABELS, TINY, head_of, make_columns, make_job, run_here, write_rows
from tiny_torch import make_model

from ipu_model import heads
from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.jobs.job import ScheduleConfig
from ipu_model.models.config import read_head_spec
from ipu_model.models.model_folder import read_model
from ipu_model.rows.format import get_columns
from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

CLASSES, TOKENS, VALUES = "sequence_classification", "token_classification", "sequence_regression"


def job_of(folder, kind, rows, **changes):
    return make_job(folder, kind, rows, **{"head": CLASSES, "labels": list(LABELS), **changes})


def test_a_head_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    for get in (heads.get_head, heads.get_head_spec):
        with pytest.raises(ConfigError, match="'tagging' .*masked_lm, pretraining"):
            get("tagging")
    (tmp_path / "empty.py").write_text("class Head:\n    title = 'a title alone'\n")
    with pytest.raises(LookupError, match="title and stage"):
        read_head_spec(tmp_path / "empty.py")


@pytest.mark.parametrize("name", heads.list_heads())
def test_what_a_head_states_fits_together(name):
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


@pytest.mark.parametrize("kind", [CLASSES, "sequence_multilabel", TOKENS])
def test_a_class_is_right_when_its_logit_is_the_largest_and_flags_when_all_are_on_their_side_of_zero(kind):
    head, batch = heads.get_head(head_of(kind)), Batch(np.arange(10), make_columns(kind, 10, seed=5))
    runtime = TorchRuntime(make_model(head.name), head.name, 10, "fp32", None, 7)
    columns, right, total = batch.columns, 0, 0
    for answer in runtime.predict(batch):
        row, slot = np.argwhere(columns["feature_ids"] == answer.feature_id)[0]
        logits, wrong, count = answer.columns["logits"], answer.feature_id % 3 == 0, 1
        if kind == CLASSES:
            columns["class_labels"][row, slot] = (int(logits.argmax()) + wrong) % 3
        elif kind == TOKENS:
            here = columns["sequence_ids"][row] == slot + 1
            labels = (logits.reshape(-1, 3).argmax(1) + wrong) % 3
            columns["token_labels"][row, here] = np.where(columns["token_labels"][row, here] == -100, -100, labels)
            count = int((columns["token_labels"][row, here] != -100).sum())
        else:
            columns["label_flags"][row, 3 * slot : 3 * slot + 3] = logits > 0
            columns["label_flags"][row, 3 * slot] ^= int(wrong)
        right, total = right + count * (not wrong), total + count
    accuracy = head.figures(runtime.evaluate([batch.part(0, 4), batch.part(4, 10)]))[head.best]
    assert accuracy == pytest.approx(right / total)
    assert 0 < right < total


@pytest.mark.parametrize(("kind", "named"), [(CLASSES, True), (TOKENS, False)])
def test_the_classes_of_a_model_are_taken_by_their_names_or_numbers(tmp_path, kind, named):
    names = list(LABELS) if named else [f"LABEL_{number}" for number in range(len(LABELS))]
    labels = names if named else [str(number) for number in range(len(LABELS))]
    write_rows(tmp_path / "rows", kind, make_columns(kind, 20))
    run_here(job_of(tmp_path, "finetune", tmp_path / "rows", head=kind, labels=names, schedule=ScheduleConfig(steps=0)))
    model = read_model(tmp_path / "model")
    weight = model.state["classifier.weight"]
    same, turned = (model.for_labels(heads.get_head(kind), order) for order in (labels, labels[::-1]))
    assert (list(same.labels), same.note) == (labels, "")
    assert torch.equal(same.state["classifier.weight"], weight)
    assert list(turned.labels) == labels[::-1]
    assert torch.equal(turned.state["classifier.weight"], weight.flip(0))
    for others in (["x", "y", "z"], [*labels, "more"], labels[:-1]):
        new = model.for_labels(heads.get_head(kind), others)
        assert (list(new.labels), new.state.get("classifier.weight")) == ([], None)
        assert "the head is new" in new.note


def test_tokens_without_a_label_teach_nothing():
    columns = make_columns(TOKENS, 4, seed=6)
    columns["token_labels"][:] = -100
    runtime = TorchRuntime(make_model(TOKENS), TOKENS, 4, "fp32", optimizer_config(learning_rate=1e-3), 7)
    step = runtime.train_step(Batch(np.arange(4), columns), 1e-3)
    assert (step.loss, step.gradient_norm) == (0.0, 0.0)


def test_labels_and_heads_that_do_not_go_together_are_refused(tmp_path):
    write_rows(tmp_path / "rows", CLASSES, make_columns(CLASSES, 20))
    for changes, error, message in (
        ({"labels": None}, ConfigError, "job.labels"),
        ({"head": "question_answering"}, ConfigError, "job.labels="),
        ({"labels": ["no", "yes"]}, RowsError, "3 classes, but the model has 2"),
        ({"labels": ["value"]}, RowsError, "sequence_classification rows, but the job needs sequence_regression"),
        ({"head": "pretraining", "labels": None}, ConfigError, "question_answering or .*sequence_classification"),
    ):
        with pytest.raises(error, match=message):
            run_here(job_of(tmp_path, "finetune", tmp_path / "rows", **changes))


@pytest.mark.parametrize(
    ("head", "labels", "messages"),
    [
        (CLASSES, ["a", "b", "c"], ("no, yes, maybe", "a, b, c")),
        (TOKENS, list(LABELS), ("lacks classifier.weight, classifier.bias",)),
    ],
)
def test_a_model_of_other_classes_is_not_taken_for_one_of_these_but_gets_a_new_head(tmp_path, head, labels, messages):
    for kind in (CLASSES, TOKENS):
        write_rows(tmp_path / kind, kind, make_columns(kind, 20))
    run_here(job_of(tmp_path, "finetune", tmp_path / CLASSES, schedule=ScheduleConfig(steps=0)))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "yes", "2": "maybe"}
    assert config["problem_type"] == "single_label_classification"
    start = {"model": None, "init_checkpoint": str(tmp_path / "model"), "head": head, "labels": labels}
    events = run_here(job_of(tmp_path / "b", "finetune", tmp_path / head, **start)).of("message")
    assert any(all(text in event["text"] for text in messages) for event in events), events
    assert list(read_model(tmp_path / "b" / "model").labels) == labels


@pytest.mark.parametrize(
    ("kind", "column", "slot", "value"),
    [(CLASSES, "class_labels", 0, 3), (TOKENS, "token_labels", 1, 3), (VALUES, "targets", 0, -np.inf)],
)
def test_a_label_out_of_range_is_named_with_its_file_and_row(tmp_path, kind, column, slot, value):
    columns = make_columns(kind, 8)
    columns[column][5, slot] = value
    write_rows(tmp_path / "rows", kind, columns)
    labels = ["value"] if kind == VALUES else list(LABELS)
    with pytest.raises(RowsError, match=rf"rows-00000.arrow, row 5: {column}\[{slot}\]"):
        run_here(job_of(tmp_path, "finetune", tmp_path / "rows", labels=labels, head=head_of(kind)))
