"""A job stops before its end on purpose: at the end of the host's time, or in the middle of a long update."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
from tiny_jobs import finish, make_job, output_bytes, run_here, start, start_job

from ipu_model.core.errors import ConfigError
from ipu_model.distributed import process
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.process import PAUSED, StopRequest, Terminated, lock_run_folder, parse_stop_time
from ipu_model.jobs.job import Job
from ipu_model.train.checkpoint_writer import ASSUMED_SAVE_SECONDS
from ipu_model.train.job_runner import run_job

NOON = 1_800_000_000.0


def run_until_paused(job: Job, stop: StopRequest) -> str:
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
    assert "(2027-01-15 08:00:00 UTC), after update 3" in why
    assert clock.now < NOON
    assert [path.name for path in Path(job.run_folder).glob("step-*")] == ["step-00000003"]
    # The curve travels with the checkpoint: this could be another host.
    (Path(job.run_folder) / "history.csv").unlink()
    run_here(job)
    assert output_bytes(job) == output_bytes(straight)


def test_the_program_pauses_at_the_time_of_its_environment(tmp_path: Path, pretrain_rows: Path) -> None:
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    done = finish(start_job(job, {"PODIUM_STOP_AT": "2020-01-01T00:00:00Z"}))
    assert (done.code, done.events[-1]["event"]) == (PAUSED, "paused"), done.stderr
    assert "PODIUM_STOP_AT (2020-01-01 00:00:00 UTC)" in done.events[-1]["text"]
    done = finish(start_job(job, {"PODIUM_STOP_AT": "noon"}))
    assert done.code == 2
    assert "PODIUM_STOP_AT='noon'" in done.of("error")[0]["text"]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1800000000", NOON),
        ("2027-01-15T08:00:00Z", NOON),
        ("2027-01-15T09:00:00+01:00", NOON),
        (" 2027-01-15 08:00:00+00:00 ", NOON),
        ("", None),
        ("2027-01-15T08:00:00", ConfigError),
        ("8 h", ConfigError),
        ("nan", ConfigError),
        ("2027-13-01T00:00:00Z", ConfigError),
    ],
)
def test_a_moment_has_a_zone_or_is_in_seconds(text: Any, moment: Any) -> None:
    if moment is not ConfigError:
        assert parse_stop_time(text) == moment
        return
    with pytest.raises(ConfigError, match="zone"):
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
    assert "after update 2 of 6" in run_until_paused(job, Impatient())
    run_here(job)
    assert output_bytes(job) == output_bytes(straight)


@pytest.mark.parametrize("patience", [60.0, -1.0])
def test_an_update_is_given_up_only_after_some_seconds_of_patience(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    handlers: Dict[int, Any] = {}
    monkeypatch.setattr(process, "PATIENCE_SECONDS", patience)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    stop = StopRequest()
    stop.listen()
    assert not stop.deadline_near()
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert stop.requested
    assert stop.deadline_near() == (patience < 0)


HOLDER = "from ipu_model.distributed.process import lock_run_folder; from pathlib import Path; import sys, time\n"
HOLDER += "with lock_run_folder(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)\n"


def test_the_lock_names_its_owner_and_ends_with_it(tmp_path: Path) -> None:
    owner = start([sys.executable, "-c", HOLDER, str(tmp_path)])
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"process {owner.pid} on {socket.gethostname()}"), lock_run_folder(tmp_path):
        pass
    owner.kill()
    owner.communicate()
    with lock_run_folder(tmp_path):  # what the file still says blocks no one
        assert f"process {os.getpid()} " in (tmp_path / "lock").read_text()


def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ConfigError, match="No locks available"), lock_run_folder(tmp_path):
        pass


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
