"""A job stops before its end on purpose: at the end of the host's time, or in the middle of a long update."""

import errno
import fcntl
import os
import signal
import socket
import sys
from itertools import count
from pathlib import Path

import pytest
from tiny_jobs import finish, make_job, output_bytes, run_here, start, start_job

from ipu_model.core.errors import ConfigError
from ipu_model.distributed import process
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.process import PAUSED, StopRequest, Terminated, lock_run_folder, parse_stop_time
from ipu_model.train.checkpoint_writer import ASSUMED_SAVE_SECONDS
from ipu_model.train.job_runner import run_job

NOON = 1_800_000_000.0


class Impatient(StopRequest):
    """SIGTERM came long ago, as seen from the second micro-batch of the third update on."""

    looks = 0

    def deadline_near(self):
        self.looks += 1
        self.requested = self.looks >= 3  # an update has two micro-batches, and a look between them
        return self.requested


# One look at the clock before compiling, one after each update: the fourth is too late for a checkpoint of unknown
# length. A second passes with every look.
LATE = NOON - ASSUMED_SAVE_SECONDS - 3.0


@pytest.mark.parametrize(
    ("make_stop", "step", "message"),
    [
        (lambda: StopRequest(NOON, count(LATE).__next__), 3, "(2027-01-15 08:00:00 UTC), after update 3"),
        (Impatient, 2, "after update 2 of 6"),
    ],
    ids=["the host's time ends", "in the middle of a long update"],
)
def test_a_job_that_pauses_is_continued_to_the_bit(tmp_path, pretrain_rows, make_stop, step, message):
    """Dropout included; the generators go back to where they were before an update that is given up."""
    straight = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    run_here(straight)
    job = make_job(tmp_path / "b", "pretrain", pretrain_rows, checkpoint_every_updates=0)
    with lock_run_folder(Path(job.run_folder)), pytest.raises(Terminated) as stopped:
        run_job(job, lambda event, **fields: None, make_stop())
    assert message in str(stopped.value)
    assert [path.name for path in Path(job.run_folder).glob("step-*")] == [f"step-{step:08d}"]
    # The curve travels with the checkpoint: this could be another host.
    (Path(job.run_folder) / "history.csv").unlink()
    run_here(job)
    assert output_bytes(job) == output_bytes(straight)


def test_the_program_pauses_at_the_time_of_its_environment(tmp_path, pretrain_rows):
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
        (" 2027-01-15 09:00:00+01:00 ", NOON),
        ("", None),
        ("2027-01-15T08:00:00", ConfigError),
        ("nan", ConfigError),
        ("2027-13-01T00:00:00Z", ConfigError),
    ],
)
def test_a_moment_has_a_zone_or_is_in_seconds(text, moment):
    if moment is not ConfigError:
        assert parse_stop_time(text) == moment
        return
    with pytest.raises(ConfigError, match="zone"):
        parse_stop_time(text)


@pytest.mark.parametrize("patience", [60.0, -1.0])
def test_an_update_is_given_up_only_after_some_seconds_of_patience(monkeypatch, patience):
    handlers = {}
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


def test_the_lock_names_its_owner_and_ends_with_it(tmp_path, monkeypatch):
    owner = start([sys.executable, "-c", HOLDER, str(tmp_path)])
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"process {owner.pid} on {socket.gethostname()}"), lock_run_folder(tmp_path):
        pass
    owner.kill()
    owner.communicate()
    with lock_run_folder(tmp_path):  # what the file still says blocks no one
        assert f"process {os.getpid()} " in (tmp_path / "lock").read_text()

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match="No locks available"), lock_run_folder(tmp_path):
        pass


def test_no_process_leaves_before_the_checkpoint_is_written(tmp_path, pretrain_rows):
    """A launcher ends all of them soon after the first: each waits for the others once more."""
    events = []

    class Watched(Instances):
        def any_instance(self, mine):
            events.append("asked")
            return list(mine)

    job = make_job(tmp_path / "a", "pretrain", pretrain_rows, checkpoint_every_updates=0)
    stop = StopRequest()
    stop.requested = True
    with pytest.raises(Terminated):
        run_job(job, lambda event, **fields: events.append(event), stop, Watched())
    assert events[-3:] == ["asked", "saved", "asked"]
