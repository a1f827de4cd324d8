"""Estimate of a job on any device, and the record of its estimates and measurements as plain values, for result.json
and the ledger of a host."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Optional

from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.estimates.estimate import FIGURES, MEMORY, SECONDS, TOKENS, Interval, JobEstimate
from ipu_model.estimates.host import device_name, estimate_host
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import JobPlan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest

MK2 = "mk2"
"""Default generation of IPUs: a name in ipu_constants.GENERATIONS."""
NOT_OF_A_SHAPE = ("vocab_size", "type_vocab_size", "initializer_range", "layer_norm_eps", "pad_id", "position_offset")
"""Fields of ModelConfig that affect neither memory nor time, or are among the `sizes` of a shape."""


def estimate_job(
    job: Job,
    manifest: Manifest,
    instances: PopRunInstances,
    limit: Optional[float] = None,
    generation: str = MK2,
) -> JobEstimate:
    """Estimate the memory of a job with a resolved runtime, and on IPUs its time; precision may be auto on a CPU.

    Args:
        job: with its architecture, as estimates do not read init_checkpoint.
        manifest: manifest of its rows, or one with assumed counts.
        limit: bytes of memory of each GPU, or of a host without GPUs. None: the memory of this host; unknown for a GPU.

    Raises:
        ConfigError: the job cannot run with these settings.
    """
    assert job.model is not None
    if job.runtime == "ipu":
        from ipu_model.estimates.ipu import estimate_ipus
        from ipu_model.estimates.ipu_constants import GENERATIONS

        return estimate_ipus(job, job.model, manifest, GENERATIONS[generation], instances)
    if job.precision == "fp16":  # runtimes/selection.py raises the same when the job begins
        raise ConfigError(f"the {job.runtime} runtime has no fp16: set device.precision to fp32, bf16 or auto")
    return estimate_host(job, job.model, manifest, instances.count, limit)


def suggest_layout(job: Job, manifest: Manifest, instances: PopRunInstances) -> str:
    """Describe a faster layout of a training on the same IPUs, by the same estimates; empty if there is none.

    For errors see `estimate_job`.
    """
    if job.kind == "predict" or job.runtime != "ipu":
        return ""
    from ipu_model.estimates.ipu import propose_layout

    assert job.model is not None
    proposal = propose_layout(job, job.model, manifest, instances)
    return proposal.describe() if proposal.is_worthwhile else ""


def begin_record(
    job: Job, plan: JobPlan, model: ModelConfig, manifest: Manifest, processes: int
) -> Optional[Dict[str, Any]]:
    """Begin the record of a job when it is resolved on its host, before it trains.

    It has the device and, on IPUs, low, likely and high of each estimated figure. On CPU and CUDA it has the shape that
    is its key in the ledger, which has measurements of such jobs. None if nothing will be measured, or if there is no
    estimate, which does not prevent the job from running.
    """
    if job.compile_only:
        return None
    try:
        if plan.runtime != "ipu":
            shape = job_shape(job, plan, model, manifest, processes)
            return {"device": device_name(plan.runtime, processes), "shape": shape}
        resolved = dataclasses.replace(job, runtime=plan.runtime, precision=plan.precision, model=model)
        estimate = estimate_job(resolved, manifest, PopRunInstances(count=processes))
    except (ConfigError, RowsError):
        return None
    figures = estimated_figures(estimate, manifest.real_tokens / manifest.sequences)
    return {"device": estimate.device, **{name: dataclasses.asdict(ends) for name, ends in figures.items()}}


def finish_record(record: Dict[str, Any], measured: Mapping[str, Optional[float]]) -> Dict[str, Any]:
    """Return the record with each measured figure next to its estimate; a figure that was not measured is left out."""
    rest = {name: value for name, value in record.items() if name not in FIGURES}
    return {**rest, **{name: {**record.get(name, {}), "measured": x} for name, x in measured.items() if x and x > 0}}


def estimated_figures(estimate: JobEstimate, tokens_per_sequence: float) -> Dict[str, Interval]:
    """Return the figures of an estimate that can be measured."""
    figures = {MEMORY: estimate.memory[0].total} if estimate.memory else {}
    if estimate.time is not None:
        speed = estimate.time.sequences_per_second
        figures[SECONDS] = estimate.time.update_seconds
        figures[TOKENS] = Interval(*(value * tokens_per_sequence for value in dataclasses.astuple(speed)))
    return figures


def job_shape(job: Job, plan: JobPlan, model: ModelConfig, manifest: Manifest, processes: int) -> Dict[str, Any]:
    """Return the values that decide the memory and the time of a job on CPU or CUDA: jobs of one shape need the same.

    `sizes` is assumed until the rows exist, and may differ slightly; all other values are as configured.
    """
    architecture = {name: value for name, value in dataclasses.asdict(model).items() if name not in NOT_OF_A_SHAPE}
    return {
        **architecture,
        "kind": job.kind,
        "head": job.head,
        "row_length": manifest.row_length,
        "max_sequences": manifest.max_sequences,
        "max_predictions": manifest.max_predictions,
        "global_batch_size": job.geometry.global_batch_size,
        "micro_batch_size": job.geometry.micro_batch_size,
        "processes": processes,
        "optimizer": "" if job.optimizer is None else job.optimizer.name,
        "recompute": job.recompute,
        "compile": job.compile,
        "evaluates": job.evaluation is not None,
        "sizes": {
            "tokens": round(rows_per_step(plan) * manifest.real_tokens / manifest.rows, 1),
            "vocabulary": model.vocab_size,
        },
    }


def rows_per_step(plan: JobPlan) -> int:
    """Return the rows of an update, or of a call of predict."""
    return plan.rows_per_call if plan.kind == "predict" else plan.rows_per_update
