"""Training stages: compile the program of a device job or run it to its end, then save its curves and metrics."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ipu_model.core.files import read_json, sha256_of, write_json, write_text
from tasks.host.checkpoint_sync import sync_checkpoints
from tasks.host.launcher import launch_command
from tasks.jobs.device_job import (
    BatchGeometry,
    EvaluationConfig,
    Event,
    Job,
    JobResult,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    configure_model,
    format_figures,
    run_device_job,
)
from tasks.jobs.original import compare_with_original
from tasks.params.schema import DeviceParams, IpuParams, ModelParams
from tasks.params.sections import BatchParams, OptimizerParams, TrackingParams
from tasks.plan.code_state import git_state
from tasks.plan.named_files import require_readable
from tasks.stage import artifacts
from tasks.stage.errors import DeviceJobFailed, InputError
from tasks.stage.row_folders import Manifest, find_held_out_rows, read_manifest
from tasks.tracking.trackers import Trackers, describe_run

EXECUTION_ONLY = (
    "output",
    "run_folder",
    "checkpoint_every_minutes",
    "checkpoint_every_updates",
    "log_every_updates",
    "recompute",
    "compile_only",
    "executables",
    "original",
)
"""Fields of a job that do not affect its weights, such as paths and intervals."""
TABLE_PIECES = ("embedding_serialization_factor", "serialized_embedding_splits_per_ipu")
"""Keys of an ipu_config that only save memory; checkpoints contain the unsplit word embeddings."""
OF_THE_HOST = ("poptorch", "torch", "poplar_sdk", "ipu_version", "instances")
"""Parts of a fingerprint that depend on the host, not on the parameters: checked when a program is loaded, not
reported."""
IPU_CONFIG = "ipu_config.json"
"""Name of the file in the folder `ipu.config`."""


def model_config(params: ModelParams, manifest: Manifest) -> ModelConfig:
    """Return the architecture in params.yaml with the vocabulary size of the rows."""
    return configure_model(manifest.vocab_size, pad_id=manifest.pad_id, **params.model_dump())


def geometry(batch: BatchParams, device: DeviceParams) -> BatchGeometry:
    """Return the batch of a training job; on IPUs the IPU config sets the replicas, elsewhere each process is one."""
    copies = device.processes if device.launched_by == "torchrun" else 1
    return BatchGeometry(batch.global_batch_size, batch.micro_batch_size or device.micro_batch_size, copies)


def optimizer_config(params: OptimizerParams, batch: BatchParams) -> OptimizerConfig:
    """Return the optimizer of a training job."""
    return OptimizerConfig(
        name=params.optimizer,
        learning_rate=batch.learning_rate,
        loss_scaling=batch.loss_scaling,
        **params.model_dump(include=set(OptimizerParams.model_fields) - {"optimizer"}),
    )


def schedule_config(batch: BatchParams, **more: Any) -> ScheduleConfig:
    """Return the schedule of a training job; `more` has its steps or epochs."""
    return ScheduleConfig(
        warmup_fraction=batch.warmup_fraction, shape=batch.schedule, decay_fraction=batch.decay_fraction, **more
    )


def evaluation(rows: Path, every: float | None, **how: Any) -> EvaluationConfig | None:
    """Return the evaluation of a training job after `every` updates; None if it has no held-out rows or evaluations."""
    folder = find_held_out_rows(rows)
    return None if every is None or folder is None else EvaluationConfig(str(folder), every, **how)


def ipu_config(
    ipu: IpuParams, keys: Mapping[str, Any] | None, device: DeviceParams, root: Path = Path()
) -> dict[str, Any] | None:
    """Return the IPU config of a job: its own keys override the file `ipu.config`, which may be relative to `root`.

    Returns:
        The config; None on runtimes that do not use it.

    Raises:
        InputError: `ipu.config` does not exist, or is not a JSON object.
    """
    if device.runtime not in ("auto", "ipu"):
        return None
    path = root / ipu.config
    require_readable(path, "ipu.config")
    if path.is_dir():
        path = path / IPU_CONFIG
    values: Any = {}
    if path.exists():
        try:
            values = read_json(path)
        except ValueError as error:
            raise InputError(f"{path} is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise InputError(f"{path} must contain a JSON object, found {type(values).__name__}")
    return {**values, **(keys or {})}


def carried_executables(job: str, device: DeviceParams, root: Path = Path()) -> str | None:
    """Return the folder of programs from stage compile@<job>, which may have run on another host; None without IPUs."""
    return str(root / artifacts.EXECUTABLES / job) if device.runtime == "ipu" else None


def train(
    job: Job,
    name: str,
    root: Path = Path(),
    launcher: Sequence[str] = (),
    remote: str | None = None,
    tracking: TrackingParams | None = None,
) -> JobResult:
    """Run a training job; write `metrics/<name>.json`, `measurements/<name>.json`, and its curves in `plots/`.

    The run folder is `runs/<name>/<fingerprint>/`: a killed run resumes, and a run with other parameters or data starts
    from scratch without reading old checkpoints.

    Args:
        job: training job, without a run folder.
        launcher: command from launcher.launch_command.
        remote: `checkpoint.remote`, to sync checkpoints with.

    Raises:
        ParamsError: the remote cannot be used.
        DeviceJobFailed, StagePaused: see `run_device_job`; checkpoints stay for the next run.
    """
    runs = root / artifacts.RUNS / name
    folder, code = runs / fingerprint(job), git_state(root)
    with start_trackers(tracking, job, name, folder.name, root) as trackers:
        with sync_checkpoints(folder, remote, f"{name}/{folder.name}", root) as copy_saved:

            def on_event(event: Event) -> None:
                trackers.on_event(event)
                copy_saved(event)

            job = dataclasses.replace(job, run_folder=str(folder))
            result = run_device_job(job, launcher=launcher, on_event=on_event)
        stable, measured = {**figures(result), "fingerprint": folder.name}, measurements(result)
        write_text(root / artifacts.PLOTS / f"{name}.csv", (folder / "history.csv").read_text(encoding="utf-8"))
        evaluations = folder / "evaluations.csv"  # without evaluations the plot is empty
        curve = evaluations.read_text(encoding="utf-8") if evaluations.is_file() else "step,loss\n"
        write_text(root / artifacts.held_out_plot(name), curve)
        write_json(root / artifacts.METRICS / f"{name}.json", {**stable, "code": code, "versions": result.versions})
        write_json(root / artifacts.measurements_file(name), measured)
        trackers.close("finished", {name: {**stable, **measured}}, result.steps)
    for other in runs.iterdir():
        if other != folder:
            shutil.rmtree(other)  # checkpoints of replaced runs
    return result


def start_trackers(tracking: TrackingParams | None, job: Job, name: str, fingerprint: str, root: Path) -> Trackers:
    """Return the trackers of a training, with the parameters of its job; see tasks/tracking/trackers.py."""
    if tracking is None or not tracking.backends:
        return Trackers((), {})
    config = {field: value for field, value in job.fields.items() if field not in EXECUTION_ONLY}
    return Trackers(tracking.backends, describe_run(tracking, name, fingerprint, config, root))


def fingerprint(job: Job) -> str:
    """Return twelve hexadecimal digits that identify a job's computation: its fields, rows and initial weights."""
    parts: dict[str, Any] = job.fields
    for name in EXECUTION_ONLY:
        parts.pop(name, None)
    if job.ipu_config is not None:
        parts["ipu_config"] = {name: value for name, value in job.ipu_config.items() if name not in TABLE_PIECES}
    parts["rows"] = json.loads(read_manifest(Path(job.rows)).to_json())
    if job.evaluation is not None:
        parts["evaluation"]["rows"] = json.loads(read_manifest(Path(job.evaluation.rows)).to_json())
    if job.init_checkpoint is not None:
        parts["init_checkpoint"] = sha256_of(Path(job.init_checkpoint) / "model.safetensors")
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def figures(result: JobResult) -> dict[str, Any]:
    """Return the metrics of a training that parameters, data and code determine; held-out ones if it evaluated."""
    decided = {name: value for name, value in (result.evaluation or {}).items() if name not in ("seconds", "before")}
    held_out = {name: round(x, 6) if isinstance(x, float) else x for name, x in decided.items()}
    if result.evaluation is not None and "before" in result.evaluation:
        held_out["before"] = compare_with_original(result.evaluation["before"])
    return {
        "final_loss": result.final_loss,
        **{name: round(value, 6) for name, value in result.final_losses.items()},
        **({} if result.evaluation is None else {"held_out": held_out}),
        "steps": result.steps,
        **packing_figures(result),
        "runtime": result.runtime,
        "precision": result.precision,
    }


def measurements(result: JobResult) -> dict[str, Any]:
    """Return values that differ between equal trainings: time, memory, work before a resume, reasons of choices."""
    evaluating = {} if result.evaluation is None else {"held_out_seconds": result.evaluation["seconds"]}
    return {
        "sequences": result.sequences,
        "real_tokens": result.real_tokens,
        "real_tokens_per_second": round(result.real_tokens_per_second, 1),
        "train_seconds": round(result.train_seconds, 2),
        **evaluating,
        "peak_memory_mb": round(result.peak_memory_mb, 1),
        "resumed_from_step": result.resumed_from_step,
        "precision_reason": result.plan["precision_reason"],
        **(result.energy or {}),
        **program_measurements(result),
    }


def packing_figures(result: JobResult) -> dict[str, float]:
    """Return how full the rows of a job were: sequences per row, and the share of real tokens (0 to 1)."""
    return {name: result.plan[name] for name in ("packing_factor", "packing_efficiency")}


def program_measurements(result: JobResult) -> dict[str, Any]:
    """Return the origin of an IPU program (compiled and why, loaded, restored), and the seconds until it was ready."""
    if result.program is None:
        return {}
    return {"program": result.program, "compile_seconds": round(result.compile_seconds, 1)}


def require_verdict(name: str, stage: str | None = None) -> None:
    """Refuse to train on data without a passing verdict; `stage` writes it, by default validate@<name>.

    Raises:
        InputError: there is no passing verdict; the message names the stage that writes it.
    """
    path = artifacts.validation_report(name)
    if not path.is_file():
        raise InputError(f"{path} is missing: run `dvc repro {stage or f'validate@{name}'}` first")
    if not read_json(path)["valid"]:
        raise InputError(f"{path}: the data are not valid; see {path.with_suffix('.html')}")


def summary(name: str, result: JobResult) -> str:
    """Return the last output line of a training stage."""
    loss = "no update made" if result.final_loss is None else f"loss {result.final_loss:.4f}"
    resumed = f", resumed from update {result.resumed_from_step}" if result.resumed_from_step else ""
    held_out = f" (held out: {format_figures(result.evaluation)})" if result.evaluation is not None else ""
    return (
        f"{name}: {result.steps} updates{resumed}, {loss}{held_out}, {result.real_tokens_per_second:,.0f} tokens/s, "
        f"{result.train_seconds:.1f} s training, peak memory {result.peak_memory_mb:,.0f} MB "
        f"({result.runtime}, {result.precision})"
    )


def build_program(name: str, job: Job, device: DeviceParams, root: Path = Path()) -> str:
    """Compile the program of a job with random weights into `executables/<name>/`, and write its report.

    DVC transfers the programs to other hosts. Training depends on the report only, reports/compile-<job>.json: it has
    no times, no hashes of programs and no versions of the host, so that compiling again does not train again. Compiling
    needs rows, but no weights and no IPUs. The result is a line for users.

    Raises:
        DeviceJobFailed: see `run_device_job`; or the program was not saved.
    """
    folder, report = root / artifacts.EXECUTABLES / name, root / artifacts.compile_report(name)
    run_folder = root / artifacts.RUNS / f"compile-{name}"
    job = dataclasses.replace(
        job, output=str(folder), executables=str(folder), run_folder=str(run_folder), compile_only=True
    )
    result = run_device_job(job, launcher=launch_command(job, device))
    record = folder / artifacts.EXECUTABLES_RECORD
    if not record.is_file():
        raise DeviceJobFailed(f"{name}: the program was compiled, but {record} was not written")
    # The report has everything that determines the program except the host.
    decided = {part: value for part, value in read_json(record)["parts"].items() if part not in OF_THE_HOST}
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:16]
    write_json(report, {"job": name, "program": digest, "parts": decided})
    return f"compile {name}: program ready after {result.compile_seconds:.1f} s ({result.program}, {result.precision})"
