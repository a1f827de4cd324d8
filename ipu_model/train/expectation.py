"""What is expected of a job when it begins, and put beside what it took when it has ended."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Optional

import numpy as np

from ipu_model.errors import ConfigError, RowsError
from ipu_model.estimates.estimate import JobEstimate
from ipu_model.estimates.host_shapes import LOOKED_AT, Shapes, read_shapes
from ipu_model.estimates.job import Where, estimate_job
from ipu_model.estimates.record import Measured, record, rows_at_once, useful_flops
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Plan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.reading import RowFolder
from ipu_model.train.training import Totals

MB = float(1 << 20)


@dataclass(frozen=True)
class Expectation:
    """An estimate of the job as it was resolved on its host."""

    estimate: JobEstimate
    plan: Plan
    flops: float
    """Of an update, or of a call of predict."""
    tokens_per_sequence: float

    def beside(self, totals: Totals, first_step: int, memory_mb: Optional[float]) -> Dict[str, Any]:
        """The record of the job, see estimates/record.py.

        Args:
            first_step: updates before this process.
            memory_mb: peak of what the estimate is of, MB of 2**20 bytes; None: not measured.
        """
        seconds = tokens = None
        if done := self._units(totals, first_step):
            seconds, tokens = totals.seconds / done, totals.real_tokens / totals.seconds
        memory = None if memory_mb is None else memory_mb * MB
        return record(self.estimate, self.tokens_per_sequence, self.flops, Measured(memory, seconds, tokens))

    def _units(self, totals: Totals, first_step: int) -> float:
        """Updates that were made, or calls of predict; 0 where no time was taken."""
        if totals.seconds <= 0:
            return 0.0
        if self.plan.kind == "predict":
            return self.plan.rows / rows_at_once(self.plan)
        return float(totals.updates - first_step)


def sampled_shapes(plan: Plan, rows: RowFolder) -> Shapes:
    """What micro-batches of a job on CPU or CUDA hold, each of rows from all over the folder.

    Not its first ones: the order of an epoch takes seconds of sorting where there are many rows, and the training sorts
    them again.

    Raises:
        RowsError: damaged rows.
    """
    size = min(plan.micro_batch_size, len(rows))
    batches = min(LOOKED_AT, len(rows) // size)
    spread = np.arange(batches * size) * len(rows) // (batches * size)
    numbers = spread.reshape(size, batches).T.reshape(-1)
    return read_shapes(rows, size, lambda update: numbers, 1).of(plan.micro_batch_size)


def expectation(job: Job, plan: Plan, model: ModelConfig, rows: RowFolder, processes: int) -> Optional[Expectation]:
    """What is expected of a job; None where the estimates know no such job, which is no reason not to run it."""
    if job.compile_only:
        return None  # nothing will be measured
    manifest = rows.manifest
    resolved = dataclasses.replace(job, runtime=plan.runtime, precision=plan.precision)
    try:
        shapes = None if plan.runtime == "ipu" else sampled_shapes(plan, rows)
        estimate = estimate_job(resolved, manifest, model, Where(processes, shapes=shapes))
    except (ConfigError, RowsError):  # damaged rows are told where the job comes to them
        return None
    flops = useful_flops(model, manifest, rows_at_once(plan), job.kind != "predict")
    return Expectation(estimate, plan, flops, manifest.real_tokens / manifest.sequences)
