"""Whole jobs on a four-IPU pipeline: their row folders, the jobs, and children that end on a given event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

from tiny_ipu import FOUR_LAYERS, unpacked
from tiny_jobs import ONE_THREAD, ROOT, Finished, make_columns, make_job, run_here, write_rows

from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.rows.format import Manifest, read_manifest
from tests.optimizers import optimizer_config

NUM_IPUS = ("PODIUM_DOUBLE_IPUS", "POPTORCH_STANDIN_NUM_IPUS")
"""Environment variables that say how many IPUs the double, and an emulated core, have."""
DYING = """
import os, signal, sys
from ipu_model import __main__ as program
from ipu_model.core import progress
from ipu_model.train.checkpoint_writer import CheckpointWriter
event, step = sys.argv.pop(), sys.argv.pop()
save = CheckpointWriter.save

def save_in_turn(self, done):
    save(self, done)
    self.finish()

CheckpointWriter.save = save_in_turn

class Dying(progress.Progress):
    def __call__(self, name, **fields):
        super().__call__(name, **fields)
        if name == event and fields["step"] == int(step):
            os.kill(os.getpid(), signal.SIGKILL)

program.Progress = Dying
sys.exit(program.main())
"""
"""The program, killed by SIGKILL right after it said `event` of `step`: nothing of it runs on, no handler is called."""


def rows_of(folder: Path, kind: str, rows: int, seed: int = 1, packed: bool = True) -> Path:
    """A row folder; the numbers of its features follow one another without a gap."""
    columns = make_columns(kind, rows, seed=seed)
    if not packed:
        columns = unpacked(columns)
        if "feature_ids" in columns:
            columns["feature_ids"][:, 0] = range(rows)
    write_rows(folder, kind, columns)
    return folder


def manifest_of(folder: str) -> Manifest:
    return read_manifest(Path(folder))


def ipu_job(
    folder: Path, kind: str, rows: Path, accumulation: int = 9, replicas: int = 1, iterations: int = 1, **changes: Any
) -> Job:
    """One layer on each of four IPUs, micro-batches of one row, fp32, 4 updates."""
    values: Dict[str, Any] = {
        "runtime": "ipu",
        "model": None if "init_checkpoint" in changes else FOUR_LAYERS,
        "geometry": BatchGeometry(round(accumulation * replicas * manifest_of(str(rows)).packing_factor), 1),
        "optimizer": optimizer_config(name="lamb", learning_rate=1e-4),
        "schedule": ScheduleConfig(steps=4, warmup_fraction=0.5),
        "checkpoint_every_updates": 0,
        "log_every_updates": 1,
        "ipu_config": {
            "layers_per_ipu": [1, 1, 1, 1],
            "replication_factor": replicas,
            "inference_replication_factor": replicas,
            "device_iterations": iterations,
            "output_mode": "sum",
            **changes.pop("ipu_config", {}),
        },
    }
    return make_job(folder, kind, rows, **{**values, **changes})


def on_cpu(job: Job, folder: Path, **changes: Any) -> Job:
    rows = manifest_of(job.rows)
    accumulation = round(job.geometry.global_batch_size / rows.packing_factor)
    values: Dict[str, Any] = {
        **vars(job),
        "runtime": "cpu",
        "ipu_config": None,
        "geometry": BatchGeometry(job.geometry.global_batch_size, accumulation),
        "output": str(folder / Path(job.output).name),
        "run_folder": str(folder / "run"),
    }
    return Job(**{**values, **changes})


def model_folder(folder: Path, rows: Path) -> str:
    """A question answering model as it was initialised."""
    job = make_job(
        folder, "finetune", rows, model=FOUR_LAYERS, schedule=ScheduleConfig(steps=0), geometry=BatchGeometry(2)
    )
    run_here(job)
    return job.output


def run_code(code: str, arguments: List[str], **environment: str) -> Finished:
    """Python code in a process of its own, with one thread; every line on its stdout must be an event."""
    environment = {**os.environ, **ONE_THREAD, **environment}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=str(ROOT), env=environment, capture_output=True, text=True, timeout=120)
    return Finished(done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr)
