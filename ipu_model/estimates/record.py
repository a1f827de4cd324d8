"""What was estimated of a job next to what it then took: plain values, for result.json and the ledger of a host."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.errors import ConfigError, RowsError
from ipu_model.estimates.estimate import Interval, JobEstimate
from ipu_model.estimates.host import device_name
from ipu_model.estimates.job import Where, estimate_job
from ipu_model.estimates.shapes import decoder_flops, dense_flops, score_flops
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Choice, JobPlan, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest

MEMORY, SECONDS, TOKENS = "memory", "update_seconds", "tokens_per_second"
"""Figures of a record: bytes of the fullest device or process; seconds of an update, or of a call of predict; real
tokens in a second."""
NOT_OF_A_SHAPE = ("vocab_size", "type_vocab_size", "initializer_range", "layer_norm_eps")
"""Fields of ModelConfig that decide no memory and no time, or are among `sizes` of a shape."""
BACKWARD = 2
"""Passes backwards, in FLOPs of a pass forward: towards the weights, and towards what they were given."""


@dataclass(frozen=True)
class JobRecord:
    """The record of a job, begun when it was resolved on its host and before it trains."""

    device: str
    flops: float
    """Of an update, or of a call of predict: `useful_flops`."""
    expected: Mapping[str, Interval]
    """Figures of an estimate; none on CPU and CUDA, where the ledger of the host knows what such jobs took."""
    shape: Optional[Dict[str, Any]] = None
    """By which the ledger knows jobs on CPU and CUDA; None on IPUs."""

    def finish(
        self, memory: Optional[float], update_seconds: Optional[float], tokens_per_second: Optional[float]
    ) -> Dict[str, Any]:
        """The record: the device, the FLOPs of an update, and each measured figure next to low, likely and high.

        A figure that was not estimated has `measured` alone; one that was not measured (None) is left out.

        Args:
            memory: peak of what the estimate is of, bytes.
        """
        found: Dict[str, Any] = {"device": self.device, "flops": self.flops}
        for name, value in ((MEMORY, memory), (SECONDS, update_seconds), (TOKENS, tokens_per_second)):
            if value is not None and value > 0:
                interval = dataclasses.asdict(self.expected[name]) if name in self.expected else {}
                found[name] = {**interval, "measured": value}
        return found if self.shape is None else {**found, "shape": self.shape}


def begin_record(
    job: Job, plan: JobPlan, model: ModelConfig, manifest: Manifest, processes: int
) -> Optional[JobRecord]:
    """Begin the record of a job; None where the estimates know no such job, which is no reason not to run it."""
    if job.compile_only:
        return None  # nothing will be measured
    flops = useful_flops(model, manifest, rows_at_once(plan), job.kind != "predict")
    try:
        if plan.runtime != "ipu":
            shape = job_shape(job, model, manifest, processes)
            return JobRecord(device_name(plan.runtime, processes), flops, {}, shape)
        resolved = dataclasses.replace(job, runtime=plan.runtime, precision=plan.precision)
        estimate = estimate_job(resolved, manifest, model, Where(PopRunInstances(count=processes)))
    except (ConfigError, RowsError):
        return None
    return JobRecord(estimate.device, flops, figures_of(estimate, manifest.real_tokens / manifest.sequences))


def figures_of(estimate: JobEstimate, tokens_per_sequence: float) -> Dict[str, Interval]:
    """The figures of an estimate that can be measured.

    Args:
        tokens_per_sequence: real ones, on average.
    """
    found = {MEMORY: estimate.memory[0].total} if estimate.memory else {}
    if estimate.time is not None:
        speed = estimate.time.sequences_per_second
        found[SECONDS] = estimate.time.update_seconds
        found[TOKENS] = Interval(*(value * tokens_per_sequence for value in dataclasses.astuple(speed)))
    return found


def useful_flops(model: ModelConfig, manifest: Manifest, rows: float, training: bool) -> float:
    """FLOPs of the matrix products over so many rows, padding left out and sequences taken to be equally long.

    Args:
        rows: of an update, or of a call of predict.
    """
    if not manifest.rows or not manifest.sequences:
        return 0.0
    sequences = rows * manifest.sequences / manifest.rows
    length = manifest.real_tokens / manifest.sequences
    layer = dense_flops(model, 1) * length + score_flops(model, 1) * length * length
    forward = sequences * model.num_layers * layer + rows * decoder_flops(model, manifest.max_predictions)
    return forward * (1 + BACKWARD * training)


def job_shape(job: Job, model: ModelConfig, manifest: Manifest, processes: int) -> Dict[str, Any]:
    """Return what decides the memory and the time of a job on CPU or CUDA: the jobs of one shape take the same.

    `sizes` is what is only assumed of rows that are not there yet, and may differ a little; all else is as configured.
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
            "tokens": round(rows_at_once(plan) * manifest.real_tokens / manifest.rows, 1),
            "vocabulary": model.vocab_size,
        },
    }


def rows_at_once(plan: JobPlan) -> int:
    """Rows of an update, or of a call of predict."""
    return plan.rows_per_call if plan.kind == "predict" else plan.rows_per_update
