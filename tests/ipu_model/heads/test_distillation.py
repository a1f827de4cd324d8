"""The loss of a student next to plain torch, and a student's layers."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_jobs import TAUGHT, TINY, add_teacher, head_of, labels_of, make_columns, make_job, run_here, write_rows
from tiny_torch import make_model

from ipu_model import heads
from ipu_model.core.errors import CheckpointError, RowsError
from ipu_model.models.config import Distillation
from ipu_model.models.flat import flatten
from ipu_model.models.model_folder import read_model
from ipu_model.rows.row_folder import Batch

SETTING = Distillation(temperature=3.0, alpha=0.7)
KIND = "sequence_classification"


def softened(ours, theirs):
    """T^2 KL(teacher || student) by its definition."""
    p, q = torch.softmax(theirs / SETTING.temperature, 0), torch.softmax(ours / SETTING.temperature, 0)
    return SETTING.temperature**2 * float((p * (p / q).log()).sum())


def plain_parts(kind, columns, answers):
    """The teacher's part of every label, from the student's logits of each sequence."""
    parts = []
    labels = labels_of(kind)
    for row, slot in np.argwhere(columns["feature_ids"] >= 0):
        ours = {name: torch.tensor(x) for name, x in answers[int(columns["feature_ids"][row, slot])].items()}
        here = np.flatnonzero(columns["sequence_ids"][row] == slot + 1)
        if kind == "question_answering":
            theirs = {name: torch.tensor(columns[f"teacher_{name}"][row][here]) for name in ours}
            parts.append(sum(softened(ours[name], theirs[name]) for name in ours) / 2)
        elif kind == "token_classification":
            taught = torch.tensor(columns["teacher_logits"][row].reshape(-1, labels)[here])
            real = columns["token_labels"][row][here] != -100
            parts += [softened(*both) for both in zip(ours["logits"].view(-1, labels)[real], taught[real])]
        else:
            taught = torch.tensor(columns["teacher_logits"][row, slot * labels : (slot + 1) * labels])
            if kind == "sequence_regression":
                parts.append(float((ours["logits"] - taught) ** 2))
            elif kind == KIND:
                parts.append(softened(ours["logits"], taught))
            else:  # each label has two outcomes, whose logits are its own and 0
                pairs = (torch.stack([x, torch.zeros_like(x)], 1) for x in (ours["logits"], taught))
                parts += [softened(*pair) for pair in zip(*pairs)]
    return parts


@pytest.mark.parametrize(("kind", "class_weights"), [*((kind, None) for kind in TAUGHT), (KIND, [0.4, 3.0, 1.5])])
def test_the_loss_is_alpha_times_kl_at_the_temperature_and_the_rest_of_the_labels(kind, class_weights):
    head, model = heads.get_head(head_of(kind)), make_model(kind).eval()
    columns = add_teacher(kind, make_columns(kind, 6, seed=5))
    batch = Batch(np.arange(6), columns, class_weights and np.array(class_weights))
    flat, counts = flatten(batch, head.flat_labels), head.label_counts(batch)
    with torch.no_grad():
        labelled, parts = head.loss(model, flat, counts)
        mixed, same = head.loss(model, flat, counts, SETTING)
        logits = head.predict(model, flat.tokens, flat.starts, flat.real_tokens).numpy()
    answers = {x.feature_id: x.columns for x in head.name_logits(logits, flat.lengths, flat.feature_ids)}
    each = None
    if class_weights is not None:
        each = np.array(class_weights)[columns["class_labels"][columns["feature_ids"] >= 0]]
    taught = float(np.average(plain_parts(kind, columns, answers), weights=each))
    assert taught > 0.01
    assert float(mixed) == pytest.approx(0.7 * taught + 0.3 * float(labelled), rel=1e-4)
    assert tuple(same) == (*parts, "teacher_loss")
    assert float(same.pop("teacher_loss")) == pytest.approx(taught, rel=1e-4)
    assert {name: float(x) for name, x in same.items()} == {name: float(x) for name, x in parts.items()}


def test_a_student_starts_from_layers_copied_evenly_and_learns_from_its_teacher(tmp_path):
    deep = dataclasses.replace(TINY, num_layers=6)
    write_rows(tmp_path / "rows", KIND, add_teacher(KIND, make_columns(KIND, 20)))
    write_rows(tmp_path / "plain", KIND, make_columns(KIND, 20))
    labelled = {"head": KIND, "labels": ["a", "b", "c"]}
    run_here(make_job(tmp_path, "finetune", tmp_path / "rows", model=deep, **labelled))
    teacher, key = read_model(tmp_path / "model"), "bert.encoder.layer.{}.output.dense.weight"
    for count, kept in ((3, [1, 3, 5]), (4, [0, 2, 3, 5]), (6, [0, 1, 2, 3, 4, 5])):
        thin = teacher.for_layers(count)
        assert thin.config.num_layers == count
        assert all(torch.equal(thin.state[key.format(to)], teacher.state[key.format(at)]) for to, at in enumerate(kept))
        assert sum("output.dense.weight" in name for name in thin.state) == 2 * count
    with pytest.raises(CheckpointError, match="has 6 layers, of which 7"):
        teacher.for_layers(7)
    student = {**labelled, "init_checkpoint": str(tmp_path / "model"), "layers": 3}
    student["model"] = dataclasses.replace(deep, num_layers=3)
    first = {}
    for name, setting in (("taught", SETTING), ("alone", None)):
        job = make_job(tmp_path / name, "finetune", tmp_path / "rows", distillation=setting, **student)
        first[name] = run_here(job).of("step")[0]
        assert read_model(Path(job.output)).config.num_layers == 3
    step = first["taught"]
    assert step["loss"] == pytest.approx(0.7 * step["teacher_loss"] + 0.3 * step["label_loss"], rel=1e-6)
    header = (tmp_path / "taught" / "run" / "history.csv").read_text().partition("\n")[0]
    assert header == "step,loss,label_loss,teacher_loss,learning_rate"
    assert first["alone"]["loss"] == first["alone"]["label_loss"]
    with pytest.raises(RowsError, match="no logits of a teacher"):
        run_here(make_job(tmp_path / "c", "finetune", tmp_path / "plain", distillation=SETTING, **student))
