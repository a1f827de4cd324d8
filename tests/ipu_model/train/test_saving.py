"""Checkpoints written next to a training: the same files, of the state as it was, and none half."""

import contextlib
import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_jobs import ROOT, finish, make_job, output_bytes, run_here, start_job, until
from tiny_torch import FINGERPRINT, children_of, state_at

from ipu_model.core.errors import CheckpointError
from ipu_model.core.files import HOST
from ipu_model.distributed.process import StopRequest, Terminated
from ipu_model.jobs.job import ScheduleConfig
from ipu_model.models.tensors import DTYPES
from ipu_model.train.checkpoint import STATE, Checkpoint, Checkpoints
from ipu_model.train.checkpoint_writer import ASSUMED_SAVE_SECONDS, CheckpointProcess, CheckpointWriter
from ipu_model.train.training import TrainingState


def make_runtime():
    """A runtime of which only the state is asked for, and given as it is: no copies."""
    model = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(5)}
    moments = {str(kind): torch.arange(3).to(kind) for kind in DTYPES}
    moments.update(step=torch.tensor(7.0), none=torch.zeros(0, 4))
    random_state = {"torch": torch.arange(9, dtype=torch.uint8)}
    states = {"state_dict": lambda: model, "optimizer_state": lambda: moments, "rng_state": lambda: random_state}
    return SimpleNamespace(model=model, moments=moments, **states)


class Training:
    """A training of which only the checkpoints are there, on a clock of its own."""

    def __init__(self, folder):
        self.folder, self.now, self.texts, self.saved = folder, 0.0, [], []
        self.runtime = make_runtime()
        self.checkpoints = Checkpoints(folder, {"seed": 1}, self.emit, True)
        history = SimpleNamespace(state=lambda: {"lines": ["1,0.5"]})
        job = SimpleNamespace(checkpoint_every_minutes=2.0, checkpoint_every_updates=0)
        before = set(children_of(os.getpid()))
        self.writer = CheckpointWriter(
            job, self.runtime, self.checkpoints, history, None, StopRequest(), self.emit, clock=lambda: self.now
        )
        [self.process] = set(children_of(os.getpid())) - before  # the one that writes

    def emit(self, event, text="", path="", **fields):
        if event == "message":
            self.texts.append(text)
        elif event == "saved":
            self.saved.append(Path(path).name)


@pytest.fixture
def training(tmp_path):
    started = Training(tmp_path)
    yield started
    with contextlib.suppress(ProcessLookupError):  # a test killed it
        os.kill(started.process, signal.SIGCONT)
    started.writer.close()


def ignore(event, **fields):
    """Ignore events."""


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_asynchronous_and_synchronous_files_are_the_same(tmp_path):
    runtime = make_runtime()
    state = Checkpoint(3, runtime.model, runtime.moments, {}, {"lines": []}, {}, {"best": torch.full((2,), 2.0)})
    checkpoints = Checkpoints(tmp_path, {}, ignore)
    synchronous = contents(checkpoints.save(state))
    process = CheckpointProcess(ignore)
    process.start(tmp_path / "asynchronous", state.tensors, {STATE: checkpoints.state_text(state).encode()})
    assert process.take() > 0
    process.close()
    assert contents(tmp_path / "asynchronous") == synchronous
    weights = {f"{part}.safetensors" for part in ("best", "model", "optimizer")}
    assert set(synchronous) == {*weights, "sha256.json", "state.json"}


def test_it_holds_the_state_as_it_was_and_comes_back(training):
    os.kill(training.process, signal.SIGSTOP)
    training.writer.save(4)
    training.runtime.model["a"].fill_(-1.0)  # the next update, while nothing is written yet
    training.runtime.moments["step"].fill_(8.0)
    assert training.saved == []
    os.kill(training.process, signal.SIGCONT)
    for number in (signal.SIGTERM, signal.SIGINT):  # to the whole group
        os.kill(training.process, number)
    training.writer.finish()
    assert training.saved == ["step-00000004"]
    assert "asynchronously" in training.texts[0]
    loaded = training.checkpoints.load_latest()
    assert loaded.model["a"].tolist() == [1.0] * 5
    torch.testing.assert_close(loaded.optimizer, make_runtime().moments, rtol=0, atol=0)


def test_it_is_due_after_so_many_minutes_and_not_while_one_is_under_way(training):
    writer = training.writer
    training.now = 200.0  # of compiling
    writer.start(TrainingState(training.runtime, 9))
    training.now = 319.0
    assert not writer.is_due
    training.now = 320.0
    assert writer.is_due
    os.kill(training.process, signal.SIGSTOP)
    writer.save(1)
    training.now = 500.0
    writer.collect()
    assert not writer.is_due
    assert writer.save_seconds == ASSUMED_SAVE_SECONDS
    os.kill(training.process, signal.SIGCONT)
    writer.finish()
    assert writer.is_due
    assert 0 < writer.save_seconds < ASSUMED_SAVE_SECONDS
    writer.save(2)
    assert not writer.is_due  # counted from the copy
    assert writer.done == 2
    writer.save(3)  # waits for the one before
    writer.finish()
    assert training.saved == ["step-00000001", "step-00000002", "step-00000003"]
    assert sorted(path.name for path in training.folder.glob("step-*")) == training.saved[1:]


def test_a_stop_waits_for_the_one_under_way_and_makes_no_second_of_the_same_update(training):
    training.writer.save(6)
    with pytest.raises(Terminated, match="after update 6 of 9"):
        training.writer.save_and_stop(6, 9)
    assert training.saved == ["step-00000006"]


def test_what_cannot_be_written_is_told_at_the_next_look_and_leaves_nothing_half(training):
    training.writer.save(1)
    training.writer.finish()
    resource.prlimit(training.process, resource.RLIMIT_FSIZE, (100, 100))
    training.writer.save(2)
    with pytest.raises(OSError, match="File too large") as failed:
        deque(iter(training.writer.collect, "never"), maxlen=0)
    assert failed.value.errno == errno.EFBIG
    assert failed.value.filename == str(training.folder / "step-00000002" / "model.safetensors")
    assert [path.name for path in training.folder.iterdir()] == ["step-00000001"]


def test_when_its_process_is_killed_the_training_writes_itself_and_loses_nothing(training):
    half = training.folder / f"step-00000001.{HOST}-{training.process}.partial"  # as it leaves one
    half.mkdir()
    os.kill(training.process, signal.SIGSTOP)
    training.writer.save(1)
    os.kill(training.process, signal.SIGKILL)
    training.writer.finish()
    assert any("synchronously" in text and "SIGKILL" in text for text in training.texts)
    training.writer.save(2)
    assert training.saved == ["step-00000001", "step-00000002"]
    assert sorted(path.name for path in training.folder.iterdir()) == training.saved


def test_where_memory_is_short_the_training_writes_itself(training, monkeypatch):
    monkeypatch.setattr("ipu_model.train.checkpoint_writer.free_memory", lambda: 3 << 20)
    training.runtime.model["large"] = torch.zeros(1 << 19)  # 2 MB
    training.writer.save(1)
    assert training.saved == ["step-00000001"]
    assert "synchronously" in training.texts[0]


def test_the_process_that_writes_starts_without_torch():
    code = "import sys, ipu_model.train.checkpoint_process; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=str(ROOT)).returncode == 0


@pytest.mark.soak
def test_killed_while_one_is_written_the_run_goes_on_from_the_one_before(tmp_path, pretrain_rows):
    settings = {"schedule": ScheduleConfig(steps=60), "checkpoint_every_updates": 5}
    straight, job = (make_job(tmp_path / name, "pretrain", pretrain_rows, **settings) for name in "ab")
    run_here(straight)
    process = start_job(job)
    until(process, "saved")
    [writing] = children_of(process.pid)
    os.kill(writing, signal.SIGSTOP)
    while not list(Path(job.run_folder).glob("step-*.partial")) and process.poll() is None:
        os.kill(writing, signal.SIGCONT)  # a little further, until it is caught with a checkpoint half written
        time.sleep(0.0005)
        os.kill(writing, signal.SIGSTOP)
    process.kill()
    process.communicate()
    whole = sorted(path.name for path in Path(job.run_folder).glob("step-*[0-9]"))
    done = finish(start_job(job))
    assert (done.code, done.stderr) == (0, "")
    assert not Path(f"/proc/{writing}").exists()
    texts = [event["text"] for event in done.of("message")]
    assert f"continuing after update {int(whole[-1][-8:])} of 60" in texts
    assert output_bytes(job) == output_bytes(straight)


@pytest.fixture
def messages():
    return []


@pytest.fixture
def checkpoints(tmp_path, messages):
    return Checkpoints(tmp_path, FINGERPRINT, lambda event, **fields: messages.append(fields["text"]))


def test_what_was_saved_comes_back_exactly(checkpoints):
    random.seed(1)
    np.random.seed(1)
    checkpoints.save(state_at(4))
    expected = random.random(), float(np.random.random())
    loaded = checkpoints.load_latest()
    assert (random.random(), float(np.random.random())) == expected
    assert loaded.step == 4
    assert loaded.model["w"].tolist() == [4.0] * 3
    assert loaded.optimizer["w/step"].shape == ()
    assert loaded.device_rng["torch"].tolist() == [0, 1, 2, 3, 4]
    assert loaded.history == state_at(4).history


def test_the_newest_is_by_number_and_two_are_kept(tmp_path, checkpoints):
    for step in (2, 99999999, 100000000):  # as text, the second sorts last
        checkpoints.save(state_at(step))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-100000000", "step-99999999"]
    assert checkpoints.load_latest().step == 100000000


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.safetensors", lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]),
        ("optimizer.safetensors", lambda content: content[:-5]),
        ("state.json", None),
        ("sha256.json", lambda content: content[:-5]),
    ],
    ids=["flipped", "cut", "removed", "cut hashes"],
)
def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path, checkpoints, messages, name, change):
    checkpoints.save(state_at(2))
    path = checkpoints.save(state_at(4)) / name
    half = tmp_path / "step-00000006.123.partial"
    half.mkdir()
    if change:
        path.write_bytes(change(path.read_bytes()))
    else:
        path.unlink()
    assert checkpoints.load_latest().step == 2
    assert not half.exists()
    assert [any(mark in text for text in messages) for mark in (half.name, "step-00000004")] == [True, True]


def test_another_run_is_refused_with_the_difference(tmp_path, checkpoints):
    checkpoints.save(state_at(2))
    other = {"seed": 8, "plan.rows_per_update": 6, "optimizer.name": "lamb"}
    with pytest.raises(CheckpointError, match="optimizer.name: absent -> lamb; seed: 7 -> 8") as caught:
        Checkpoints(tmp_path, other, ignore).load_latest()
    assert "rows_per_update" not in str(caught.value)
