"""Stops and kills while a call of the IPUs keeps Python's lock, as PopTorch's `execute` does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List

import pytest
from ipu_jobs import ipu_job, rows_of
from tiny_jobs import ONE_THREAD, Finished, finish, output_bytes, run_here, start, write_job

from ipu_model.distributed.process import PAUSED
from ipu_model.estimates.ipu_constants import FITTED
from ipu_model.jobs.job import Job, ScheduleConfig

HOLDING = """
import ctypes, signal, sys
import poptorch
from ipu_model import __main__ as program
seconds, slow_from = int(sys.argv.pop()), int(sys.argv.pop())
calls, call = 0, poptorch.PoplarExecutor.__call__

def hold(self, *tensors):
    global calls
    calls += 1
    if calls >= slow_from:
        sys.stderr.write(f"call {calls}\\n")
        sys.stderr.flush()
        signals = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # which would end a sleep, and end no execute
        ctypes.PyDLL(None).sleep(seconds)  # PyDLL: with the lock
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return call(self, *tensors)

poptorch.PoplarExecutor.__call__ = hold
sys.exit(program.main())
"""
"""The program, whose calls take that many seconds from the given one on."""
LONG = 300
"""Seconds of a call that no test waits for."""


def start_slow(job: Job, slow_from: int, seconds: int) -> subprocess.Popen:
    """Start a job with slow calls; returns when the first of them is running."""
    command = [sys.executable, "-c", HOLDING, write_job(job), str(slow_from), str(seconds)]
    process = start(command, {**os.environ, **ONE_THREAD})
    assert process.stderr is not None
    said: List[str] = []
    for line in process.stderr:
        said.append(line)
        if line == f"call {slow_from}\n":
            return process
    raise AssertionError("".join(said))


def jobs(folder: Path, **settings: Any) -> List[Job]:
    """Two of the same, each in a folder of its own."""
    rows = rows_of(folder / "rows", "pretrain", 50)
    return [ipu_job(folder / name, "pretrain", rows, schedule=ScheduleConfig(steps=4), **settings) for name in "ab"]


def test_a_checkpoint_is_written_while_a_call_keeps_the_interpreter_and_serves_after_a_kill(tmp_path: Path) -> None:
    """Killed in the second call, the run has lost that call and nothing before it."""
    straight, job = jobs(tmp_path, checkpoint_every_updates=1)
    run_here(straight)
    process = start_slow(job, 2, LONG)
    first, until = Path(job.run_folder) / "step-00000001", time.monotonic() + LONG / 3
    while not first.is_dir():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    process.kill()
    process.communicate()
    done = run_here(job)
    assert "continuing after update 1 of 4" in [event["text"] for event in done.of("message")]
    assert output_bytes(job) == output_bytes(straight)


@pytest.mark.parametrize("iterations", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_stop_is_answered_after_the_call_at_work_with_a_checkpoint(iterations: int, tmp_path: Path) -> None:
    straight, job = jobs(tmp_path, iterations=iterations)
    run_here(straight)
    process = start_slow(job, 1, 1)
    process.send_signal(signal.SIGTERM)
    stopped: Finished = finish(process)
    assert stopped.code == PAUSED, stopped.stderr
    assert [Path(event["path"]).name for event in stopped.of("saved")] == [f"step-0000000{iterations}"]
    assert "call 2" not in stopped.stderr
    run_here(job)
    assert output_bytes(job) == output_bytes(straight)


def test_the_plan_says_how_long_a_stop_takes_and_what_a_kill_loses(tmp_path: Path) -> None:
    settings = ({"checkpoint_every_minutes": 10, "checkpoint_every_updates": 3}, {})
    timed, untimed = (
        next(event["text"] for event in run_here(job).of("message") if event["text"].startswith("an IPU call takes"))
        for job in (jobs(tmp_path / str(number), **how)[0] for number, how in enumerate(settings))
    )
    (seconds,) = re.findall(r"takes about (\S+) s on Mk2", timed)
    assert float(seconds) == pytest.approx(FITTED.host, abs=0.06)  # a model as small as this adds nothing
    assert "the last 10 minutes or 3 updates" in timed
    assert "at most everything" in untimed
