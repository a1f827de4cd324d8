"""The loss of a student next to plain torch, and a student's layers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from tiny_jobs import (
    LABELS,
    STEADY,
    TAUGHT,
    TINY,
    add_teacher,
    head_of,
    labels_of,
    make_columns,
    make_job,
    run_here,
    write_rows,
)
from torch import Tensor

from ipu_model import heads
from ipu_model.core.errors import CheckpointError, RowsError
from ipu_model.jobs.job import Job
from ipu_model.models.config import Distillation
from ipu_model.models.flat import flatten
from ipu_model.models.model_folder import read_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import Batch

SETTING = Distillation(temperature=3.0, alpha=0.7)
KIND = "sequence_classification"


def softened(ours: Tensor, theirs: Tensor) -> float:
    """T^2 KL(teacher || student) by its definition."""
    p, q = torch.softmax(theirs / SETTING.temperature, 0), torch.softmax(ours / SETTING.temperature, 0)
    return SETTING.temperature**2 * float((p * (p / q).log()).sum())


def plain_parts(kind: str, columns: Dict[str, np.ndarray], answers: Dict[int, Dict[str, np.ndarray]]) -> List[float]:
    """The teacher's part of every label, from the student's logits of each sequence."""
    parts: List[float] = []
    labels = labels_of(kind)
    for row, slot in np.argwhere(columns["feature_ids"] >= 0):
        own = {name: torch.tensor(x) for name, x in answers[int(columns["feature_ids"][row, slot])].items()}
        here = np.flatnonzero(columns["sequence_ids"][row] == slot + 1)
        if kind == "question_answering":
            theirs = {name: torch.tensor(columns[f"teacher_{name}"][row][here]) for name in own}
            parts.append(sum(softened(own[name], theirs[name]) for name in own) / 2)
        elif kind == "token_classification":
            taught = torch.tensor(columns["teacher_logits"][row].reshape(-1, labels)[here])
            real = columns["token_labels"][row][here] != -100
            parts += [softened(*both) for both in zip(own["logits"].view(-1, labels)[real], taught[real])]
        else:
            taught = torch.tensor(columns["teacher_logits"][row, slot * labels : (slot + 1) * labels])
            if kind == "sequence_regression":
                parts.append(float((own["logits"] - taught) ** 2))
            elif kind == KIND:
                parts.append(softened(own["logits"], taught))
            else:  # each label has two outcomes, whose logits are its own and 0
                pairs = (torch.stack([x, torch.zeros_like(x)], 1) for x in (own["logits"], taught))
                parts += [softened(*pair) for pair in zip(*pairs)]
    return parts


@pytest.mark.parametrize("kind", TAUGHT)
def test_the_loss_is_alpha_times_kl_at_the_temperature_and_the_rest_of_the_labels(kind: str) -> None:
    head, model = heads.get_head(head_of(kind)), build_model(head_of(kind), STEADY, labels_of(kind)).eval()
    initialise(model, STEADY, seed=3)
    batch = Batch(np.arange(6), add_teacher(kind, make_columns(kind, 6, seed=5)))
    flat, counts = flatten(batch, head.flat_labels), head.label_counts(batch)
    with torch.no_grad():
        own, parts = head.loss(model, flat, counts)
        mixed, same = head.loss(model, flat, counts, SETTING)
        logits = head.predict(model, flat.tokens, flat.starts, flat.real_tokens).numpy()
    answers = {one.feature_id: one.columns for one in head.name_logits(logits, flat.lengths, flat.feature_ids)}
    taught = float(np.mean(plain_parts(kind, batch.columns, answers)))
    assert taught > 0.01
    assert float(mixed) == pytest.approx(0.7 * taught + 0.3 * float(own), rel=1e-4)
    assert tuple(same) == (*parts, "teacher_loss")
    assert float(same.pop("teacher_loss")) == pytest.approx(taught, rel=1e-4)
    assert {name: float(x) for name, x in same.items()} == {name: float(x) for name, x in parts.items()}


def test_class_weights_also_weigh_the_teacher() -> None:
    head, model = heads.get_head(KIND), build_model(KIND, STEADY, 3).eval()
    initialise(model, STEADY, seed=3)
    columns, weights = add_teacher(KIND, make_columns(KIND, 6, seed=5)), np.array([0.4, 3.0, 1.5])
    batch = Batch(np.arange(6), columns, weights)
    flat = flatten(batch, head.flat_labels)
    only_teacher = Distillation(temperature=3.0, alpha=1.0)
    with torch.no_grad():
        found, _ = head.loss(model, flat, head.label_counts(batch), only_teacher)
        logits = head.predict(model, flat.tokens, flat.starts, flat.real_tokens).numpy()
    answers = {one.feature_id: one.columns for one in head.name_logits(logits, flat.lengths, flat.feature_ids)}
    each = weights[columns["class_labels"][columns["feature_ids"] >= 0]]
    assert float(found) == pytest.approx(np.average(plain_parts(KIND, columns, answers), weights=each), rel=1e-4)


def taught_job(folder: Path, base: Path, **changes: Any) -> Job:
    settings: Dict[str, Any] = {"distillation": SETTING, "init_checkpoint": str(base), "labels": list(LABELS)}
    return make_job(folder, "finetune", folder / "rows", head=KIND, **{**settings, **changes})


def test_a_student_starts_from_layers_copied_evenly_and_learns_from_its_teacher(tmp_path: Path) -> None:
    deep, rows = dataclasses.replace(TINY, num_layers=6), add_teacher(KIND, make_columns(KIND, 20))
    write_rows(tmp_path / "rows", KIND, rows)
    base = tmp_path / "model"
    run_here(make_job(tmp_path, "finetune", tmp_path / "rows", head=KIND, labels=list(LABELS), model=deep))
    teacher, thin = read_model(base), read_model(base).for_layers(3)
    assert [thin.config.num_layers, read_model(base).for_layers(4).config.num_layers] == [3, 4]
    for count, kept in ((3, [1, 3, 5]), (4, [0, 2, 3, 5]), (6, [0, 1, 2, 3, 4, 5])):
        state = read_model(base).for_layers(count).state
        key = "bert.encoder.layer.{}.output.dense.weight"
        assert all(torch.equal(state[key.format(to)], teacher.state[key.format(at)]) for to, at in enumerate(kept))
        assert sum("output.dense.weight" in name for name in state) == 2 * count
    with pytest.raises(CheckpointError, match="has 6 layers, of which 7 cannot be copied: lower `layers`"):
        teacher.for_layers(7)
    runs = {}
    for name, setting in (("taught", SETTING), ("alone", None)):
        job = dataclasses.replace(
            taught_job(tmp_path, base, layers=3, distillation=setting, model=dataclasses.replace(deep, num_layers=3)),
            run_folder=str(tmp_path / f"run-{name}"),
            output=str(tmp_path / name),
        )
        runs[name] = run_here(job).of("step")
        assert read_model(tmp_path / name).config.num_layers == 3
    first = {name: steps[0] for name, steps in runs.items()}
    step = first["taught"]
    assert step["loss"] == pytest.approx(0.7 * step["teacher_loss"] + 0.3 * step["label_loss"], rel=1e-6)
    header = (tmp_path / "run-taught/history.csv").read_text().partition("\n")[0]
    assert header == "step,loss,label_loss,teacher_loss,learning_rate"
    assert first["alone"]["loss"] == first["alone"]["label_loss"]


def test_rows_without_a_teachers_logits_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", KIND, make_columns(KIND, 20))
    job = make_job(tmp_path, "finetune", tmp_path / "rows", head=KIND, labels=list(LABELS), distillation=SETTING)
    with pytest.raises(RowsError, match="has no logits of a teacher, required by job.distillation"):
        run_here(job)


def test_a_job_without_a_teacher_is_written_as_before(tmp_path: Path) -> None:
    fields = make_job(tmp_path, "finetune", tmp_path / "rows").fields
    assert not {"layers", "distillation"} & set(fields)
    assert Job.from_json(make_job(tmp_path, "finetune", tmp_path / "rows").to_json()).distillation is None
