"""Record of a job's estimates and measurements, as plain values, for result.json and the ledger of a host."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.errors import ConfigError, RowsError
from ipu_model.estimates.estimate import Interval, JobEstimate
from ipu_model.estimates.host import device_name
from ipu_model.estimates.job import JobHost, estimate_job
from ipu_model.estimates.shapes import decoder_flops, dense_flops, score_flops
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Choice, JobPlan, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest

MEMORY, SECONDS, TOKENS = "memory", "update_seconds", "tokens_per_second"
"""Figures of a record: bytes of the fullest device or process; seconds of an update, or of a call of predict; real
tokens per second."""
NOT_OF_A_SHAPE = ("vocab_size", "type_vocab_size", "initializer_range", "layer_norm_eps", "pad_id", "position_offset")
"""Fields of ModelConfig that affect neither memory nor time, or are among the `sizes` of a shape."""
BACKWARD = 2
"""FLOPs of the backward pass, in forward passes: one for the gradients of weights, one for those of inputs."""


@dataclass(frozen=True)
class JobRecord:
    """Record of a job, begun when the job is resolved on its host, before it trains."""

    device: str
    flops: float
    """`useful_flops` of an update, or of a call of predict."""
    expected: Mapping[str, Interval]
    """Estimated figures; empty on CPU and CUDA, where the ledger of the host has measurements of such jobs."""
    shape: Optional[Dict[str, Any]] = None
    """Key of jobs on CPU and CUDA in the ledger; None on IPUs."""

    def finish(
        self, memory: Optional[float], update_seconds: Optional[float], tokens_per_second: Optional[float]
    ) -> Dict[str, Any]:
        """Return the record: device, FLOPs of an update, and each measured figure next to low, likely and high.

        A figure that was not estimated has only `measured`; one that was not measured (None) is left out.

        Args:
            memory: peak memory of the estimated device or process, bytes.
        """
        record: Dict[str, Any] = {"device": self.device, "flops": self.flops}
        for name, value in ((MEMORY, memory), (SECONDS, update_seconds), (TOKENS, tokens_per_second)):
            if value is not None and value > 0:
                interval = dataclasses.asdict(self.expected[name]) if name in self.expected else {}
                record[name] = {**interval, "measured": value}
        return record if self.shape is None else {**record, "shape": self.shape}


def begin_record(
    job: Job, plan: JobPlan, model: ModelConfig, manifest: Manifest, processes: int
) -> Optional[JobRecord]:
    """Begin the record of a job; None if there is no estimate for it, which does not prevent the job from running."""
    if job.compile_only:
        return None  # nothing will be measured
    flops = useful_flops(model, manifest, rows_per_step(plan), job.kind != "predict")
    try:
        if plan.runtime != "ipu":
            shape = job_shape(job, model, manifest, processes)
            return JobRecord(device_name(plan.runtime, processes), flops, {}, shape)
        resolved = dataclasses.replace(job, runtime=plan.runtime, precision=plan.precision)
        estimate = estimate_job(resolved, manifest, model, JobHost(PopRunInstances(count=processes)))
    except (ConfigError, RowsError):
        return None
    return JobRecord(estimate.device, flops, estimated_figures(estimate, manifest.real_tokens / manifest.sequences))


def estimated_figures(estimate: JobEstimate, tokens_per_sequence: float) -> Dict[str, Interval]:
    """Return the figures of an estimate that can be measured.

    Args:
        tokens_per_sequence: average number of real tokens.
    """
    figures = {MEMORY: estimate.memory[0].total} if estimate.memory else {}
    if estimate.time is not None:
        speed = estimate.time.sequences_per_second
        figures[SECONDS] = estimate.time.update_seconds
        figures[TOKENS] = Interval(*(value * tokens_per_sequence for value in dataclasses.astuple(speed)))
    return figures


def useful_flops(model: ModelConfig, manifest: Manifest, rows: float, training: bool) -> float:
    """Return the FLOPs of the matrix products over `rows` rows, without padding and for sequences of equal length.

    Args:
        rows: rows of an update, or of a call of predict.
    """
    if not manifest.rows or not manifest.sequences:
        return 0.0
    sequences = rows * manifest.sequences / manifest.rows
    length = manifest.real_tokens / manifest.sequences
    layer = dense_flops(model, 1) * length + score_flops(model, 1) * length * length
    forward = sequences * model.num_layers * layer + rows * decoder_flops(model, manifest.max_predictions)
    return forward * (1 + BACKWARD * training)


def job_shape(job: Job, model: ModelConfig, manifest: Manifest, processes: int) -> Dict[str, Any]:
    """Return the values that decide the memory and the time of a job on CPU or CUDA: jobs of one shape need the same.

    `sizes` is assumed until the rows exist, and may differ slightly; all other values are as configured.
    """
    geometry = dataclasses.replace(job.geometry, replication_factor=processes)
    plan = make_plan(dataclasses.replace(job, geometry=geometry), manifest, Choice("", ""), Choice("", ""))
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
