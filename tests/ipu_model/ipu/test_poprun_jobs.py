"""A job of two instances, as PopRun starts them. Here nothing averages their gradients, which PopTorch does between
hosts: each instance trains by itself, so only what the host does, and the first update, can be compared."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import pytest
import torch
from ipu_jobs import ipu_job, model_folder, rows_of
from test_poprun import DOUBLE, poprun
from tiny_ipu import FOUR_LAYERS
from tiny_jobs import finish, run_here, start_job

from ipu_model import heads
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.distributed.process import StopRequest
from ipu_model.errors import ConfigError
from ipu_model.jobs.job import Job, ScheduleConfig
from ipu_model.rows.reading import Batch, RowFolder, UpdateRows
from ipu_model.train.running import run_job

__all__ = ["poprun"]
Poprun = Callable[[int, int], PopRunInstances]
REPLICAS = 4
"""Of both instances together; test_poprun.poprun gives each instance 2, of 4 IPUs."""
PER_INSTANCE = 18
"""Rows of an update in one instance: 9 micro-batches x 2 replicas x 1 row."""


class Collectives:
    """horovod.torch between instance 1, which has run, and instance 0, which runs after it: call by call."""

    Average = object()

    def __init__(self, other: Optional[List[torch.Tensor]] = None) -> None:
        self.given: List[torch.Tensor] = []
        self._other = other

    def allreduce(self, tensor: torch.Tensor, *, name: str, op: object) -> torch.Tensor:
        assert op is self.Average
        if name in ("podium.any", "podium.first_step"):
            return tensor  # nobody was told to stop; both begin at the first update
        assert name == "podium.mean"
        self.given.append(tensor)
        return tensor if self._other is None else (tensor + self._other[len(self.given) - 1]) / 2


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Two updates of pre-training, with a checkpoint after each."""
    rows = rows_of(tmp_path / "rows", "pretrain", 90)
    changes = {"schedule": ScheduleConfig(steps=2), "checkpoint_every_updates": 1}
    return ipu_job(tmp_path / "two", "pretrain", rows, accumulation=9, replicas=REPLICAS, **changes)


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch, poptorch: Any) -> List[Tuple[torch.Tensor, ...]]:
    """What every call of an executor was given."""
    seen: List[Tuple[torch.Tensor, ...]] = []
    real = poptorch.PoplarExecutor.__call__

    def call(self: Any, *tensors: torch.Tensor) -> Any:
        seen.append(tensors)
        return real(self, *tensors)

    monkeypatch.setattr(poptorch.PoplarExecutor, "__call__", call)
    return seen


def run_instance(job: Job, instance: PopRunInstances) -> List[Dict[str, Any]]:
    """Run one instance as `python -m ipu_model` does; its events."""
    events: List[Dict[str, Any]] = []
    own = dataclasses.replace(job, run_folder=instance.own_folder(job.run_folder))
    run_job(own, lambda event, **fields: events.append({"event": event, **fields}), StopRequest(), instance)
    return events


def test_two_instances_share_the_rows_of_every_update_and_one_writes(
    job: Job, tmp_path: Path, poprun: Poprun, inputs: List[Any], record: Callable[[], List[Dict[str, Any]]]
) -> None:
    second = Collectives()
    run_instance(job, dataclasses.replace(start_one(poprun, 1), collectives=second))
    assert not Path(job.output).exists()
    assert sorted(path.name for path in Path(job.run_folder).iterdir()) == ["instance-1"]
    first = Collectives(second.given)
    run_instance(job, dataclasses.replace(start_one(poprun, 0), collectives=first))
    assert sorted(path.name for path in Path(job.output).iterdir())[2] == "model.safetensors"
    assert (Path(job.run_folder) / "result.json").is_file()
    assert len(first.given) == len(second.given) == 2

    # PopDist set 2 replicas of 4 IPUs, as replicationFactor of its options may not be called.
    assert [executable["num_ipus"] for executable in record()] == [8, 8]
    check_inputs(job, {1: inputs[:2], 0: inputs[2:]})
    check_history(job, first, second)

    alone = dataclasses.replace(job, output=str(tmp_path / "one" / "model"), run_folder=str(tmp_path / "one" / "run"))
    run_here(alone)
    expected = history(alone)
    # The update that both make of the same weights: the mean over the instances is the mean over all labels.
    np.testing.assert_allclose(history(job)[0], expected[0], rtol=0, atol=1e-5)


def start_one(poprun: Callable[[int, int], PopRunInstances], index: int) -> PopRunInstances:
    """Instance `index` of 2; the modules of PopRun are those of a fresh process."""
    for name in ("popdist", "horovod.torch"):
        module: Any = sys.modules.get(name)
        if module is not None:
            module.forget()
    return poprun(index, 2)


def check_inputs(job: Job, seen: Dict[int, List[Tuple[torch.Tensor, ...]]]) -> None:
    """Every instance got its own block of the rows of an update, weighted by the labels of all of it."""
    rows = RowFolder(Path(job.rows), "pretrain", FOUR_LAYERS)
    order = UpdateRows(len(rows), 2 * PER_INSTANCE, job.seed)
    for step in range(2):
        whole: Batch = rows.take(order(step))
        counts = heads.of("pretraining").label_counts(whole)
        weights = [9 * REPLICAS / counts[name] for name in heads.of("pretraining").parts]
        for index, calls in seen.items():
            block = whole.columns["input_ids"][index * PER_INSTANCE : (index + 1) * PER_INSTANCE]
            np.testing.assert_array_equal(calls[step][0].numpy(), block.astype(np.int32))
            np.testing.assert_allclose(calls[step][-1].numpy(), np.tile(weights, (PER_INSTANCE, 1)), rtol=1e-6)


def history(job: Job) -> np.ndarray:
    """[updates, columns] of history.csv."""
    return np.loadtxt(str(Path(job.run_folder) / "history.csv"), delimiter=",", skiprows=1, ndmin=2)


def check_history(job: Job, first: Collectives, second: Collectives) -> None:
    """The loss that instance 0 reports is the mean of both; by name they are loss, mlm_loss, nsp_loss."""
    means = [((a + b) / 2).tolist() for a, b in zip(first.given, second.given)]
    np.testing.assert_allclose(history(job)[:, 1:4], means, rtol=1e-6)
    assert abs(float(first.given[0][0] - second.given[0][0])) > 1e-3  # they did see other rows


def test_predicting_under_poprun_is_refused(tmp_path: Path, poprun: Callable[[int, int], PopRunInstances]) -> None:
    rows = rows_of(tmp_path / "rows", "question_answering", 9)
    job = ipu_job(tmp_path, "predict", rows, replicas=4, init_checkpoint=model_folder(tmp_path / "model", rows))
    with pytest.raises(ConfigError, match=r"a predict job runs as one process: start it without poprun"):
        run_instance(job, start_one(poprun, 0))


def test_the_second_instance_of_the_program_says_nothing_and_writes_to_its_own_folder(job: Job, poptorch: Any) -> None:
    place = {
        "NUM_TOTAL_REPLICAS": REPLICAS,
        "NUM_LOCAL_REPLICAS": 2,
        "REPLICA_INDEX_OFFSET": 2,
        "NUM_IPUS_PER_REPLICA": 4,
    }
    environment = {f"POPDIST_{name}": str(value) for name, value in place.items()}
    environment["PYTHONPATH"] = os.pathsep.join([str(DOUBLE), os.environ.get("PYTHONPATH", "")])
    done = finish(start_job(job, environment))
    assert (done.code, done.events) == (0, []), done.stderr
    assert not Path(job.output).exists()
    assert not list(Path(job.run_folder).glob("step-*"))
    own = json.loads((Path(job.run_folder) / "instance-1" / "result.json").read_text(encoding="utf-8"))
    assert (own["steps"], own["plan"]["device"]["instances"], own["plan"]["replication_factor"]) == (2, 2, REPLICAS)
