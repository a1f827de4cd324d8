"""Our side on a GPU: the runtime of a job, as ipu_model.train.job_runner makes it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from bench.gpu.cases import CPU, GpuCase, HeldRows
from bench.gpu.device import read_clock, read_peak_memory_mb
from bench.ours import start_runtime
from bench.protocol import Sample, Session
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import JobPlan
from ipu_model.models.flat import flatten
from ipu_model.rows.row_folder import Batch, RowFolder
from ipu_model.runtimes.host import keep_freed_memory
from ipu_model.runtimes.runtime import Runtime
from ipu_model.train.training import make_update_rows

RATE = 1e-4
"""Learning rate of every update: it does not change the time."""


@contextlib.contextmanager
def start_updates(job: Job, rows: RowFolder, warmup: int) -> Iterator[tuple[Runtime, JobPlan, Iterator[Batch]]]:
    """Start a training with random weights; yield its runtime and plan, and the batches after those of the warm-up."""
    runtime, plan = start_runtime(job, rows)
    order = make_update_rows(job, plan, rows, runtime)
    with closing(runtime), closing(runtime.calls(rows, order, range(plan.updates))) as batches:
        for _ in range(warmup):
            runtime.train_step(next(batches), RATE)
        yield runtime, plan, batches


def train(spec: dict[str, Any], session: Session) -> None:
    """Measure rounds of updates, reading included; one sample a round, its units are real tokens."""
    keep_freed_memory()
    case, device = GpuCase(**spec["case"]), spec["device"]
    rows = HeldRows(case)
    compiling = {} if device == CPU else {"compile": spec["settings"]["compile"]}
    updates = spec["warmup"] + spec["updates"] * spec["rounds"]
    job = case.make_job(device, updates, **compiling)
    with start_updates(job, rows, spec["warmup"]) as (runtime, plan, batches):
        read_peak_memory_mb(device)
        while session.next_round(compile=plan.compile, compile_reason=plan.compile_reason):
            done, tokens, began = list[Batch](), 0.0, read_clock(device)
            for batch in itertools.islice(batches, spec["updates"]):
                tokens += runtime.train_step(batch, RATE).real_tokens
                done.append(batch)
            seconds = read_clock(device) - began
            flops = sum(count_flops(case, batch) for batch in done)
            session.report([Sample(seconds, seconds, tokens, {"flops": flops, "peak_mb": read_peak_memory_mb(device)})])


def count_flops(case: GpuCase, batch: Batch) -> int:
    """Return the operations of an update over these rows."""
    masked = int(batch.labels("masked_labels")) if case.head == "pretraining" else 0
    return case.count_flops(flatten(batch).lengths.tolist(), masked)
