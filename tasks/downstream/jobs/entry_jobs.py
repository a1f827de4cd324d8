"""Device jobs of an entry: fine-tuning, and prediction of its development sets."""

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


def build_finetune_job(task: DownstreamTask, params: Params, root: Path = Path(), *, untrained: bool = False) -> Job:
    """Return the fine-tuning job of an entry, without a run folder.

    Args:
        untrained: start from random weights, so that the job can be compiled before pre-training has run.
    """
    entry, device = task.entry, params.device
    tuning, rows, start = entry.params.finetune, task.rows_folder(TRAIN, root), start_model(entry)
    untrained = untrained or start is None
    return Job(
        kind=FINETUNE,
        head=task.head,
        labels=list(task.labels_of(rows)) or None,
        class_weights=task.class_weights(rows),
        rows=str(rows),
        output=str(root / artifacts.model_folder(entry.name)),
        run_folder="",
        geometry=geometry(tuning, device),
        runtime=device.runtime,
        precision=device.precision,
        compile=device.compile,
        recompute=device.recompute,
        seed=tuning.seed,
        model=model_override(entry, params.model, rows, whole=untrained or entry.start == BASE),
        init_checkpoint=None if start is None or untrained else str(root / start),
        optimizer=optimizer_config(tuning, tuning),
        schedule=ScheduleConfig(epochs=tuning.epochs, warmup_fraction=tuning.warmup_fraction, shape=tuning.schedule),
        checkpoint_every_minutes=tuning.checkpoint_every_minutes,
        checkpoint_every_updates=tuning.checkpoint_every_updates,
        evaluation=evaluation(rows, tuning.evaluate_every_updates, keep=tuning.keep, patience=tuning.patience),
        ipu_config=ipu_config(params.ipu, entry.params.ipu.finetune, device, root),
        executables=carried_executables(artifacts.job_name(entry.name, FINETUNE), device, root),
    )


def build_predict_job(
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
    """Return the job that predicts `rows` with the model of an entry and writes `logits` (an Arrow file).

    Args:
        run_folder: folder for its job.json, log and result.
        root: the checkout; a relative `ipu.config` is resolved from here.
        model: model to use instead of the entry's own.
        device: settings to use instead of section `device`.
        untrained: use random weights, so that the job can be compiled before training.
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
        model=model_override(entry, params.model, rows, whole=True) if untrained else None,
        init_checkpoint=None if untrained else str(model or root / artifacts.model_folder(entry.name)),
        ipu_config=ipu_config(params.ipu, entry.params.ipu.predict, device, root),
        inference_execution=params.ipu.inference_execution,
        executables=carried_executables(artifacts.job_name(entry.name, PREDICT), device, root),
    )


def model_override(entry: Entry, model: ModelParams, rows: Path, *, whole: bool) -> ModelConfig | None:
    """Return the model configuration if fine-tuning changes dropout or `whole` is set; None to use that of the
    weights."""
    changed = entry.params.finetune.model_dump(include={"hidden_dropout", "attention_dropout"}, exclude_none=True)
    if not changed and not whole:
        return None
    return model_config(model.model_copy(update=changed), read_manifest(rows))


def require_valid_rows(task: DownstreamTask) -> None:
    """Refuse rows whose validation failed or is missing.

    Raises:
        InputError: names the stage that writes the verdict.
    """
    require_verdict(task.entry.verdict("rows"), stage=task.entry.stage("validate_rows"))
