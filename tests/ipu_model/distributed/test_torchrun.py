"""Two processes of torch.distributed over gloo on loopback train as one, and end together."""

import dataclasses
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from tiny_jobs import (
    STILL,
    TORCHRUN,
    finish,
    make_columns,
    make_job,
    result_of,
    run_here,
    start,
    table_of,
    until,
    wait_for_end,
    weights_of,
    write_job,
    write_rows,
)
from tiny_torch import children_of, run_two, start_two

from ipu_model.__main__ import detect_instances
from ipu_model.core.errors import CheckpointError, ConfigError
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.process import PAUSED, StopRequest
from ipu_model.distributed.torchrun import TorchrunInstances, choose_exit_code, detect_torchrun
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, ScheduleConfig
from ipu_model.train.job_runner import run_job

PLACE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def check_same(ours, theirs, weights, figures):
    torch.testing.assert_close(weights_of(ours), weights_of(theirs), **weights)
    assert len(table_of(ours)) == len(table_of(theirs))
    for line, expected in zip(table_of(ours), table_of(theirs)):
        assert line == pytest.approx(expected, rel=figures)


def test_two_processes_end_with_the_weights_of_one(tmp_path, answer_rows):
    """Same rows, same losses over the labels of the whole update, same clipping, same figures of held-out rows; only
    one of them writes. The last update has one row, so that the second process has none."""
    held_out = tmp_path / "rows" / "held-out"
    write_rows(held_out, "question_answering", make_columns("question_answering", 9, seed=8))
    schedule = ScheduleConfig(epochs=31 / 20, warmup_fraction=0.5)
    settings = {"model": STILL, "evaluation": EvaluationConfig(str(held_out), 4), "schedule": schedule}
    single = make_job(tmp_path / "one", "finetune", answer_rows, **settings)
    timed = {"checkpoint_every_updates": 0, "checkpoint_every_minutes": 1e-6}
    two = make_job(tmp_path / "two", "finetune", answer_rows, **settings, **timed)
    run_here(single)
    first, second = run_two(two)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert first.of("saved")[0]["path"].endswith("step-00000001")  # by the clock of one, with the generators of both
    assert second.events == []
    check_same(two, single, {"rtol": 1e-5, "atol": 1e-6}, 1e-6)
    alone, together = (result_of(job) for job in (single, two))
    assert (alone.plan["replication_factor"], together.plan["replication_factor"]) == (1, 2)
    assert [alone.plan[name] for name in ("rows_per_update", "updates", "total_rows")] == [6, 6, 31]
    assert (together.real_tokens, together.sequences) == (alone.real_tokens, alone.sequences)
    assert alone.evaluation["rows"] == 9
    assert together.evaluation.pop("judged_by") == alone.evaluation.pop("judged_by")
    seconds = {"seconds": together.evaluation["seconds"]}
    assert together.evaluation == pytest.approx({**alone.evaluation, **seconds}, rel=1e-5)
    kept = sorted(path.name for path in Path(two.run_folder).glob("instance-*/*"))
    assert kept == ["evaluations.csv", "history.csv", "lock", "result.json"]


def test_two_processes_rank_among_the_texts_of_both(tmp_path):
    """The loss of a joint head compares all texts of an update; the last update has rows of the first process alone."""
    rows = tmp_path / "rows"
    write_rows(rows, "sentence_embedding", make_columns("sentence_embedding", 13, seed=4))
    settings = {"model": STILL, "head": "sentence_embedding", "geometry": BatchGeometry(6, micro_batch_size=2)}
    single, two = (
        make_job(tmp_path / name, "finetune", rows, schedule=ScheduleConfig(epochs=1), **settings) for name in "ab"
    )
    run_here(single)
    first, second = run_two(two)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    check_same(two, single, {"rtol": 1e-5, "atol": 1e-6}, 1e-5)


@pytest.mark.soak
def test_a_process_that_dies_ends_the_other_with_its_reason(tmp_path, pretrain_rows):
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows, schedule=ScheduleConfig(steps=100000))
    first, second = start_two(job, job)
    until(first, "saved")
    second.kill()
    second.communicate()
    done = finish(first)
    assert done.code == 1
    assert [error["type"] for error in done.of("error")] == ["InstanceLost"]
    assert not Path(job.output).exists()
    assert list(Path(job.run_folder).glob("step-*[0-9]"))


def test_prediction_is_one_process(tmp_path, answer_rows):
    trained = make_job(tmp_path / "a", "finetune", answer_rows, schedule=ScheduleConfig(steps=0))
    run_here(trained)
    job = make_job(tmp_path / "b", "predict", answer_rows, init_checkpoint=trained.output)
    with pytest.raises(ConfigError, match="without torchrun"):
        run_job(job, lambda event, **fields: None, StopRequest(), TorchrunInstances(0, 2))


def test_the_place_comes_from_the_environment_and_says_which_generators_are_its_own():
    assert detect_instances(PLACE) == TorchrunInstances(index=1, count=2, local_index=1)
    assert detect_instances({**PLACE, "RANK": "0", "WORLD_SIZE": "1"}) == Instances()
    assert detect_torchrun({"RANK": "1"}) is None
    assert not TorchrunInstances(1, 2).is_writer
    gathered = {"torch": torch.tensor([0]), "torch@1": torch.tensor([1]), "torch@11": torch.tensor([11])}
    for index in (0, 1, 11):
        assert TorchrunInstances(index, 12).select_own(gathered) == {"torch": torch.tensor([index])}
    assert Instances().select_own(Instances().gather({"torch": torch.tensor([5])})) == {"torch": torch.tensor([5])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"MASTER_PORT": ""}, "MASTER_PORT"), ({"RANK": "one"}, "whole numbers"), ({"RANK": "2"}, "RANK=2")],
)
def test_half_a_place_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        detect_torchrun({**PLACE, **changes})


@pytest.mark.soak
def test_one_process_or_two_that_see_different_checkpoints_do_not_continue_what_two_began(tmp_path, pretrain_rows):
    """The second process was told to stop: both did, with the same update."""
    job = make_job(tmp_path, "pretrain", pretrain_rows, schedule=ScheduleConfig(steps=200), checkpoint_every_updates=0)
    processes = start_two(job, job)
    until(processes[0], "step")
    processes[1].send_signal(signal.SIGTERM)
    first, second = (finish(process) for process in processes)
    assert (first.code, second.code) == (PAUSED, PAUSED), first.stderr + second.stderr
    with pytest.raises(CheckpointError, match=r"plan\.replication_factor: 2 -> 1"):
        run_here(job)
    elsewhere = dataclasses.replace(job, run_folder=str(tmp_path / "other" / "run"))
    first, second = (finish(process) for process in start_two(job, elsewhere))
    assert (first.code, second.code) == (2, 2)
    assert "all hosts share" in first.of("error")[0]["text"]


WAITS = """
import os, sys
from ipu_model.distributed.process import StopRequest, die_with_parent
from ipu_model.distributed.torchrun import detect_torchrun
StopRequest().listen()
die_with_parent()
instances = detect_torchrun(os.environ)
import torch.distributed.rendezvous
module = sys.modules["torch.distributed.rendezvous"]
meets = module.rendezvous
def rendezvous(*words, **more):
    print("waits", flush=True)
    return meets(*words, **more)
module.rendezvous = rendezvous
instances.join("cpu")
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.mark.parametrize("words", [["-c", WAITS], ["-c", PARENT, WAITS]], ids=["signal", "parent"])
def test_a_process_that_waits_for_others_ends_at_once(words):
    process = start([sys.executable, *words], {**PLACE, "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "0"})
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM
    assert process.stdout.read() == ""  # ends when the one that waits has ended


def ranks(launcher):
    """Rank -> process id, of those that a torchrun started."""
    variables = {process: Path(f"/proc/{process}/environ").read_bytes() for process in children_of(launcher)}
    places = {process: re.search(rb"\0RANK=(\d+)", text) for process, text in variables.items()}
    return {int(place.group(1)): process for process, place in places.items() if place}


def torchrun(job, restarts=0):
    """Start a job in two processes."""
    words = ["--nproc-per-node", "2", "--max-restarts", str(restarts), sys.executable, "-m", "ipu_model"]
    return start([*TORCHRUN, *words, write_job(job)])


def run_torchrun(job):
    done = finish(torchrun(job))
    assert done.code == 0, done.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A long run of two processes that nothing happened to, dropout included."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_rows(folder / "rows", "pretrain", make_columns("pretrain", 32))
    settings = {"schedule": ScheduleConfig(steps=120), "checkpoint_every_updates": 20}
    job = make_job(folder, "pretrain", folder / "rows", **settings)
    run_torchrun(job)
    return job


@pytest.fixture
def again(undisturbed, tmp_path):
    return dataclasses.replace(undisturbed, run_folder=str(tmp_path / "run"), output=str(tmp_path / "model"))


@pytest.mark.soak
def test_after_a_killed_rank_the_run_restarts_from_its_checkpoint_and_ends_as_undisturbed(undisturbed, again):
    process = torchrun(again, restarts=1)
    until(process, "saved")
    os.kill(ranks(process.pid)[1], signal.SIGKILL)
    done = finish(process)
    assert done.code == 0, done.stderr
    assert any("continuing after update" in event["text"] for event in done.of("message"))
    assert 20 <= result_of(again).resumed_from_step < 120
    check_same(again, undisturbed, {"rtol": 0, "atol": 0}, 0)


@pytest.mark.soak
def test_ranks_whose_torchrun_is_killed_save_and_end_and_the_run_continues(undisturbed, again):
    process = torchrun(again)
    until(process, "saved")
    both = list(ranks(process.pid).values())
    assert len(both) == 2
    process.kill()
    wait_for_end(both)
    process.communicate()
    assert list(Path(again.run_folder).glob("step-*[0-9]"))
    run_torchrun(again)
    torch.testing.assert_close(weights_of(again), weights_of(undisturbed), rtol=0, atol=0)


@pytest.mark.soak
def test_a_pause_is_not_taken_for_a_failure_that_a_restart_could_help(again):
    """One rank alone is asked to stop, where torchrun might restart it."""
    process = torchrun(again, restarts=3)
    until(process, "saved")
    os.kill(ranks(process.pid)[1], signal.SIGTERM)
    done = finish(process)
    assert done.code == 0, done.stderr
    assert done.of("plan") == []  # what until left has no second start
    [paused] = done.of("paused")
    assert "another process" in paused["text"]
    restarts = ({}, {"TORCHELASTIC_MAX_RESTARTS": "0"}, {"TORCHELASTIC_MAX_RESTARTS": "3"})
    assert [choose_exit_code(2, environ) for environ in restarts] == [2, 2, 0]
