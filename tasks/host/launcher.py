"""Launch command of a training job with several processes, which precedes the device's Python.

The section `device` selects it for every host. A host that needs another command (several hosts, MPI options, a
wrapper) sets PODIUM_DEVICE_LAUNCHER, which replaces it there; the parameters still decide what is trained.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.config import read_ipu_config
from ipu_model.jobs.job import Job
from tasks.params.schema import DeviceParams
from tasks.stage.errors import ParamsError

DEVICE_LAUNCHER = "PODIUM_DEVICE_LAUNCHER"
DEVICE_PYTHON = "PODIUM_DEVICE_PYTHON"
POPRUN_OPTIONS = {
    "--num-instances": "count",
    "--num-replicas": "total_replicas",
    "--ipus-per-replica": "ipus_per_replica",
}
"""Option of PopRun -> field of PopRunInstances."""


def device_python() -> str:
    """Return the interpreter that runs device jobs."""
    return os.environ.get(DEVICE_PYTHON) or sys.executable


def parse_poprun_options(words: Sequence[str]) -> dict[str, int] | None:
    """Return the fields of PopRunInstances that a launch command sets; None if it starts a single process.

    Raises:
        ParamsError: the value of a PopRun option is not a positive integer.
    """
    if not words:
        return None
    values = {word.partition("=")[0]: word.partition("=")[2] or after for word, after in pairwise([*words, ""])}
    numbers = {}
    for option, name in POPRUN_OPTIONS.items():
        if (text := values.get(option)) is not None:
            if not (text.isdecimal() and int(text)):
                raise ParamsError(f"poprun {option} {text}: a positive integer is required")
            numbers[name] = int(text)
    return numbers


def launch_command(job: Job, device: DeviceParams, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command before the device's Python; empty for one process, and for prediction, which always has one.

    PopRun needs the number of replicas and IPUs as well, which the IPU config of the job has.

    Raises:
        ParamsError: PODIUM_DEVICE_LAUNCHER cannot be parsed, or the IPU config does not fit PopRun.
    """
    if job.kind == "predict":
        return []
    if command := environ.get(DEVICE_LAUNCHER):
        return parse_launcher(command)
    if device.launched_by == "torchrun":
        # The device's own torch, not the one on PATH. --standalone in torch 2.0 would use port 29400 for every job. All
        # processes are on this host, whose name may not resolve.
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--local-addr", "127.0.0.1"]
        numbers = ["--nproc-per-node", str(device.processes), "--max-restarts", str(device.restarts)]
        return [device_python(), "-m", "torch.distributed.run", *rendezvous, "--no-python", *numbers]
    return _poprun(job, device.processes) if device.launched_by == "poprun" else []


def parse_launcher(launcher: str) -> list[str]:
    """Parse PODIUM_DEVICE_LAUNCHER into arguments.

    Raises:
        ParamsError: it cannot be parsed.
    """
    try:
        # Split as in a shell, but not run by one. The value comes from the host's environment, not from params.yaml.
        return shlex.split(launcher)
    except ValueError as error:
        raise ParamsError(
            f"{DEVICE_LAUNCHER}={launcher!r} cannot be parsed ({error}): quote it as for a shell"
        ) from None


def _poprun(job: Job, processes: int) -> list[str]:
    """Return the poprun command; `--num-replicas` counts the replicas of all instances, which share them equally."""
    try:
        training = read_ipu_config(job.ipu_config or {}, f"the IPU config of the {job.kind} job").training
    except ConfigError as error:
        raise ParamsError(str(error)) from None
    if training.replication_factor % processes:
        raise ParamsError(
            f"device.processes={processes} cannot share the {training.replication_factor} replicas of the {job.kind} "
            "job (replication_factor of its IPU config): set it to a divisor"
        )
    numbers = (processes, training.replication_factor, training.ipus_per_replica)
    options = zip(POPRUN_OPTIONS, map(str, numbers), strict=True)
    return ["poprun", *(word for pair in options for word in pair)]
