"""Our side on a GPU: the runtime of a job, as ipu_model.train.job_runner makes it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np

from bench.gpu.cases import CPU, GpuCase, HeldRows
from bench.gpu.device import read_clock, read_peak_memory_mb
from bench.ours import say_nothing
from bench.protocol import Sample, Session
from ipu_model.distributed.instances import Instances
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import JobPlan, make_plan
from ipu_model.models.flat import flatten
from ipu_model.rows.row_folder import RowFolder
from ipu_model.runtimes.host import keep_freed_memory
from ipu_model.runtimes.runtime import Runtime
from ipu_model.runtimes.selection import (
    choose_precision,
    choose_runtime,
    make_runtime,
    plan_compilation,
    plan_device,
)
from ipu_model.train.auto_compile import choose_compilation
from ipu_model.train.preparation import make_model
from ipu_model.train.training import make_update_rows


def start_runtime(job: Job, rows: RowFolder) -> tuple[Runtime, JobPlan]:
    """Make the runtime of a job with random weights."""
    assert job.model is not None
    chosen, precision = choose_runtime(job.runtime), choose_precision(job.precision, job.runtime)
    plan_device(job, rows.manifest, job.model, chosen.value, precision.value, Instances(), say_nothing)
    plan = make_plan(job, rows.manifest, chosen, precision)
    plan = plan.with_compilation(plan_compilation(job.compile, chosen.value))
    if plan.compile == "auto":
        plan = plan.with_compilation(choose_compilation(plan, job.model, rows, 0, say_nothing, job.compile))
    model = make_model(job, job.model, None, say_nothing)
    return make_runtime(plan, job, model, job.model, None, say_nothing), plan


def train(spec: dict[str, Any], session: Session) -> None:
    """Measure rounds of updates, reading included; one sample a round, its units are real tokens."""
    keep_freed_memory()
    case, device = GpuCase(**spec["case"]), spec["device"]
    rows = HeldRows(case)
    compiling = {} if device == CPU else {"compile": spec["settings"]["compile"]}
    updates = spec["warmup"] + spec["updates"] * spec["rounds"]
    job = case.make_job(device, updates, **compiling)
    runtime, plan = start_runtime(job, rows)
    order = make_update_rows(job, plan, rows, runtime)
    numbers = [order(step) for step in range(updates)]
    with closing(runtime), closing(runtime.calls(rows, order, range(updates))) as batches:
        for _ in range(spec["warmup"]):
            runtime.train_step(next(batches), 1e-4)
        step = spec["warmup"]
        read_peak_memory_mb(device)
        while session.next_round(compile=plan.compile, compile_reason=plan.compile_reason):
            tokens, began = 0.0, read_clock(device)
            for batch in (next(batches) for _ in range(spec["updates"])):
                tokens += runtime.train_step(batch, 1e-4).real_tokens
            seconds = read_clock(device) - began
            flops = sum(count_flops(case, rows, numbers[at]) for at in range(step, step + spec["updates"]))
            step += spec["updates"]
            session.report([Sample(seconds, seconds, tokens, {"flops": flops, "peak_mb": read_peak_memory_mb(device)})])


def count_flops(case: GpuCase, rows: RowFolder, numbers: np.ndarray) -> int:
    """Return the operations of an update over the rows with these numbers."""
    batch = rows.take(numbers[numbers >= 0])
    masked = int(batch.labels("masked_labels")) if case.head == "pretraining" else 0
    return case.count_flops(flatten(batch).lengths.tolist(), masked)
