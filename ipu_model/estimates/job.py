"""What a device job will need, whatever its device."""

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
class Where:
    """What is known of the place that a job will run in."""

    instances: PopRunInstances = PopRunInstances()
    """The processes that train together, and on IPUs what PopRun is told of them."""
    limit: Optional[float] = None
    """Bytes of memory of each GPU, or of a host without; None: of the host as it is, of a GPU unknown."""
    generation: str = MK2
    """Of IPUs: a name of ipu_constants.GENERATIONS."""


def estimate_job(
    job: Job, manifest: Manifest, model: Optional[ModelConfig] = None, where: Optional[Where] = None
) -> JobEstimate:
    """Memory of a job whose runtime is chosen, and on IPUs its time; its precision may be auto on a CPU.

    Args:
        manifest: of its rows, or what is assumed of them.
        model: its architecture, where the job leaves it to init_checkpoint.

    Raises:
        ConfigError: the job cannot be as it is stated, or nobody says its architecture.
    """
    config, where = _architecture(job, model), where or Where()
    if job.runtime == "ipu":
        from ipu_model.estimates.ipu import estimate_ipus
        from ipu_model.estimates.ipu_constants import GENERATIONS

        return estimate_ipus(job, config, manifest, GENERATIONS[where.generation], where.instances)
    if job.precision == "fp16":  # runtimes/selection.py says the same when the job begins
        raise ConfigError(f"the {job.runtime} runtime has no fp16: set device.precision to fp32, bf16 or auto")
    from ipu_model.estimates.host import estimate_host

    return estimate_host(job, config, manifest, where.instances.count, where.limit)


def advice(job: Job, manifest: Manifest, model: Optional[ModelConfig] = None, where: Optional[Where] = None) -> str:
    """In words, a faster cut of a training over the same IPUs by the same estimates; empty where there is none.

    Nothing is changed by it.

    Raises:
        ConfigError: see `estimate_job`.
    """
    if job.kind == "predict" or job.runtime != "ipu":
        return ""
    from ipu_model.estimates.ipu import propose_cut
    from ipu_model.estimates.ipu_balance import in_words

    found = propose_cut(job, _architecture(job, model), manifest, (where or Where()).instances)
    return in_words(found.proposed, found) if found.proposed and found.is_worth_a_line else ""


def _architecture(job: Job, model: Optional[ModelConfig]) -> ModelConfig:
    config = model or job.model
    if config is None:
        raise ConfigError("job.model is missing: an estimate reads no init_checkpoint, so state the architecture")
    return config
