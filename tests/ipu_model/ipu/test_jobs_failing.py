"""IPU jobs that go wrong while they run: what they say, what they leave behind, and that the next run works."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ipu_jobs import ipu_job, rows_of, run_code
from safetensors.torch import load_file
from tiny_ipu import FOUR_LAYERS
from tiny_jobs import run_here, write_job

from ipu_model.core.errors import NonFiniteLoss, NonFiniteWeights
from ipu_model.jobs.job import Job
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
def job(tmp_path: Path) -> Job:
    """Fine-tuning of two layers on two IPUs, three micro-batches to an update."""
    rows = rows_of(tmp_path / "rows", "question_answering", 12, packed=False)
    model = dataclasses.replace(FOUR_LAYERS, num_layers=2)
    changes = {"ipu_config": {"layers_per_ipu": [1, 1]}, "model": model, "checkpoint_every_updates": 1}
    return ipu_job(tmp_path, "finetune", rows, accumulation=3, **changes)


@pytest.mark.ipu
def test_a_loss_that_is_not_finite_stops_before_anything_of_it_is_saved(job: Job) -> None:
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
def test_gradients_that_overflow_fp16_leave_nothing_behind(job: Job) -> None:
    """The loss of update 1 is fine and its weights are not: they are not saved. Without checkpoints update 2 tells."""
    overflow = optimizer_config(learning_rate=1e-4, loss_scaling=2.0**30)
    job = dataclasses.replace(job, precision="fp16", optimizer=overflow)
    with pytest.raises(NonFiniteWeights, match="after update 1 .*loss_scaling"):
        run_here(job)
    with pytest.raises(NonFiniteLoss, match="update 2 is nan"):
        run_here(dataclasses.replace(job, checkpoint_every_updates=0))
    assert not list(Path(job.run_folder).glob("step-*"))
    assert not Path(job.output).exists()
    run_here(dataclasses.replace(job, optimizer=dataclasses.replace(overflow, loss_scaling=128.0)))
    assert Path(job.output).is_dir()


def test_a_compiler_that_fails_or_comes_to_no_end_is_explained_and_the_run_folder_stays_usable(
    job: Job, poptorch: Any
) -> None:
    """Tile 1480 is on the second IPU: each has 1472."""
    done = run_code(FAILING, [write_job(job)], PODIUM_COMPILE_TIMEOUT="1")
    memory, endless = done.of("error")
    assert memory["type"] == "IpuFailure"
    for word in ("out of memory on IPU 1 of a replica", "layers_per_ipu", "matmul_proportion", "ipu_error.log"):
        assert word in memory["text"]
    log = (Path(job.run_folder) / "ipu_error.log").read_text(encoding="utf-8")
    assert "poplar_graph_memory_allocation_error" in log
    assert "Traceback" in log
    assert endless["type"] == "CompileTimeout"
    assert "the training program did not end within 1 s" in endless["text"]
    assert ([x["code"] for x in done.of("code")], done.code) == ([1], 1), done.stderr
    assert not Path(job.output).exists()
    run_here(job)
    assert Path(job.output).is_dir()
