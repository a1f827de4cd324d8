"""What the training stages share: run a device job to its end, then file its curve and its figures."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from tasks import artifacts
from tasks.device_job import Job, JobResult, ModelConfig, run_device_job
from tasks.errors import InputError
from tasks.params import ModelParams
from tasks.rows import Manifest, read_manifest

EXECUTION_ONLY = ("output", "run_folder", "checkpoint_every_updates", "log_every_updates")
"""Fields of a job that say where and how often, not what."""


def model_config(params: ModelParams, manifest: Manifest) -> ModelConfig:
    """The architecture of params.yaml with the vocabulary size of the rows."""
    return ModelConfig(vocab_size=manifest.vocab_size, **params.model_dump())


def train(job: Job, name: str, root: Path = Path()) -> JobResult:
    """Run a training job and write `metrics/<name>.json` and `plots/<name>.csv` beside the model.

    The run folder is `runs/<name>/<fingerprint>/`, so that a run killed in the middle continues, and a
    run with other parameters or data starts afresh instead of stumbling over the old checkpoints.

    Raises:
        DeviceJobFailed: see `run_device_job`; checkpoints stay for the next run.
    """
    runs = root / artifacts.RUNS / name
    folder = runs / fingerprint(job)
    result = run_device_job(dataclasses.replace(job, run_folder=str(folder)))
    history = (folder / "history.csv").read_text(encoding="utf-8")
    artifacts.write_text(root / artifacts.PLOTS / f"{name}.csv", history)
    artifacts.write_json(root / artifacts.METRICS / f"{name}.json", figures(result))
    for other in runs.iterdir():
        if other != folder:
            shutil.rmtree(other)  # checkpoints of runs that this one replaced
    return result


def fingerprint(job: Job) -> str:
    """Twelve hexadecimal digits that name what a job computes: its fields, its rows and its initial weights."""
    parts: dict[str, Any] = dataclasses.asdict(job)
    for name in EXECUTION_ONLY:
        parts.pop(name)
    parts["rows"] = json.loads(read_manifest(Path(job.rows)).to_json())
    if job.init_checkpoint is not None:
        parts["init_checkpoint"] = artifacts.sha256_of(Path(job.init_checkpoint) / "model.safetensors")
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def figures(result: JobResult) -> dict[str, Any]:
    """The figures of a training run for `dvc metrics show`."""
    return {
        "final_loss": result.final_loss,
        **{name: round(value, 6) for name, value in result.final_losses.items()},
        "steps": result.steps,
        "sequences": result.sequences,
        "real_tokens": result.real_tokens,
        "real_tokens_per_second": round(result.real_tokens_per_second, 1),
        "train_seconds": round(result.train_seconds, 2),
        "peak_memory_mb": round(result.peak_memory_mb, 1),
        "resumed_from_step": result.resumed_from_step,
        "runtime": result.runtime,
        "precision": result.precision,
    }


def require_verdict(name: str, root: Path = Path()) -> None:
    """Refuse to train on data whose verdict is missing or red.

    Raises:
        InputError: naming the stage that writes the verdict.
    """
    path = root / artifacts.validation_report(name)
    if not path.is_file():
        raise InputError(f"{path} is missing: run `dvc repro validate@{name}` first")
    if not json.loads(path.read_text(encoding="utf-8"))["valid"]:
        raise InputError(f"{path} says the data are not valid; see {path.with_suffix('.html')}")


def summary(name: str, result: JobResult) -> str:
    """One line at the end of a training stage."""
    loss = "no update made" if result.final_loss is None else f"loss {result.final_loss:.4f}"
    resumed = f", resumed from update {result.resumed_from_step}" if result.resumed_from_step else ""
    return (
        f"{name}: {result.steps} updates{resumed}, {loss}, {result.real_tokens_per_second:,.0f} tokens/s, "
        f"{result.train_seconds:.1f} s training, peak memory {result.peak_memory_mb:,.0f} MB "
        f"({result.runtime}, {result.precision})"
    )
