"""Real torchrun: several processes train as one, restart after a loss, stop together, and end with their starter."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sys
from pathlib import Path
from typing import Dict

import pytest
import torch
from tiny_jobs import (
    STILL,
    finish,
    make_columns,
    make_job,
    result_of,
    run_here,
    table_of,
    torchrun,
    until,
    wait_for_end,
    weights_of,
    write_rows,
)
from tiny_torch import children_of

from ipu_model.distributed.torchrun import choose_exit_code
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from tests.optimizers import optimizer_config

pytestmark = [
    pytest.mark.soak,  # dozens of processes that import torch
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]
LONG = ScheduleConfig(steps=120)


def ranks(launcher: int) -> Dict[int, int]:
    """Process id of every rank that a torchrun started."""
    found = {}
    for process in children_of(launcher):
        place = re.search(rb"\0RANK=(\d+)", Path(f"/proc/{process}/environ").read_bytes())
        if place:
            found[int(place.group(1))] = process
    return found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 32))
    return tmp_path / "rows"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A long run of two processes that nothing happened to, dropout included."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_rows(folder / "rows", "pretrain", make_columns("pretrain", 32))
    job = make_job(folder, "pretrain", folder / "rows", schedule=LONG, checkpoint_every_updates=20)
    done = finish(torchrun(job, 2))
    assert done.code == 0, done.stderr
    return job


def again(job: Job, folder: Path) -> Job:
    return dataclasses.replace(job, run_folder=str(folder / "run"), output=str(folder / "model"))


def test_four_processes_end_as_one_of_the_same_global_batch(tmp_path: Path, rows: Path) -> None:
    # 2 to 8 rows in an update, of 1.6 sequences each. Not Adam: it divides by gradients near 0, where all is rounding.
    settings = {
        "model": STILL,
        "geometry": BatchGeometry(13, 2, first_batch_size=4),
        "schedule": ScheduleConfig(steps=6, warmup_fraction=0.5, batch_warmup_fraction=0.5),
        "optimizer": optimizer_config(name="sgd", learning_rate=1e-1, max_grad_norm=1.0),
        "log_every_updates": 1,
    }
    one = make_job(tmp_path / "one", "pretrain", rows, **settings)
    many = make_job(tmp_path / "many", "pretrain", rows, **settings)
    run_here(one)
    done = finish(torchrun(many, 4))
    assert done.code == 0, done.stderr
    assert result_of(many).plan["replication_factor"] == 4
    assert result_of(many).plan["rows_per_update"] == result_of(one).plan["rows_per_update"] == 8
    torch.testing.assert_close(weights_of(many), weights_of(one), rtol=0, atol=1e-6)
    assert result_of(many).plan["total_rows"] == result_of(one).plan["total_rows"] == 3 + 5 + 7 + 3 * 8
    assert len(table_of(many)) == 6
    for found, wanted in zip(table_of(many), table_of(one)):
        assert found == pytest.approx(wanted, rel=1e-6)
    first, last = table_of(one)[0], table_of(one)[-1]
    assert abs(first[1] - last[1]) > 1e-3  # something was learned that could have differed


def test_after_a_killed_rank_the_run_restarts_from_its_checkpoint_and_ends_as_undisturbed(
    tmp_path: Path, undisturbed: Job
) -> None:
    job = again(undisturbed, tmp_path)
    process = torchrun(job, 2, restarts=1)
    until(process, "saved")
    os.kill(ranks(process.pid)[1], signal.SIGKILL)
    done = finish(process)
    assert done.code == 0, done.stderr
    assert any("continuing after update" in event["text"] for event in done.of("message"))
    assert 20 <= result_of(job).resumed_from_step < 120
    torch.testing.assert_close(weights_of(job), weights_of(undisturbed), rtol=0, atol=0)
    assert table_of(job).tolist() == table_of(undisturbed).tolist()


def test_ranks_whose_torchrun_is_killed_save_and_end_and_the_run_continues(tmp_path: Path, undisturbed: Job) -> None:
    job = again(undisturbed, tmp_path)
    process = torchrun(job, 2)
    until(process, "saved")
    both = list(ranks(process.pid).values())
    assert len(both) == 2
    process.kill()
    wait_for_end(both)
    process.communicate()
    assert list(Path(job.run_folder).glob("step-*[0-9]"))
    done = finish(torchrun(job, 2))
    assert done.code == 0, done.stderr
    torch.testing.assert_close(weights_of(job), weights_of(undisturbed), rtol=0, atol=0)


def test_a_pause_is_not_taken_for_a_failure_that_a_restart_could_help(tmp_path: Path, undisturbed: Job) -> None:
    """One rank alone is asked to stop, where torchrun might restart it."""
    process = torchrun(again(undisturbed, tmp_path), 2, restarts=3)
    until(process, "saved")
    os.kill(ranks(process.pid)[1], signal.SIGTERM)
    done = finish(process)
    assert done.code == 0, done.stderr
    assert done.of("plan") == []  # what until left has no second start
    [paused] = done.of("paused")
    assert "another process of this training" in paused["text"]
    restarts = ({}, {"TORCHELASTIC_MAX_RESTARTS": "0"}, {"TORCHELASTIC_MAX_RESTARTS": "3"})
    assert [choose_exit_code(2, environ) for environ in restarts] == [2, 2, 0]
