"""Our side: the project's runtime and rows, set up as by `python -m ipu_model`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.flops import answering_flops, pretraining_flops
from bench.protocol import Sample, Session, Stopwatch
from bench.setup import OPTIMIZER, SEED, WARMUP_FRACTION, Training
from ipu_model.distributed.instances import Instances
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.jobs.plan import JobPlan, make_plan
from ipu_model.models.model_folder import ModelFolder
from ipu_model.rows.row_folder import Batch, RowFolder, UpdateRows
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
from ipu_model.train.auto_precision import choose_faster
from ipu_model.train.preparation import make_model
from ipu_model.train.training import learning_rate


def train(spec: dict[str, Any], session: Session) -> None:
    """Measure updates including reading the rows; units are real tokens."""
    prepare_host(spec["threads"])
    training = Training.from_spec(spec)
    rows = RowFolder(Path(training.rows), training.row_kind, training.model)
    job = make_job(training, spec["updates"] * spec["rounds"] + spec["warmup"], spec["settings"])
    run_updates(spec, session, rows, *start_runtime(job, rows), lambda batch: count_flops(training, batch))


def run_updates(
    spec: dict[str, Any],
    session: Session,
    rows: RowFolder,
    runtime: Runtime,
    plan: JobPlan,
    count: Callable[[Batch], int] = lambda batch: 0,
) -> None:
    """Measure updates of a runtime, as `train`.

    Args:
        count: Returns the operations of an update.
    """
    order = UpdateRows(len(rows), plan.rows_per_update, SEED)
    runtime.compile(rows.take(order(0)))
    watch, reading, step = Stopwatch(), Stopwatch(), 0

    def update() -> Sample:
        nonlocal step
        reading.start()
        batch = rows.take(order(step))
        read = reading.sample(len(batch.rows))
        rate = learning_rate(step, plan.updates, plan.warmup_updates, OPTIMIZER.learning_rate)
        metrics = runtime.train_step(batch, rate)
        step += 1
        return watch.sample(
            metrics.real_tokens, loss=metrics.loss, sequences=metrics.sequences, read_cpu=read.cpu, flops=count(batch)
        )

    for _ in range(spec["warmup"]):
        update()
    while session.next_round(**describe_precision(plan), rows_per_update=plan.rows_per_update):
        watch.start()
        session.report([update() for _ in range(spec["updates"])])
    runtime.close()


def prepare_host(threads: int) -> None:
    """Apply the process settings of `python -m ipu_model`."""
    keep_freed_memory()
    torch.set_num_threads(threads)


def count_flops(training: Training, batch: Batch) -> int:
    """Return the operations of one update over these rows (flops.py)."""
    ids = batch.columns["sequence_ids"].astype(np.int64) + 256 * np.arange(len(batch.rows))[:, None]
    distinct, counts = np.unique(ids, return_counts=True)
    lengths = counts[distinct % 256 != 0].tolist()
    if training.task == "pretrain":
        return pretraining_flops(training.model, lengths, int(batch.labels("masked_labels")))
    return answering_flops(training.model, lengths)


def make_job(training: Training, updates: int, settings: dict[str, Any]) -> Job:
    """Make the job of a training; `settings` override its fields, so that variants are plain data."""
    job = Job(
        kind="pretrain" if training.task == "pretrain" else "finetune",
        head=training.head,
        rows=training.rows,
        output="",
        run_folder="",
        geometry=BatchGeometry(training.sequences),
        runtime="cpu",
        seed=SEED,
        model=training.model,
        optimizer=OPTIMIZER,
        schedule=ScheduleConfig(steps=updates, warmup_fraction=WARMUP_FRACTION),
    )
    return Job.from_json(json.dumps({**json.loads(job.to_json()), **settings}))


def start_runtime(job: Job, rows: RowFolder, base: ModelFolder | None = None) -> tuple[Runtime, JobPlan]:
    """Make the runtime of a job, by the steps of ipu_model.train.job_runner.

    Args:
        base: model to start from; None: random weights.
    """
    chosen, config = choose_runtime(job.runtime), job.model
    precision = choose_precision(job.precision, chosen.value)
    assert config is not None
    device = plan_device(job, rows.manifest, config, chosen.value, precision.value, Instances(), say_nothing)
    plan = make_plan(job, rows.manifest, chosen, precision, device)
    if plan.precision == "auto":
        plan = plan.with_precision(choose_faster(plan, rows))
    plan = plan.with_compilation(plan_compilation(job.compile, chosen.value))
    if plan.compile == "auto":
        plan = plan.with_compilation(choose_compilation(plan, config, rows, 0, say_nothing, job.compile))
    return make_runtime(plan, job, make_model(job, config, base, say_nothing), config, device, say_nothing), plan


def describe_precision(plan: JobPlan) -> dict[str, str]:
    """Return the precision of a configuration and its reason."""
    return {"precision": plan.precision, "precision_reason": plan.precision_reason}


def say_nothing(event: str, **fields: Any) -> None:
    """Discard the events of a measured job."""
