"""The record of a job: what it took and, on IPUs, what was estimated when it began."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from ipu_model.errors import ConfigError, RowsError
from ipu_model.estimates.estimate import Interval
from ipu_model.estimates.host import device_name
from ipu_model.estimates.job import Where, estimate_job
from ipu_model.estimates.record import Measured, foretold, job_shape, record, rows_at_once, useful_flops
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Plan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.reading import RowFolder
from ipu_model.train.training import Totals

MB = float(1 << 20)


@dataclass(frozen=True)
class Expectation:
    """The job as it was resolved on its host, before it trains."""

    device: str
    plan: Plan
    flops: float
    """Of an update, or of a call of predict."""
    expected: Mapping[str, Interval]
    """Figures of an estimate; none on CPU and CUDA, where the ledger of the host knows what such jobs took."""
    shape: Optional[Dict[str, Any]]
    """By which the ledger knows jobs on CPU and CUDA; None on IPUs."""

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
        found = record(self.device, self.flops, self.expected, Measured(memory, seconds, tokens))
        return found if self.shape is None else {**found, "shape": self.shape}

    def _units(self, totals: Totals, first_step: int) -> float:
        """Updates that were made, or calls of predict; 0 where no time was taken."""
        if totals.seconds <= 0:
            return 0.0
        if self.plan.kind == "predict":
            return self.plan.rows / rows_at_once(self.plan)
        return float(totals.updates - first_step)


def expectation(job: Job, plan: Plan, model: ModelConfig, rows: RowFolder, processes: int) -> Optional[Expectation]:
    """What is expected of a job; None where the estimates know no such job, which is no reason not to run it."""
    if job.compile_only:
        return None  # nothing will be measured
    manifest = rows.manifest
    flops = useful_flops(model, manifest, rows_at_once(plan), job.kind != "predict")
    try:
        if plan.runtime != "ipu":
            shape = job_shape(job, model, manifest, processes)
            return Expectation(device_name(plan.runtime, processes), plan, flops, {}, shape)
        resolved = dataclasses.replace(job, runtime=plan.runtime, precision=plan.precision)
        estimate = estimate_job(resolved, manifest, model, Where(processes))
    except (ConfigError, RowsError):
        return None
    figures = foretold(estimate, manifest.real_tokens / manifest.sequences)
    return Expectation(estimate.device, plan, flops, figures, None)
