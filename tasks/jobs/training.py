"""What the training stages share: run a device job to its end, then file its curve and its figures."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ipu_model.files import read_json, sha256_of, write_json, write_text
from tasks.host.checkpoint_travel import travelling
from tasks.jobs.device_job import (
    BatchGeometry,
    EvaluationConfig,
    Event,
    Job,
    JobResult,
    ModelConfig,
    OptimizerConfig,
    figures_in_words,
    run_device_job,
)
from tasks.params.schema import DeviceParams, IpuParams, ModelParams
from tasks.params.sections import BatchParams, OptimizerParams, TrackingParams
from tasks.plan.code_state import git_state
from tasks.plan.named_files import require_readable
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import Manifest, find_held_out_rows, read_manifest
from tasks.tracking.trackers import Trackers, description, tracked

EXECUTION_ONLY = (
    "output",
    "run_folder",
    "checkpoint_every_minutes",
    "checkpoint_every_updates",
    "log_every_updates",
    "recompute",
    "compile_only",
    "executables",
)
"""Fields of a job that say where and how often, not what."""
TABLE_PIECES = ("embedding_serialization_factor", "serialized_embedding_splits_per_ipu")
"""Keys of an ipu_config that only save memory: checkpoints hold the word table whole, whatever it was cut into."""
IPU_CONFIG = "ipu_config.json"
"""Name of the file in the folder `ipu.config`."""


def model_config(params: ModelParams, manifest: Manifest) -> ModelConfig:
    """The architecture of params.yaml with the vocabulary size of the rows."""
    return ModelConfig(vocab_size=manifest.vocab_size, **params.model_dump())


def geometry(batch: BatchParams, device: DeviceParams) -> BatchGeometry:
    """The batch of a training job; on IPUs replicas are a matter of the IPU config, else each process is one."""
    copies = device.processes if device.launcher == "torchrun" else 1
    return BatchGeometry(batch.global_batch_size, batch.micro_batch_size or device.micro_batch_size, copies)


def optimizer_config(params: OptimizerParams, batch: BatchParams) -> OptimizerConfig:
    """The optimizer of a training job."""
    return OptimizerConfig(
        name=params.optimizer,
        learning_rate=batch.learning_rate,
        loss_scaling=batch.loss_scaling,
        **params.model_dump(include=set(OptimizerParams.model_fields) - {"optimizer"}),
    )


def evaluation(rows: Path, every: int | None, **how: Any) -> EvaluationConfig | None:
    """What a training job looks at while it trains; None where nothing was held out of its rows, or never is.

    Args:
        rows: row folder of the training.
        every: updates between evaluations; None for never.
        how: other fields of EvaluationConfig.
    """
    folder = find_held_out_rows(rows)
    return None if every is None or folder is None else EvaluationConfig(str(folder), every, **how)


def ipu_config(
    ipu: IpuParams, keys: Mapping[str, Any] | None, device: DeviceParams, root: Path = Path()
) -> dict[str, Any] | None:
    """The IPU config of a job: its own keys laid over the file `ipu.config`.

    Args:
        ipu: section `ipu`.
        keys: of an ipu_config.json, which the parameters state for this job.
        device: section `device`.
        root: what a relative `ipu.config` counts from.

    Returns:
        None on runtimes that do not read it.

    Raises:
        InputError: `ipu.config` is not there, or holds no JSON object.
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
            raise InputError(f"{path} must hold one JSON object, found {type(values).__name__}")
    return {**values, **(keys or {})}


def carried_executables(job: str, device: DeviceParams, root: Path = Path()) -> str | None:
    """The folder of programs that stage compile@<job> filled, here or on another host; None where there are none.

    Args:
        job: phase1, phase2, or <entry>-finetune and -predict.
        device: section `device`.
        root: the checkout.
    """
    return str(root / artifacts.executables_folder(job)) if device.runtime == "ipu" else None


def train(
    job: Job,
    name: str,
    root: Path = Path(),
    launcher: Sequence[str] = (),
    remote: str | None = None,
    tracking: TrackingParams | None = None,
) -> JobResult:
    """Run a training job; write `metrics/<name>.json`, `measurements/<name>.json`, and its curves in `plots/`.

    The run folder is `runs/<name>/<fingerprint>/`, so that a run killed in the middle continues, and a
    run with other parameters or data starts afresh instead of stumbling over the old checkpoints.

    Args:
        job: its run folder is chosen here.
        name: of the stage, for files.
        root: the checkout.
        launcher: from launcher.launch_words.
        remote: `checkpoint.remote`, where checkpoints travel to and come from.
        tracking: section `tracking`; None: nothing watches.

    Raises:
        ParamsError: the remote cannot be used.
        DeviceJobFailed, StagePaused: see `run_device_job`; checkpoints stay for the next run.
    """
    runs = root / artifacts.RUNS / name
    folder, code = runs / fingerprint(job), git_state(root)
    with watching(tracking, job, name, folder.name, root) as trackers:
        with travelling(folder, remote, f"{name}/{folder.name}", root) as carry:

            def on_event(event: Event) -> None:
                trackers.on_event(event)
                if carry is not None:
                    carry(event)

            job = dataclasses.replace(job, run_folder=str(folder))
            result = run_device_job(job, launcher=launcher, on_event=on_event)
        found, measured = {**figures(result), "fingerprint": folder.name}, measurements(result)
        file_curves(folder, name, root)
        write_json(root / artifacts.METRICS / f"{name}.json", {**found, "code": code, "versions": result.versions})
        write_json(root / artifacts.measurements_file(name), measured)
        trackers.close("finished", {name: {**found, **measured}}, result.steps)
    for other in runs.iterdir():
        if other != folder:
            shutil.rmtree(other)  # checkpoints of runs that this one replaced
    return result


def watching(
    tracking: TrackingParams | None, job: Job, name: str, fingerprint: str, root: Path
) -> AbstractContextManager[Trackers]:
    """The trackers of a training, which hear the parameters of its job first; see tasks/tracking/trackers.py."""
    if tracking is None or not tracking.backends:
        return tracked((), {})
    config = {field: value for field, value in dataclasses.asdict(job).items() if field not in EXECUTION_ONLY}
    return tracked(tracking.backends, description(tracking, name, fingerprint, config, root))


def file_curves(folder: Path, name: str, root: Path) -> None:
    """Copy the curves of a run folder to plots/."""
    history = (folder / "history.csv").read_text(encoding="utf-8")
    write_text(root / artifacts.PLOTS / f"{name}.csv", history)
    evaluations = folder / "evaluations.csv"  # none of a job that was not evaluated: the plot is empty then
    curve = evaluations.read_text(encoding="utf-8") if evaluations.is_file() else "step,loss\n"
    write_text(root / artifacts.held_out_plot(name), curve)


def fingerprint(job: Job) -> str:
    """Twelve hexadecimal digits that name what a job computes: its fields, its rows and its initial weights."""
    parts: dict[str, Any] = dataclasses.asdict(job)
    for name in EXECUTION_ONLY:
        parts.pop(name)
    if job.ipu_config is not None:
        parts["ipu_config"] = {name: value for name, value in job.ipu_config.items() if name not in TABLE_PIECES}
    parts["rows"] = json.loads(read_manifest(Path(job.rows)).to_json())
    if job.evaluation is not None:
        parts["evaluation"]["rows"] = json.loads(read_manifest(Path(job.evaluation.rows)).to_json())
    if job.init_checkpoint is not None:
        parts["init_checkpoint"] = sha256_of(Path(job.init_checkpoint) / "model.safetensors")
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def figures(result: JobResult) -> dict[str, Any]:
    """Return the figures of a training that its parameters, data and code decide."""
    return {
        "final_loss": result.final_loss,
        **{name: round(value, 6) for name, value in result.final_losses.items()},
        **held_out_figures(result),
        "steps": result.steps,
        **packing_figures(result),
        "runtime": result.runtime,
        "precision": result.precision,
    }


def measurements(result: JobResult) -> dict[str, Any]:
    """Return what equal trainings differ in: time, memory, what was done before a resume, how a choice came about."""
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
        **program_measurements(result),
    }


def packing_figures(result: JobResult) -> dict[str, float]:
    """How full the rows of a job were: sequences a row, and the share of their tokens that is no padding (0 to 1)."""
    return {name: result.plan[name] for name in ("packing_factor", "packing_efficiency")}


def held_out_figures(result: JobResult) -> dict[str, Any]:
    """Figures of the saved weights on held-out rows (ipu_model/train/evaluation.py); none without evaluation."""
    if result.evaluation is None:
        return {}
    decided = ((name, value) for name, value in result.evaluation.items() if name != "seconds")
    shown = {name: round(x, 6) if isinstance(x, float) else x for name, x in decided}
    return {"held_out": shown}


def program_measurements(result: JobResult) -> dict[str, Any]:
    """On IPUs: how the program came to be (built and why, loaded, restored), and the seconds until it was ready."""
    if result.program is None:
        return {}
    return {"program": result.program, "compile_seconds": round(result.compile_seconds, 1)}


def require_verdict(name: str, stage: str | None = None) -> None:
    """Refuse to train on data whose verdict is missing or red; `stage` writes it, validate@<name> by default.

    Raises:
        InputError: naming the stage that writes the verdict.
    """
    path = artifacts.validation_report(name)
    if not path.is_file():
        raise InputError(f"{path} is missing: run `dvc repro {stage or f'validate@{name}'}` first")
    if not read_json(path)["valid"]:
        raise InputError(f"{path} says the data are not valid; see {path.with_suffix('.html')}")


def summary(name: str, result: JobResult) -> str:
    """One line at the end of a training stage."""
    loss = "no update made" if result.final_loss is None else f"loss {result.final_loss:.4f}"
    resumed = f", resumed from update {result.resumed_from_step}" if result.resumed_from_step else ""
    held_out = f" (held out: {figures_in_words(result.evaluation)})" if result.evaluation is not None else ""
    return (
        f"{name}: {result.steps} updates{resumed}, {loss}{held_out}, {result.real_tokens_per_second:,.0f} tokens/s, "
        f"{result.train_seconds:.1f} s training, peak memory {result.peak_memory_mb:,.0f} MB "
        f"({result.runtime}, {result.precision})"
    )
