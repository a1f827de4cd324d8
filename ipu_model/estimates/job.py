"""Estimate of a job on any device."""

from __future__ import annotations

from typing import Optional

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.errors import ConfigError
from ipu_model.estimates.estimate import JobEstimate
from ipu_model.jobs.job import Job
from ipu_model.rows.format import Manifest

MK2 = "mk2"
"""Default generation of IPUs: a name in ipu_constants.GENERATIONS."""


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
        instances: processes that train together; on IPUs, the instances under PopRun.
        limit: bytes of memory of each GPU, or of a host without GPUs. None: the memory of this host; unknown for a GPU.
        generation: generation of IPUs.

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
    from ipu_model.estimates.host import estimate_host

    return estimate_host(job, job.model, manifest, instances.count, limit)


def suggest_layout(job: Job, manifest: Manifest, instances: PopRunInstances) -> str:
    """Describe a faster layout of a training on the same IPUs, by the same estimates; empty if there is none.

    Raises:
        ConfigError: see `estimate_job`.
    """
    if job.kind == "predict" or job.runtime != "ipu":
        return ""
    from ipu_model.estimates.ipu import propose_layout
    from ipu_model.estimates.layout_search import format_proposal

    assert job.model is not None
    proposal = propose_layout(job, job.model, manifest, instances)
    return format_proposal(proposal.proposed, proposal) if proposal.proposed and proposal.is_worthwhile else ""
