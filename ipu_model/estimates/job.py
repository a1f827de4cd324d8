"""What a device job will need, whatever its device: the one door to the estimates."""

from __future__ import annotations

from typing import Optional

from ipu_model.errors import ConfigError
from ipu_model.estimates.estimate import JobEstimate
from ipu_model.jobs.job import Job
from ipu_model.jobs.probed import Probed
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest

MB = float(1 << 20)


def estimate_job(
    job: Job,
    manifest: Manifest,
    model: Optional[ModelConfig] = None,
    processes: int = 1,
    probed: Optional[Probed] = None,
    limit: Optional[float] = None,
) -> JobEstimate:
    """Memory and time of a job whose runtime is chosen; its precision may be auto on a CPU.

    Args:
        manifest: of its rows, or what is assumed of them.
        model: its architecture, where the job leaves it to init_checkpoint.
        processes: that train together.
        probed: what a probe of this job found on its host.
        limit: bytes of memory of each GPU, or of a host without; None: of the GPU as probed, of the host as it is.

    Raises:
        ConfigError: the job cannot be as it is stated, or nobody says its architecture.
    """
    config = model or job.model
    if config is None:
        raise ConfigError("job.model is missing: an estimate reads no init_checkpoint, so state the architecture")
    if job.runtime == "ipu":
        from ipu_model.estimates.ipu import estimate_ipus

        return estimate_ipus(job, config, manifest)
    if job.precision == "fp16":  # runtimes/choosing.py says the same when the job begins
        raise ConfigError(f"the {job.runtime} runtime has no fp16: set device.precision to fp32, bf16 or auto")
    from ipu_model.estimates.host import HostJob, estimate_host

    if limit is None and probed is not None and probed.device_memory_mb is not None:
        limit = probed.device_memory_mb * MB
    where = (job.runtime, job.precision, processes)
    return estimate_host(HostJob(job, config, manifest, *where, limit=limit), probed)
