"""Comparison of `podium plan --measure` and of the bound on memory with a job."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from bench.gpu.cases import CPU, GpuCase, HeldRows
from bench.gpu.device import read_clock, read_peak_memory_mb
from bench.gpu.ours import RATE, start_updates
from bench.ours import say_nothing
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.distributed.process import peak_memory_mb
from ipu_model.estimates.job import estimate_job
from ipu_model.rows.format import MANIFEST
from ipu_model.train.measurement import measure

WARMUP, UPDATES = 4, 12


def compare(case: GpuCase, device: str) -> dict[str, Any]:
    """Return measured and actual seconds of an update, and memory: measured, actual and the bound, in MB."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MANIFEST).write_text(dataclasses.replace(case.manifest, files={}).to_json(), encoding="utf-8")
        job = dataclasses.replace(case.make_job(device, WARMUP + UPDATES), rows=folder)
        measured = measure(job, say_nothing)
        bound = estimate_job(job, case.manifest, PopRunInstances(), limit=float("inf"))
    rows = HeldRows(case)
    read_peak_memory_mb(device)
    with start_updates(job, rows, WARMUP) as (runtime, _, batches):
        began = read_clock(device)
        for batch in batches:
            runtime.train_step(batch, RATE)
        seconds = (read_clock(device) - began) / UPDATES
    return {
        "case": case.name,
        "measured_seconds": measured["update_seconds"],
        "seconds": seconds,
        "measured_mb": measured["memory"] / 2**20,
        "mb": peak_memory_mb() if device == CPU else read_peak_memory_mb(device),
        "bound_mb": max((one.total.high for one in bound.memory), default=0.0) / 2**20,
    }
