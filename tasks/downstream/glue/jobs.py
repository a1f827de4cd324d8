"""The device jobs of a GLUE task: fine-tuning the pre-trained model, and prediction on a development set."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tasks.downstream.glue.tasks import TRAIN, GlueTask
from tasks.downstream.squad.finetune import own_model
from tasks.downstream.squad.predict import predict_job
from tasks.jobs.device_job import Job, ScheduleConfig
from tasks.jobs.training import carried_executables, geometry, ipu_config, optimizer_config
from tasks.project import artifacts
from tasks.project.params import PHASES, Params

HEAD = "sequence_classification"
IPU = "glue"
"""Key of the section `ipu` that these jobs read."""


def program_name(task: GlueTask, kind: str) -> str:
    """The name under which the program of a job is kept: executables/<name>/."""
    return f"glue-{task.name}-{kind}"


def glue_finetune_job(task: GlueTask, params: Params, root: Path = Path(), *, untrained: bool = False) -> Job:
    """The job that fine-tunes on a task, its run folder still to be chosen.

    Args:
        untrained: start from fresh weights, so that the job can be compiled before pre-training has run.
    """
    tuning, device = params.glue_finetune, params.device
    rows = root / artifacts.glue_rows_folder(task.name, TRAIN)
    base = params.base_model.source != "none" and not params.pretrain.enabled
    start = artifacts.BASE_MODEL if base else artifacts.MODELS / PHASES[-1]
    return Job(
        kind="finetune",
        head=HEAD,
        labels=list(task.labels),
        rows=str(rows),
        output=str(root / artifacts.glue_model(task.name)),
        run_folder="",
        geometry=geometry(tuning, device),
        runtime=device.runtime,
        precision=device.precision,
        compile=device.compile,
        seed=tuning.seed,
        model=own_model(tuning, params.model, rows, untrained or base),
        init_checkpoint=None if untrained else str(root / start),
        optimizer=optimizer_config(tuning, tuning),
        schedule=ScheduleConfig(epochs=tuning.epochs, warmup_fraction=tuning.warmup_fraction, shape=tuning.schedule),
        checkpoint_every_updates=tuning.checkpoint_every_updates,
        ipu_config=ipu_config(params.ipu, IPU, device, root),
        executables=carried_executables(program_name(task, "finetune"), device, root),
    )


def glue_predict_job(
    task: GlueTask, split: str, params: Params, root: Path = Path(), *, untrained: bool = False
) -> Job:
    """The job that predicts a development set of a task with its fine-tuned model, or with fresh weights."""
    rows, name = root / artifacts.glue_rows_folder(task.name, split), program_name(task, "predict")
    job = predict_job(
        root / artifacts.glue_model(task.name), rows, root / artifacts.glue_logits(task.name, split), params.device,
        params.ipu, root / artifacts.RUNS / f"glue-{task.name}-predict-{split}", root,
    )  # fmt: skip
    fresh = own_model(params.glue_finetune, params.model, rows, whole=True) if untrained else None
    return dataclasses.replace(
        job,
        head=HEAD,
        labels=list(task.labels),
        ipu_config=ipu_config(params.ipu, IPU, params.device, root),
        executables=carried_executables(name, params.device, root),
        model=fresh,
        init_checkpoint=None if untrained else job.init_checkpoint,
    )
