"""Our side: the project's own runtime over its own rows, as `python -m ipu_model` sets them up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.protocol import Session, Stopwatch
from bench.setup import OPTIMIZER, SEED, WARMUP_FRACTION, Training
from ipu_model.process import limit_spinning

limit_spinning()  # as python -m ipu_model does, before torch is imported

import torch  # noqa: E402

from ipu_model.data import RowFolder, UpdateRows  # noqa: E402
from ipu_model.host import keep_freed_memory  # noqa: E402
from ipu_model.instances import Instances  # noqa: E402
from ipu_model.job import BatchGeometry, Job, ScheduleConfig  # noqa: E402
from ipu_model.plan import Plan, make_plan  # noqa: E402
from ipu_model.preparation import make_model  # noqa: E402
from ipu_model.runtime import Runtime, choose_precision, choose_runtime, make_runtime, plan_device  # noqa: E402
from ipu_model.schedule import learning_rate  # noqa: E402


def train(spec: dict[str, Any], session: Session) -> None:
    """Measure updates, reading of the rows included; units are real tokens."""
    keep_freed_memory()
    torch.set_num_threads(spec["threads"])
    training = Training.from_spec(spec)
    rows = RowFolder(Path(training.rows), training.row_kind, training.model)
    job = make_job(training, spec["updates"] * spec["rounds"] + spec["warmup"], spec["settings"])
    runtime, plan = start(job, rows)
    order = UpdateRows(len(rows), plan.rows_per_update, job.seed)
    runtime.compile(rows.take(order(0)))
    watch, step = Stopwatch(), 0

    def update() -> Any:
        nonlocal step
        rate = learning_rate(step, plan.updates, plan.warmup_updates, OPTIMIZER.learning_rate)
        metrics = runtime.train_step(rows.take(order(step)), rate)
        step += 1
        return metrics

    for _ in range(spec["warmup"]):
        update()
    while session.next_round(precision=plan.precision, rows_per_update=plan.rows_per_update):
        samples = []
        watch.start()
        for _ in range(spec["updates"]):
            metrics = update()
            samples.append(watch.sample(metrics.real_tokens, loss=metrics.loss, sequences=metrics.sequences))
        session.report(samples)
    runtime.close()


def make_job(training: Training, updates: int, settings: dict[str, Any]) -> Job:
    """The job of a training; `settings` are laid over its fields, so that a variant is data."""
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


def start(job: Job, rows: RowFolder) -> tuple[Runtime, Plan]:
    """The runtime of a job with freshly drawn weights, by the same steps as ipu_model.running."""
    chosen = choose_runtime(job.runtime)
    precision = choose_precision(job.precision, chosen.value)
    assert job.model is not None
    device = plan_device(job, rows.manifest, job.model, chosen.value, precision.value, Instances(), _say_nothing)
    plan = make_plan(job, rows.manifest, chosen, precision, device)
    model = make_model(job, job.model, None, _say_nothing)
    return make_runtime(plan, job, model, job.model, device, _say_nothing), plan


def _say_nothing(event: str, **fields: Any) -> None:
    """Nobody reads the events of a measured job."""
