"""A job stops before its end on purpose: at the end of the host's time, or in the middle of a long update."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, List, Sequence

import pytest
from tiny_jobs import ROOT, finish, make_job, output_bytes, run_here, start_job

from ipu_model.core.errors import ConfigError
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.process import (
    PATIENCE_SECONDS,
    PAUSED,
    StopRequest,
    Terminated,
    lock_run_folder,
    parse_stop_time,
)
from ipu_model.jobs.job import Job, ScheduleConfig
from ipu_model.train.checkpoint_writer import ASSUMED_SAVE_SECONDS, ProcessUnavailable
from ipu_model.train.job_runner import run_job

NOON = 1_800_000_000.0


def run_until_paused(job: Job, stop: StopRequest) -> str:
    """Run a job in this process until it stops; why it did."""
    with lock_run_folder(Path(job.run_folder)), pytest.raises(Terminated) as stopped:
        run_job(job, lambda event, **fields: None, stop)
    return str(stopped.value)


class Clock:
    """A second passes with every look."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_at_the_end_of_the_hosts_time_a_checkpoint_is_made_while_there_is_time_for_it(
    tmp_path: Path, pretrain_rows: Path
) -> None:
    straight = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    run_here(straight)
    job = make_job(tmp_path / "b", "pretrain", pretrain_rows, checkpoint_every_updates=0)
    # One look before compiling, one after each update: the fourth is too late for a checkpoint of unknown length.
    clock = Clock(NOON - ASSUMED_SAVE_SECONDS - 4.0)
    why = run_until_paused(job, StopRequest(NOON, clock))
    assert why == (
        "stopped because of PODIUM_STOP_AT (2027-01-15 08:00:00 UTC), after update 3 of 6 (checkpoint saved)"
    )
    assert clock.now < NOON
    assert [path.name for path in Path(job.run_folder).glob("step-*")] == ["step-00000003"]
    # The curve travels with the checkpoint: this could be another host.
    (Path(job.run_folder) / "history.csv").unlink()
    run_here(job)
    assert output_bytes(job) == output_bytes(straight)


def test_a_checkpoint_that_was_timed_lets_the_job_go_on_longer(
    tmp_path: Path, pretrain_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_turn(emit: Any) -> None:
        raise ProcessUnavailable("its time is known before the next update")

    monkeypatch.setattr("ipu_model.train.checkpoint_writer.CheckpointProcess", in_turn)
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows, checkpoint_every_updates=1)
    # Of the 60 seconds that are kept for a first checkpoint, those of this size need none: the job ends in time.
    with lock_run_folder(Path(job.run_folder)):
        run_job(job, lambda event, **fields: None, StopRequest(NOON, Clock(NOON - ASSUMED_SAVE_SECONDS - 2.5)))
    assert Path(job.output).is_dir()


def test_without_time_for_an_update_nothing_is_compiled(
    tmp_path: Path, pretrain_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipu_model.train.job_runner._compile", None)  # calling it would fail
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    why = run_until_paused(job, StopRequest(NOON, lambda: NOON - ASSUMED_SAVE_SECONDS + 1))
    assert why == "stopped because of PODIUM_STOP_AT (2027-01-15 08:00:00 UTC), before the first update"


def test_the_program_pauses_at_the_time_of_its_environment(tmp_path: Path, pretrain_rows: Path) -> None:
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    done = finish(start_job(job, {"PODIUM_STOP_AT": "2020-01-01T00:00:00Z"}))
    assert done.code == PAUSED, done.stderr
    assert done.events[-1]["event"] == "paused"
    assert "stopped because of PODIUM_STOP_AT (2020-01-01 00:00:00 UTC)" in done.events[-1]["text"]
    done = finish(start_job(job, {"PODIUM_STOP_AT": "noon"}))
    assert done.code == 2
    assert "PODIUM_STOP_AT='noon' is not a valid time" in done.of("error")[0]["text"]


ZONED = ("2027-01-15T08:00:00Z", "2027-01-15T09:00:00+01:00", " 2027-01-15 08:00:00+00:00 ")


@pytest.mark.parametrize(("text", "moment"), [*((x, NOON) for x in ("1800000000", *ZONED)), (None, None), ("", None)])
def test_moments(text: Any, moment: Any) -> None:
    assert parse_stop_time(text) == moment


@pytest.mark.parametrize("text", ["2027-01-15T08:00:00", "8 h", "nan", "inf", "2027-13-01T00:00:00Z"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use date, time and zone"):
        parse_stop_time(text)


class Impatient(StopRequest):
    """SIGTERM came long ago, as seen from the second micro-batch of the third update on."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def deadline_near(self) -> bool:
        self.looks += 1
        self.requested = self.looks >= 3  # an update has two micro-batches, and a look between them
        return self.requested


def test_a_long_update_is_given_up_and_made_again_to_the_bit(tmp_path: Path, pretrain_rows: Path) -> None:
    """Dropout included: the generators go back to where they were before the update."""
    straight = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    run_here(straight)
    job = make_job(tmp_path / "b", "pretrain", pretrain_rows, checkpoint_every_updates=0)
    why = run_until_paused(job, Impatient())
    assert why == "stopped on request, after update 2 of 6 (checkpoint saved)"
    run_here(job)
    assert output_bytes(job) == output_bytes(straight)


def test_an_update_is_given_up_only_after_some_seconds_of_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = StopRequest()
    assert not stop.deadline_near()
    stop._on_signal(signal.SIGTERM, None)
    stop._on_signal(signal.SIGTERM, None)
    assert stop.requested
    assert not stop.deadline_near()
    assert stop._requested_at is not None
    stop._requested_at -= PATIENCE_SECONDS
    assert stop.deadline_near()


HOLDER = "from ipu_model.distributed.process import lock_run_folder; from pathlib import Path; import sys, time\n"
HOLDER += "with lock_run_folder(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)\n"


def test_the_lock_names_its_owner_and_ends_with_it(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=str(ROOT), stdout=subprocess.PIPE, universal_newlines=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(ConfigError) as refused, lock_run_folder(tmp_path):
        pass
    assert re.search(
        rf"{tmp_path} is in use by process {owner.pid} on {re.escape(socket.gethostname())} since 20\d\d-\d\d-\d\d "
        r"\d\d:\d\d:\d\d UTC: wait for it, stop it, or set another run_folder for this job",
        str(refused.value),
    )
    owner.kill()
    owner.communicate()
    with lock_run_folder(tmp_path):  # what the file still says blocks no one
        assert f"process {os.getpid()} " in (tmp_path / "lock").read_text()


def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(
        ConfigError, match=r"without locks \(No locks available\).*put runs on another disk"
    ), lock_run_folder(tmp_path):
        pass


def test_the_last_update_before_the_end_is_not_made_twice(tmp_path: Path, pretrain_rows: Path) -> None:
    """Time is up after the last update: the next start only writes the model."""
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows, schedule=ScheduleConfig(steps=2))
    why = run_until_paused(job, StopRequest(NOON, Clock(NOON - ASSUMED_SAVE_SECONDS - 3.0)))
    assert "after update 2 of 2" in why
    steps: List[Any] = run_here(job).of("step")
    assert steps == []


def test_no_process_leaves_before_the_checkpoint_is_written(tmp_path: Path, pretrain_rows: Path) -> None:
    """A launcher ends all of them soon after the first: each waits for the others once more."""
    seen: List[str] = []

    class Watched(Instances):
        def any_instance(self, mine: Sequence[bool]) -> List[bool]:
            seen.append("asked")
            return list(mine)

    job = make_job(tmp_path / "a", "pretrain", pretrain_rows, checkpoint_every_updates=0)
    stop = StopRequest()
    stop.requested = True
    with pytest.raises(Terminated):
        run_job(job, lambda event, **fields: seen.append(event), stop, Watched())
    assert seen[-3:] == ["asked", "saved", "asked"]
