"""Held-out rows on the IPUs, by turns with training: what is judged, what is kept and where the program travels."""

from __future__ import annotations

import dataclasses
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import pytest
import torch
from ipu_jobs import ipu_job as whole_job
from ipu_jobs import on_cpu, rows_of
from tiny_ipu import FOUR_LAYERS, SUPPORTED, ipu_job, ipu_runtime, make_batches, make_model, operations
from tiny_jobs import TAUGHT, head_of, result_of, run_here, table_of

from ipu_model.core.errors import ConfigError
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.ipu.planning import plan_ipu
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, Job, ScheduleConfig
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

ADAMW = optimizer_config(name="adamw", learning_rate=1e-3, loss_scaling=128.0)
HEADS = ["pretraining", "question_answering", *(kind for kind in TAUGHT if kind != "question_answering")]
DROPPING = dataclasses.replace(FOUR_LAYERS, hidden_dropout=0.1, attention_dropout=0.1)
ROWS = 36
"""Of an update: 9 micro-batches of two rows on each of two replicas."""


def labels_of(head: str) -> Any:
    return {"sequence_regression": ["value"]}.get(head, ["a", "b", "c"] if head not in HEADS[:2] else None)


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("head", "packed", "precision"),
    [
        *((head, packed, "fp32") for packed in (True, False) for head in (HEADS if packed else HEADS[:2])),
        *((head, True, "fp16") for head in HEADS[:2]),
    ],
)
def test_sums_are_those_of_the_cpu_after_training_whatever_is_dropped_there(
    head: str, packed: bool, precision: str, tmp_path: Path
) -> None:
    """21 rows in calls of 2 replicas x 4 micro-batches x 2 rows: the last call has empty rows."""
    config = {"inference_device_iterations": 4, "inference_replication_factor": 4}
    changes: Dict[str, Any] = {"geometry": BatchGeometry(ROWS, 2), "model": DROPPING, "labels": labels_of(head)}
    job = ipu_job(head, ADAMW, tmp_path, 2, 1, ipu_config=config, precision=precision, **changes)
    batch, other = make_batches(head, 2, ROWS, packed)
    held_out = other.part(0, 21)
    with closing(ipu_runtime(job, config=DROPPING, model=make_model(head, DROPPING))) as ipu:
        if precision == "fp32":
            ipu.compile(batch, held_out)
            ipu.train_step(batch, 1e-3)
        found = ipu.evaluate([held_out])
        cpu = TorchRuntime(make_model(head), head_of(head), ROWS, "fp32", None, seed=7)
        cpu.load_state_dict(ipu.state_dict())
    expected = cpu.evaluate([held_out])
    if precision == "fp32":
        assert found == pytest.approx(expected, rel=1e-5)
        return
    assert found != expected  # it did compute in fp16
    for name, value in expected.items():
        if not name.endswith("right"):
            assert found[name] == pytest.approx(value, rel=1e-2 if name.endswith("_loss") else 0)


@pytest.mark.ipu
def test_other_weights_are_evaluated_before_the_first_update_which_they_do_not_change(tmp_path: Path) -> None:
    """As the original of a later phase is."""
    job = ipu_job("pretraining", ADAMW, tmp_path, 2, 1, geometry=BatchGeometry(ROWS, 2))
    batch, held_out = make_batches("pretraining", 2, ROWS)
    cpu = TorchRuntime(make_model("pretraining"), "pretraining", ROWS, "fp32", None, seed=7)
    found = []
    for compares in (False, True):
        ipu = ipu_runtime(job)
        ipu.compile(batch, held_out)
        if compares:
            start = ipu.state_dict()
            other = {name: x + 0.05 * torch.sin(torch.arange(x.numel()).reshape(x.shape)) for name, x in start.items()}
            ipu.load_state_dict(other)
            cpu.load_state_dict(other)
            assert ipu.evaluate([held_out]) == pytest.approx(cpu.evaluate([held_out]), rel=1e-5)
            ipu.load_state_dict(start)
        found.append((ipu.train_step(batch, 1e-3).loss, ipu.train_step(batch, 1e-3).loss))
        ipu.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("head", HEADS)
def test_every_operation_of_an_evaluation_is_one_that_poptorch_supports(head: str, record: Any, tmp_path: Path) -> None:
    job = ipu_job(head, ADAMW, tmp_path, 1, 1, labels=labels_of(head))
    runtime = ipu_runtime(job, model=make_model(head))
    runtime.evaluate([make_batches(head, 1, 1)[0]])
    runtime.close()
    found = record()[-1]
    in_the_guide = {"argmax", "binary_cross_entropy_with_logits", "gt", "ne"}
    assert operations(found) - SUPPORTED - in_the_guide == set()
    assert found["pipeline_stages"] == found["device_iterations"] == (4 if head != "pretraining" else 5)


def jobs(folder: Path, kind: str, **evaluation: Any) -> List[Job]:
    """The same training with evaluations on IPUs and on the CPU."""
    rows, held_out = (rows_of(folder / name, kind, n, seed=n) for name, n in (("rows", 70), ("held-out", 21)))
    judged = EvaluationConfig(str(held_out), **evaluation)
    optimizer = dataclasses.replace(ADAMW, learning_rate=3e-2)
    changes: Dict[str, Any] = {"evaluation": judged, "optimizer": optimizer, "schedule": ScheduleConfig(steps=8)}
    changes["ipu_config"] = {"inference_device_iterations": 4}
    job = whole_job(folder / "ipu", "pretrain" if kind == "pretrain" else "finetune", rows, 9, 2, **changes)
    return [job, on_cpu(job, folder / "cpu")]


@pytest.mark.ipu
@pytest.mark.parametrize("kind", ["pretrain", "question_answering"])
def test_a_job_judges_and_keeps_what_one_on_the_cpu_does(kind: str, tmp_path: Path) -> None:
    keep = {} if kind == "pretrain" else {"keep": "best", "patience": 3}
    both = jobs(tmp_path, kind, every_updates=1, max_rows=18, **keep)
    results = []
    for job in both:
        run_here(job)
        results.append(result_of(job))
    np.testing.assert_allclose(
        table_of(both[0], "evaluations.csv"), table_of(both[1], "evaluations.csv"), rtol=0, atol=1e-4
    )
    ipu, cpu = (result.evaluation for result in results)
    assert (ipu["best_step"], ipu["rows"], ipu["evaluations"]) == (cpu["best_step"], 18, cpu["evaluations"])
    assert results[0].steps == results[1].steps


@pytest.mark.parametrize(
    ("inference", "count", "every", "refused"),
    [([2, 2], 2, 1, True), ([2, 2], 2, None, False), ([2, 2], 1, 1, False), ([0, 2, 1, 1], 2, 1, False)],
)
def test_instances_evaluate_on_as_many_ipus_in_a_replica_as_training_has(
    inference: List[int], count: int, every: Optional[int], refused: bool, tmp_path: Path
) -> None:
    """PopDist has one number of IPUs in a replica for all programs of a process; layers may lie otherwise on them."""
    evaluation = None if every is None else EvaluationConfig("held-out", every)
    config = {"inference_layers_per_ipu": inference}
    job = ipu_job("question_answering", ADAMW, tmp_path, 4, 1, evaluation=evaluation, ipu_config=config)
    expected: Any = pytest.raises(ConfigError, match="4 entries in inference_layers") if refused else nullcontext()
    with expected:
        plan = plan_ipu(job, FOUR_LAYERS, 1.0, False, PopRunInstances(index=0, count=count), lambda text: None)
        assert plan.inference_placement.ipus_per_replica == len(inference)
