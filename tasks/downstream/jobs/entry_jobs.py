"""Stages compile, finetune and predict: device jobs of an entry.

    python -m tasks.downstream.jobs.entry_jobs finetune@NAME

compile builds the programs of both jobs before training starts (tasks/jobs/training.py); finetune trains on the packed
rows; predict computes the logits of the development sets, and of held-out examples if the kind needs them.
"""

import sys
from pathlib import Path

from ipu_model.core.files import write_json
from tasks.downstream.jobs.labels import labels_of, weigh_classes
from tasks.host.launcher import launch_command
from tasks.jobs import training
from tasks.jobs.device_job import BatchGeometry, Distillation, Job, JobResult, ModelConfig, run_device_job
from tasks.jobs.device_job import preload as preload  # called by the fork server
from tasks.params.entries import BASE, ENTRY_SECTIONS, TRAIN, Entry, entry_argument, find_entry, start_model
from tasks.params.schema import DeviceParams, ModelParams, Params, load_sections
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError
from tasks.stage.row_folders import read_manifest

FINETUNE, PREDICT = "finetune", "predict"


def build_finetune_job(entry: Entry, params: Params, root: Path = Path(), *, untrained: bool = False) -> Job:
    """Return the fine-tuning job of an entry, without a run folder.

    Args:
        untrained: start from random weights, so that the job can be compiled before pre-training has run.
    """
    device = params.device
    tuning, rows, start = entry.params.finetune, entry.rows_folder(TRAIN, root), start_model(entry)
    distill, taught = entry.params.distill, entry.training_rows
    untrained = untrained or start is None
    return Job(
        kind=FINETUNE,
        head=entry.params.head,
        labels=list(labels_of(entry, rows)) or None,
        class_weights=weigh_classes(entry, rows),
        rows=str(rows if taught is None else root / taught),
        output=str(root / artifacts.model_folder(entry.name)),
        run_folder="",
        geometry=training.geometry(tuning, device),
        runtime=device.runtime,
        precision=device.precision,
        compile=device.compile,
        recompute=device.recompute,
        seed=tuning.seed,
        model=model_override(entry, params.model, rows, whole=untrained or entry.start == BASE),
        init_checkpoint=None if start is None or untrained else str(root / start),
        optimizer=training.optimizer_config(tuning, tuning),
        schedule=training.schedule_config(tuning, epochs=tuning.epochs),
        checkpoint_every_minutes=tuning.checkpoint_every_minutes,
        checkpoint_every_updates=tuning.checkpoint_every_updates,
        evaluation=training.evaluation(rows, tuning.evaluate_every_updates, keep=tuning.keep, patience=tuning.patience),
        ipu_config=training.ipu_config(params.ipu, entry.params.ipu.finetune, device, root),
        executables=training.carried_executables(artifacts.job_name(entry.name, FINETUNE), device, root),
        layers=None if start is None or untrained else distill.layers,
        distillation=None if taught is None else Distillation(distill.temperature, distill.alpha),
        head_settings=entry.params.head_settings or None,
    )


def build_predict_job(
    entry: Entry,
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
    device = device or params.device
    return Job(
        kind=PREDICT,
        head=entry.params.head,
        labels=list(labels_of(entry, rows)) or None,
        rows=str(rows),
        output=str(logits),
        run_folder=str(run_folder),
        geometry=BatchGeometry(device.micro_batch_size, device.micro_batch_size),
        runtime=device.runtime,
        precision=device.precision,
        model=model_override(entry, params.model, rows, whole=True) if untrained else None,
        init_checkpoint=None if untrained else str(model or root / artifacts.model_folder(entry.name)),
        ipu_config=training.ipu_config(params.ipu, entry.params.ipu.predict, device, root),
        inference_execution=params.ipu.inference_execution,
        head_settings=entry.params.head_settings or None,
        executables=training.carried_executables(artifacts.job_name(entry.name, PREDICT), device, root),
    )


def model_override(entry: Entry, model: ModelParams, rows: Path, *, whole: bool) -> ModelConfig | None:
    """Return the model configuration if fine-tuning changes dropout or layers, or `whole` is set; None to use that of
    the weights."""
    changed = entry.params.finetune.model_dump(include={"hidden_dropout", "attention_dropout"}, exclude_none=True)
    if entry.params.distill.layers is not None:
        changed["num_layers"] = entry.params.distill.layers
    if not changed and not whole:
        return None
    return training.model_config(model.model_copy(update=changed), read_manifest(rows))


def require_valid_rows(entry: Entry) -> None:
    """Refuse rows whose validation failed or is missing."""
    training.require_verdict(entry.verdict("rows"), stage=entry.stage("rows"))


def build_programs(entry: Entry, params: Params) -> str:
    """Build the programs of both jobs: a folder of executables and a report each; return a summary."""
    rows, root = entry.rows_folder(entry.development[0]), Path()  # the development sets of an entry share a program
    jobs = {
        FINETUNE: build_finetune_job(entry, params, untrained=True),
        PREDICT: build_predict_job(entry, params, rows, root, root, untrained=True),
    }
    names = {kind: artifacts.job_name(entry.name, kind) for kind in jobs}
    return "\n".join(training.build_program(names[kind], job, params.device) for kind, job in jobs.items())


def finetune(entry: Entry, params: Params) -> str:
    """Fine-tune the model of an entry; return a summary.

    Raises:
        InputError: the rows are not valid, or there are none to evaluate.
    """
    require_valid_rows(entry)
    job = build_finetune_job(entry, params)
    if job.evaluation is None and entry.params.finetune.evaluate_every_updates is not None:
        raise InputError(
            f"{job.rows} has no held-out rows, required by {entry.key('finetune', 'evaluate_every_updates')}. Set "
            f"{entry.key('rows', 'held_out_fraction')} and run `dvc repro {entry.stage('rows')}`"
        )
    name, launcher = artifacts.job_name(entry.name, FINETUNE), launch_command(job, params.device)
    remote, tracking = params.checkpoint.remote, params.tracking
    return training.summary(name, training.train(job, name, launcher=launcher, remote=remote, tracking=tracking))


def predict(entry: Entry, params: Params) -> str:
    """Write the logits and figures of every predicted split; return a summary.

    Raises:
        InputError: the rows are not valid.
    """
    name, predicted, measured, lines = entry.name, {}, {}, []
    require_valid_rows(entry)
    (artifacts.PREDICTIONS / name).mkdir(parents=True, exist_ok=True)
    for split in entry.predicted:
        folder = artifacts.RUNS / artifacts.job_name(name, PREDICT) / split
        result = run_device_job(
            build_predict_job(entry, params, entry.rows_folder(split), artifacts.logits_file(name, split), folder)
        )
        predicted[split], measured[split] = prediction_figures(result), prediction_measurements(result)
        lines.append(
            f"{name} {split}: {result.sequences} sequences in {result.train_seconds:.1f} s "
            f"({result.real_tokens_per_second:,.0f} tokens/s, {result.runtime}, {result.precision})"
        )
    start = start_model(entry) if entry.params.compares_start else None
    for split in entry.development if start is not None else ():
        folder, logits = artifacts.RUNS / artifacts.job_name(name, PREDICT) / f"before-{split}", f"before-{split}"
        rows, target = entry.rows_folder(split), artifacts.logits_file(name, logits)
        run_device_job(build_predict_job(entry, params, rows, target, folder, model=start))
    for file, by_split in ((artifacts.metrics_file, predicted), (artifacts.measurements_file, measured)):
        write_json(file(name, PREDICT), next(iter(by_split.values())) if len(by_split) == 1 else by_split)
    return "\n".join(lines)


def prediction_figures(result: JobResult) -> dict[str, object]:
    """Return the reproducible figures of a prediction."""
    return {
        "features": result.sequences,
        "runtime": result.runtime,
        "precision": result.precision,
        **training.packing_figures(result),
    }


def prediction_measurements(result: JobResult) -> dict[str, object]:
    """Return the measurements of a prediction, which vary between runs."""
    return {
        "predict_seconds": round(result.train_seconds, 2),
        "real_tokens_per_second": round(result.real_tokens_per_second, 1),
        **training.program_measurements(result),
    }


STAGES = {"compile": build_programs, FINETUNE: finetune, PREDICT: predict}


def main() -> None:
    stage = entry_argument(f"Run a device job of a downstream task, named like {FINETUNE}@NAME.")
    what = stage.partition("@")[0]
    if what not in STAGES:
        raise ParamsError(f"{stage} is not a stage with a device job: name {', '.join(f'{x}@NAME' for x in STAGES)}")
    params = load_sections(*ENTRY_SECTIONS, "model", "device", "ipu", "checkpoint", "tracking")
    sys.stdout.write(STAGES[what](find_entry(params, stage), params) + "\n")


if __name__ == "__main__":
    run_main(main)
