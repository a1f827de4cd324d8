"""IPU jobs that go wrong while they run: what they say, what they leave behind, and that the next run works."""

import dataclasses
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny_ipu import FOUR_LAYERS, ipu_job, rows_of, run_code
from tiny_jobs import finish, output_bytes, run_here, start, write_job

from ipu_model.core.errors import NonFiniteLoss, NonFiniteWeights
from ipu_model.distributed.process import PAUSED
from ipu_model.estimates.ipu_constants import FITTED
from ipu_model.rows.row_folder import UpdateRows
from tests.optimizers import optimizer_config

FAILING = """
import json, os, sys, time
import poptorch
from ipu_model import __main__ as program

def out_of_memory(self, *inputs):
    error = poptorch.Error("in poptorch/python/_poplar_executor.py: 'poplar_graph_memory_allocation_error'")
    error.type = "poplar_graph_memory_allocation_error"
    error.message = "Out of memory on tile 1480: 700000 bytes used but tiles only have 638976 bytes of memory"
    raise error

protocol = os.dup(1)
poptorch.PoplarExecutor.compile = out_of_memory
code = program.main()
os.write(protocol, (json.dumps({"event": "code", "code": code}) + "\\n").encode())
os.dup2(protocol, 1)  # the program turned its stdout over to what libraries print
poptorch.PoplarExecutor.compile = lambda self, *inputs: time.sleep(60)
program.main()
"""
"""The program on a PopTorch that does not compile: first it raises an error, then it comes to no end."""


@pytest.fixture
def job(tmp_path):
    """Fine-tuning of two layers on two IPUs, three micro-batches to an update."""
    rows = rows_of(tmp_path / "rows", "question_answering", 12, packed=False)
    model = dataclasses.replace(FOUR_LAYERS, num_layers=2)
    changes = {"ipu_config": {"layers_per_ipu": [1, 1]}, "model": model, "checkpoint_every_updates": 1}
    return ipu_job(tmp_path, "finetune", rows, accumulation=3, **changes)


@pytest.mark.ipu
def test_a_loss_that_is_not_finite_stops_before_anything_of_it_is_saved(job):
    """Update 1 makes weights of 1e25, which are finite; update 2 cannot compute with them."""
    job = dataclasses.replace(job, optimizer=optimizer_config(learning_rate=2e25, loss_scaling=8.0))
    with pytest.raises(NonFiniteLoss, match=r"2e\+25.*loss scaling 8") as caught:
        run_here(job)
    assert (caught.value.step, caught.value.rows) == (2, UpdateRows(12, 3, job.seed)(1).tolist())
    assert [path.name for path in Path(job.run_folder).glob("step-*")] == ["step-00000001"]
    saved = load_file(str(Path(job.run_folder) / "step-00000001" / "model.safetensors"))
    assert all(bool(x.isfinite().all()) for x in saved.values())
    assert not Path(job.output).exists()
    assert not (Path(job.run_folder) / "result.json").exists()


@pytest.mark.ipu
def test_gradients_that_overflow_fp16_leave_nothing_behind(job):
    """The loss of update 1 is fine and its weights are not: they are not saved. Without checkpoints update 2 tells."""
    overflow = optimizer_config(learning_rate=1e-4, loss_scaling=2.0**30)
    job = dataclasses.replace(job, precision="fp16", optimizer=overflow)
    with pytest.raises(NonFiniteWeights, match="update 1 .*loss_scaling"):
        run_here(job)
    with pytest.raises(NonFiniteLoss, match="update 2"):
        run_here(dataclasses.replace(job, checkpoint_every_updates=0))
    assert not list(Path(job.run_folder).glob("step-*"))
    assert not Path(job.output).exists()
    run_here(dataclasses.replace(job, optimizer=dataclasses.replace(overflow, loss_scaling=128.0)))
    assert Path(job.output).is_dir()


def test_a_compiler_that_fails_or_comes_to_no_end_is_explained_and_the_run_folder_stays_usable(job, poptorch):
    """Tile 1480 is on the second IPU: each has 1472."""
    done = run_code(FAILING, [write_job(job)], PODIUM_COMPILE_TIMEOUT="1")
    memory, endless = done.of("error")
    assert memory["type"] == "IpuFailure"
    for word in ("IPU 1 of a replica", "layers_per_ipu", "matmul_proportion", "ipu_error.log"):
        assert word in memory["text"]
    log = (Path(job.run_folder) / "ipu_error.log").read_text(encoding="utf-8")
    assert "poplar_graph_memory_allocation_error" in log
    assert "Traceback" in log
    assert endless["type"] == "CompileTimeout"
    assert ([x["code"] for x in done.of("code")], done.code) == ([1], 1), done.stderr
    assert not Path(job.output).exists()
    run_here(job)
    assert Path(job.output).is_dir()


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


def start_slow(job, slow_from, seconds):
    """Start a job with slow calls; returns when the first of them is running."""
    command = [sys.executable, "-c", HOLDING, write_job(job), str(slow_from), str(seconds)]
    process = start(command)
    assert f"call {slow_from}\n" in iter(process.stderr.readline, ""), "it ended before"
    return process


def jobs(folder, **settings):
    """Two of the same, each in a folder of its own."""
    rows = rows_of(folder / "rows", "pretrain", 50)
    return [ipu_job(folder / name, "pretrain", rows, 9, **settings) for name in "ab"]


def test_a_checkpoint_is_written_while_a_call_keeps_the_interpreter_and_serves_after_a_kill(tmp_path):
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
    assert any("after update 1 of 4" in event["text"] for event in done.of("message"))
    assert output_bytes(job) == output_bytes(straight)


@pytest.mark.parametrize("iterations", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_stop_is_answered_after_the_call_at_work_with_a_checkpoint(iterations, tmp_path):
    straight, job = jobs(tmp_path, iterations=iterations)
    run_here(straight)
    process = start_slow(job, 1, 1)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process)
    assert stopped.code == PAUSED, stopped.stderr
    assert [Path(event["path"]).name for event in stopped.of("saved")] == [f"step-0000000{iterations}"]
    assert "call 2" not in stopped.stderr
    run_here(job)
    assert output_bytes(job) == output_bytes(straight)


def test_the_plan_says_how_long_a_stop_takes_and_what_a_kill_loses(tmp_path):
    timed, untimed = (
        next(event["text"] for event in run_here(job).of("message") if event["text"].startswith("an IPU call takes"))
        for job in (
            jobs(tmp_path / "timed", checkpoint_every_minutes=10, checkpoint_every_updates=3)[0],
            jobs(tmp_path / "untimed")[0],
        )
    )
    (seconds,) = re.findall(r"takes about (\S+) s on Mk2", timed)
    assert float(seconds) == pytest.approx(FITTED.host, abs=0.06)  # a model as small as this adds nothing
    assert "10 minutes or 3 updates" in timed
    assert "at most everything" in untimed
