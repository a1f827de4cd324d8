"""Estimate of a job on any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.errors import ConfigError
from ipu_model.estimates.estimate import JobEstimate
from ipu_model.jobs.job import Job
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest

MK2 = "mk2"


@dataclass(frozen=True)
class JobHost:
    """Known properties of the host that a job will run on."""

    instances: PopRunInstances = PopRunInstances()
    """Processes that train together; on IPUs, the instances under PopRun."""
    limit: Optional[float] = None
    """Bytes of memory of each GPU, or of a host without GPUs. None: the memory of this host; unknown for a GPU."""
    generation: str = MK2
    """Generation of IPUs: a name in ipu_constants.GENERATIONS."""


def estimate_job(
    job: Job, manifest: Manifest, model: Optional[ModelConfig] = None, where: Optional[JobHost] = None
) -> JobEstimate:
    """Estimate the memory of a job with a resolved runtime, and on IPUs its time; precision may be auto on a CPU.

    Args:
        manifest: manifest of its rows, or one with assumed counts.
        model: its architecture, if the job takes it from init_checkpoint.

    Raises:
        ConfigError: the job cannot run with these settings, or its architecture is missing.
    """
    config, where = _architecture(job, model), where or JobHost()
    if job.runtime == "ipu":
        from ipu_model.estimates.ipu import estimate_ipus
        from ipu_model.estimates.ipu_constants import GENERATIONS

        return estimate_ipus(job, config, manifest, GENERATIONS[where.generation], where.instances)
    if job.precision == "fp16":  # runtimes/selection.py raises the same when the job begins
        raise ConfigError(f"the {job.runtime} runtime has no fp16: set device.precision to fp32, bf16 or auto")
    from ipu_model.estimates.host import estimate_host

    return estimate_host(job, config, manifest, where.instances.count, where.limit)


def suggest_layout(
    job: Job, manifest: Manifest, model: Optional[ModelConfig] = None, where: Optional[JobHost] = None
) -> str:
    """Describe a faster layout of a training on the same IPUs, by the same estimates; empty if there is none.

    Raises:
        ConfigError: see `estimate_job`.
    """
    if job.kind == "predict" or job.runtime != "ipu":
        return ""
    from ipu_model.estimates.ipu import propose_layout
    from ipu_model.estimates.layout_search import format_proposal

    proposal = propose_layout(job, _architecture(job, model), manifest, (where or JobHost()).instances)
    return format_proposal(proposal.proposed, proposal) if proposal.proposed and proposal.is_worthwhile else ""


def _architecture(job: Job, model: Optional[ModelConfig]) -> ModelConfig:
    config = model or job.model
    if config is None:
        raise ConfigError("job.model is missing: an estimate does not read init_checkpoint, so set the architecture")
    return config
