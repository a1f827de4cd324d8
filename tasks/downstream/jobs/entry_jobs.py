"""The device jobs of an entry: fine-tuning its model, and the prediction of its development sets."""

from __future__ import annotations

from pathlib import Path

from tasks.jobs.device_job import BatchGeometry, Job, ModelConfig, ScheduleConfig
from tasks.jobs.training import (
    carried_executables,
    evaluation,
    geometry,
    ipu_config,
    model_config,
    optimizer_config,
    require_verdict,
)
from tasks.params.entries import BASE, Entry, start_model
from tasks.params.schema import DeviceParams, ModelParams, Params
from tasks.plan.kinds import TRAIN, DownstreamTask
from tasks.stage import artifacts
from tasks.stage.row_folders import read_manifest

FINETUNE, PREDICT = "finetune", "predict"


def finetune_job(task: DownstreamTask, params: Params, root: Path = Path(), *, untrained: bool = False) -> Job:
    """The job that fine-tunes for an entry, its run folder still to be chosen.

    Args:
        untrained: start from fresh weights, so that the job can be compiled before pre-training has run.
    """
    entry, device = task.entry, params.device
    tuning, rows, start = entry.params.finetune, task.rows_folder(TRAIN, root), start_model(entry)
    untrained = untrained or start is None
    return Job(
        kind=FINETUNE,
        head=task.head,
        labels=list(task.labels_of(rows)) or None,
        rows=str(rows),
        output=str(root / artifacts.model_folder(entry.name)),
        run_folder="",
        geometry=geometry(tuning, device),
        runtime=device.runtime,
        precision=device.precision,
        compile=device.compile,
        recompute=device.recompute,
        seed=tuning.seed,
        model=own_model(entry, params.model, rows, whole=untrained or entry.start == BASE),
        init_checkpoint=None if start is None or untrained else str(root / start),
        optimizer=optimizer_config(tuning, tuning),
        schedule=ScheduleConfig(epochs=tuning.epochs, warmup_fraction=tuning.warmup_fraction, shape=tuning.schedule),
        checkpoint_every_minutes=tuning.checkpoint_every_minutes,
        checkpoint_every_updates=tuning.checkpoint_every_updates,
        evaluation=evaluation(rows, tuning.evaluate_every_updates, keep=tuning.keep, patience=tuning.patience),
        ipu_config=ipu_config(params.ipu, entry.params.ipu.finetune, device, root),
        executables=carried_executables(artifacts.job_name(entry.name, FINETUNE), device, root),
    )


def predict_job(
    task: DownstreamTask,
    params: Params,
    rows: Path,
    logits: Path,
    run_folder: Path,
    root: Path = Path(),
    *,
    model: Path | None = None,
    device: DeviceParams | None = None,
    untrained: bool = False,
) -> Job:
    """The job that runs the model of an entry over `rows` and writes `logits` (an Arrow file).

    Args:
        run_folder: for its job.json, log and result.
        root: the checkout, which a relative `ipu.config` counts from.
        model: another model than the entry's own.
        device: another place than section `device` names.
        untrained: fresh weights, so that the job can be compiled before anything is trained.
    """
    entry, device = task.entry, device or params.device
    return Job(
        kind=PREDICT,
        head=task.head,
        labels=list(task.labels_of(rows)) or None,
        rows=str(rows),
        output=str(logits),
        run_folder=str(run_folder),
        geometry=BatchGeometry(device.micro_batch_size, device.micro_batch_size),
        runtime=device.runtime,
        precision=device.precision,
        model=own_model(entry, params.model, rows, whole=True) if untrained else None,
        init_checkpoint=None if untrained else str(model or root / artifacts.model_folder(entry.name)),
        ipu_config=ipu_config(params.ipu, entry.params.ipu.predict, device, root),
        inference_execution=params.ipu.inference_execution,
        executables=carried_executables(artifacts.job_name(entry.name, PREDICT), device, root),
    )


def own_model(entry: Entry, model: ModelParams, rows: Path, *, whole: bool) -> ModelConfig | None:
    """The architecture where fine-tuning states other dropout than pre-training had, or `whole` asks for it; else None,
    that of its weights."""
    changed = entry.params.finetune.model_dump(include={"hidden_dropout", "attention_dropout"}, exclude_none=True)
    if not changed and not whole:
        return None
    return model_config(model.model_copy(update=changed), read_manifest(rows))


def require_valid_rows(task: DownstreamTask) -> None:
    """Refuse rows whose verdict is missing or red.

    Raises:
        InputError: naming the stage that writes the verdict.
    """
    require_verdict(task.entry.verdict("rows"), stage=task.entry.stage("validate_rows"))
