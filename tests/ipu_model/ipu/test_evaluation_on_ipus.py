"""Held-out rows on the IPUs, by turns with training: what is judged, what is kept and where the program travels."""

import dataclasses
from contextlib import closing, nullcontext

import numpy as np
import pytest
import torch
from tiny_ipu import (
    ADAMW,
    DROPPING,
    FOUR_LAYERS,
    ipu_job,
    ipu_runtime,
    make_batches,
    on_cpu,
    plan_of,
    rows_of,
    tiny_model,
    unsupported_operations,
)
from tiny_jobs import TAUGHT, head_of, labels_of, result_of, run_here, table_of

from ipu_model.core.errors import ConfigError
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, ScheduleConfig
from ipu_model.runtimes.torch_device import TorchRuntime

KINDS = ["pretrain", *TAUGHT]
WIDE = {"geometry": BatchGeometry(36, 2), "optimizer": ADAMW}
"""An update of 9 micro-batches of two rows on each of two replicas."""


def label_names(kind):
    return [f"label {number}" for number in range(labels_of(kind))] or None


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("kind", "packed", "precision"),
    [
        *((kind, True, "fp32") for kind in KINDS),
        *((kind, *how) for kind in ("pretrain", "question_answering") for how in ((False, "fp32"), (True, "fp16"))),
    ],
)
def test_sums_are_those_of_the_cpu_after_training_whatever_is_dropped_there(kind, packed, precision, tmp_path):
    """21 rows in calls of 2 replicas x 4 micro-batches x 2 rows: the last call has empty rows."""
    config = {"inference_device_iterations": 4, "inference_replication_factor": 4}
    changes = {**WIDE, "model": DROPPING, "labels": label_names(kind), "precision": precision}
    job = ipu_job(tmp_path, kind, replicas=2, ipu_config=config, **changes)
    batch, other = make_batches(kind, 2, 36, packed)
    held_out = other.part(0, 21)
    with closing(ipu_runtime(job, config=DROPPING, model=tiny_model(kind, DROPPING))) as ipu:
        if precision == "fp32":
            ipu.compile(batch, held_out)
            ipu.train_step(batch, 1e-3)
        sums = ipu.evaluate([held_out])
        cpu = TorchRuntime(tiny_model(kind), head_of(kind), 36, "fp32", None, seed=7)
        cpu.load_state_dict(ipu.state_dict())
    expected = cpu.evaluate([held_out])
    if precision == "fp32":
        assert sums == pytest.approx(expected, rel=1e-5)
        return
    assert sums != expected  # it did compute in fp16
    for name, value in expected.items():
        if not name.endswith("right"):
            assert sums[name] == pytest.approx(value, rel=1e-2 if name.endswith("_loss") else 0)


@pytest.mark.ipu
def test_other_weights_are_evaluated_before_the_first_update_which_they_do_not_change(tmp_path):
    """As the original of a later phase is."""
    batch, held_out = make_batches("pretrain", 2, 36)
    cpu = TorchRuntime(tiny_model("pretrain"), "pretraining", 36, "fp32", None, seed=7)
    losses = []
    for compares in (False, True):
        with closing(ipu_runtime(ipu_job(tmp_path, "pretrain", replicas=2, **WIDE))) as ipu:
            ipu.compile(batch, held_out)
            if compares:
                start = ipu.state_dict()
                other = {name: x + 0.05 * torch.sin(torch.arange(x.numel()).view(x.shape)) for name, x in start.items()}
                ipu.load_state_dict(other)
                cpu.load_state_dict(other)
                assert ipu.evaluate([held_out]) == pytest.approx(cpu.evaluate([held_out]), rel=1e-5)
                ipu.load_state_dict(start)
            losses.append([ipu.train_step(batch, 1e-3).loss for _ in range(2)])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_of_an_evaluation_is_one_that_poptorch_supports(kind, record, tmp_path):
    job = ipu_job(tmp_path, kind, labels=label_names(kind))
    with closing(ipu_runtime(job, model=tiny_model(kind))) as runtime:
        runtime.evaluate([make_batches(kind, 1, 1)[0]])
    program = record()[-1]
    assert unsupported_operations(program) == set()
    assert program["pipeline_stages"] == program["device_iterations"] == (5 if kind == "pretrain" else 4)


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("kind", "keep"), [("pretrain", {}), ("finetune", {"keep": "best", "patience": 3})], ids=["all", "best"]
)
def test_a_job_judges_and_keeps_what_one_on_the_cpu_does(kind, keep, tmp_path):
    of_rows = "pretrain" if kind == "pretrain" else "question_answering"
    rows, held_out = (rows_of(tmp_path / name, of_rows, n, seed=n) for name, n in (("rows", 70), ("held-out", 21)))
    job = ipu_job(
        tmp_path / "ipu",
        kind,
        rows,
        9,
        2,
        evaluation=EvaluationConfig(str(held_out), every_updates=1, max_rows=18, **keep),
        optimizer=dataclasses.replace(ADAMW, learning_rate=3e-2),
        schedule=ScheduleConfig(steps=8),
        ipu_config={"inference_device_iterations": 4},
    )
    both = [job, on_cpu(job, tmp_path / "cpu")]
    for each in both:
        run_here(each)
    ours, theirs = (table_of(each, "evaluations.csv") for each in both)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    ipu, cpu = (result_of(each) for each in both)
    names = ("best_step", "rows", "evaluations")
    assert [ipu.evaluation[name] for name in names] == [cpu.evaluation[name] for name in names]
    assert (ipu.evaluation["rows"], ipu.steps) == (18, cpu.steps)


@pytest.mark.parametrize(
    ("inference", "count", "every", "refused"),
    [([2, 2], 2, 1, True), ([2, 2], 2, None, False), ([2, 2], 1, 1, False), ([0, 2, 1, 1], 2, 1, False)],
)
def test_instances_evaluate_on_as_many_ipus_in_a_replica_as_training_has(inference, count, every, refused, tmp_path):
    """PopDist has one number of IPUs in a replica for all programs of a process; layers may lie otherwise on them."""
    evaluation = None if every is None else EvaluationConfig("held-out", every)
    config = {"inference_layers_per_ipu": inference}
    job = ipu_job(tmp_path, "question_answering", replicas=4, evaluation=evaluation, ipu_config=config)
    with pytest.raises(ConfigError, match="inference_layers") if refused else nullcontext():
        assert plan_of(job, FOUR_LAYERS, count).inference_placement.ipus_per_replica == len(inference)
