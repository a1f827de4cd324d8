"""A job of several instances, as PopRun starts them, in processes (instance_program.py) next to one instance."""

import dataclasses
import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_ipu import DROPPING, FOUR_LAYERS, ipu_job, rows_of
from tiny_jobs import ROOT, finish, result_of, run_here, start, table_of, weights_of, write_job

from ipu_model.__main__ import detect_instances
from ipu_model.core.errors import ConfigError
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.process import PAUSED, StopRequest
from ipu_model.jobs.job import EvaluationConfig

DOUBLE = ROOT / "tests" / "doubles" / "popdist_double"
PROGRAM = Path(__file__).resolve().parent / "instance_program.py"
REPLICAS = 4
"""Of all instances together; those of the fixture poprun have 2, of 4 IPUs."""


@pytest.fixture
def job(tmp_path, is_double):
    """Pre-training with dropout, as the generators matter; an epoch ends in the middle of update 3."""
    if not is_double:
        pytest.skip("gradients are averaged between instances in the double only")
    rows = rows_of(tmp_path / "rows", "pretrain", 90)
    return ipu_job(tmp_path / "two", "pretrain", rows, accumulation=9, replicas=REPLICAS, model=DROPPING)


def elsewhere(job, folder):
    return dataclasses.replace(job, output=str(folder / "model"), run_folder=str(folder / "run"))


def run_instances(job, count, folder, pause=0):
    folder.mkdir()
    path = os.pathsep.join([str(DOUBLE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(PROGRAM), str(folder), str(pause), write_job(job)]
    local, running = REPLICAS // count, []
    for index in range(count):
        place = {"NUM_TOTAL_REPLICAS": REPLICAS, "NUM_LOCAL_REPLICAS": local, "REPLICA_INDEX_OFFSET": local * index}
        place = {f"POPDIST_{name}": str(value) for name, value in {**place, "NUM_IPUS_PER_REPLICA": 4}.items()}
        running.append(start(command, {"PYTHONPATH": path, **place}))
    return [finish(process) for process in running]


def test_instances_that_share_the_rows_train_and_judge_as_one(job, tmp_path):
    """Without dropout, as replicas elsewhere draw other numbers. Of the 21 rows that are judged, in calls of 4 replicas
    x 5 micro-batches, the second call has none left for instance 1."""
    judged = EvaluationConfig(str(rows_of(tmp_path / "held-out", "pretrain", 21, seed=2)), every_updates=2)
    config = {**job.ipu_config, "inference_replication_factor": REPLICAS, "inference_device_iterations": 5}
    job = dataclasses.replace(job, model=FOUR_LAYERS, evaluation=judged, ipu_config=config)
    done = run_instances(job, 2, tmp_path / "both")
    assert [x.code for x in done] == [0, 0], done[0].stderr
    assert [bool(x.events) for x in done] == [True, False]
    assert [path.name for path in Path(job.run_folder).iterdir() if path.is_dir()] == ["instance-1"]
    alone = elsewhere(job, tmp_path / "one")
    run_here(alone)
    np.testing.assert_allclose(table_of(job), table_of(alone), rtol=0, atol=1e-5)
    ours, theirs = (table_of(x, "evaluations.csv") for x in (job, alone))
    assert len(theirs) == 2
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    torch.testing.assert_close(weights_of(job), weights_of(alone), rtol=0, atol=1e-5)
    together, single = result_of(job), result_of(alone)
    assert (together.sequences, together.real_tokens) == (single.sequences, single.real_tokens)
    assert together.evaluation["rows"] == 21


def test_instances_that_were_stopped_go_on_as_if_they_had_not_been(job, tmp_path):
    """Bit for bit, each with its own random numbers: those of instance 0 would drop other units in the others."""
    straight = elsewhere(job, tmp_path / "straight")
    assert [x.code for x in run_instances(straight, 2, tmp_path / "a")] == [0, 0]
    stopped = run_instances(job, 2, tmp_path / "b", pause=2)
    assert [x.code for x in stopped] == [PAUSED, PAUSED], stopped[0].stderr
    assert [path.name for path in Path(job.run_folder).glob("step-*")] == ["step-00000002"]
    (alone,) = run_instances(job, 1, tmp_path / "other")
    assert "plan.device.instances: 2 -> 1" in alone.of("error")[0]["text"]  # neither lost nor mixed up
    assert [x.code for x in run_instances(job, 2, tmp_path / "c")] == [0, 0]
    assert result_of(job).resumed_from_step == 2
    assert (table_of(job) == table_of(straight)).all()
    torch.testing.assert_close(weights_of(job), weights_of(straight), rtol=0, atol=0)


def test_a_process_of_poprun_without_its_packages_does_not_train_alone():
    def importer(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    with pytest.raises(ConfigError, match="popdist cannot be imported"):
        detect_instances({"POPDIST_NUM_TOTAL_REPLICAS": "4"}, importer)


def test_a_process_without_poprun_initialises_nothing_and_one_instance_needs_no_horovod(monkeypatch, poprun):
    monkeypatch.delenv("POPDIST_NUM_TOTAL_REPLICAS", raising=False)
    assert detect_instances({}) == Instances()
    assert importlib.import_module("popdist").CALLS == []
    instance = poprun(0, 1)
    assert (instance.count, instance.total_replicas, instance.collectives) == (1, 2, None)
    assert "horovod.torch" not in sys.modules
    assert instance.mean({"loss": 2.0}) == {"loss": 2.0}


def test_replicas_and_ipus_are_those_that_poprun_gave(poprun):
    instance = poprun(1, 2)
    assert instance.replicas(4) == 2
    options, owns_replication = instance.make_options(importlib.import_module("poptorch"), 4)
    assert (options.replication_factor, owns_replication) == (2, True)
    for refused, words in (
        (lambda: instance.replicas(2), "--num-replicas 4 .*replication_factor 2"),
        (lambda: instance.make_options(importlib.import_module("poptorch"), 8), "--ipus-per-replica 4 .* 8 IPUs"),
        (lambda: Instances(index=0, count=4).share(10), "10 rows of an update .*4 instances"),
    ):
        with pytest.raises(ConfigError, match=words):
            refused()


def test_all_instances_stop_or_save_when_one_was_asked_to(poprun):
    """Otherwise the one that continues waits in the next reduction for ever. One reduction tells both."""
    instance = poprun(0, 2)
    others = importlib.import_module("horovod.torch").OTHERS
    stop = StopRequest()
    stop.agree = instance.any_instance
    for asked, agreed in {(0.0, 0.0): (False, False), (1.0, 0.0): (True, False), (0.0, 1.0): (False, True)}.items():
        others["podium.any"] = [torch.tensor(asked, dtype=torch.float64)]
        assert stop.decide() == agreed
    assert not stop.requested
