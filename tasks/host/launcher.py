"""What starts the processes of a training job: the words that stand before the device's Python.

`device.launcher` says it for every host alike. A host that needs other words (several hosts, options of MPI, a wrapper)
says them in PODIUM_DEVICE_LAUNCHER, which takes their place there; what is trained stays what the parameters say.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ipu_model.errors import ConfigError
from ipu_model.ipu.config import read_ipu_config
from ipu_model.jobs.job import Job
from tasks.params.schema import DeviceParams
from tasks.stage.errors import ParamsError

DEVICE_LAUNCHER = "PODIUM_DEVICE_LAUNCHER"
DEVICE_PYTHON = "PODIUM_DEVICE_PYTHON"


def device_python() -> str:
    """The interpreter that runs device jobs."""
    return os.environ.get(DEVICE_PYTHON) or sys.executable


@dataclass(frozen=True)
class PopRunOptions:
    """What PopRun is told of the processes of a training job; None where its words do not say."""

    instances: int | None
    replicas: int | None
    ipus_per_replica: int | None


def poprun_options(words: Sequence[str]) -> PopRunOptions | None:
    """The options of these launch words; None where they start a single process.

    Raises:
        ParamsError: an option of PopRun has no whole number of at least 1.
    """
    if not words:
        return None
    stated = {word.partition("=")[0]: word.partition("=")[2] or after for word, after in pairwise([*words, ""])}
    numbers = []
    for option in ("--num-instances", "--num-replicas", "--ipus-per-replica"):
        text = stated.get(option)
        if text is not None and not (text.isdecimal() and int(text)):
            raise ParamsError(f"poprun {option} {text}: a whole number of at least 1 is required")
        numbers.append(None if text is None else int(text))
    return PopRunOptions(*numbers)


def launch_words(job: Job, device: DeviceParams, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The command before the device's Python; empty for one process, and for prediction, which is always one.

    Args:
        job: its IPU config says replicas and IPUs, which PopRun wants to be told, too.
        device: section `device`.
        environ: of this process.

    Raises:
        ParamsError: PODIUM_DEVICE_LAUNCHER cannot be split into words, or the IPU config does not serve PopRun.
    """
    if job.kind == "predict":
        return []
    if own := environ.get(DEVICE_LAUNCHER):
        return split_words(own)
    if device.launcher == "torchrun":
        # The device's own torch, whatever is on PATH. --standalone of torch 2.0 would take port 29400 for every job.
        return [
            device_python(),
            "-m",
            "torch.distributed.run",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "localhost:0",
            "--local-addr",  # all on this host, whose name may not resolve
            "127.0.0.1",
            "--no-python",
            "--nproc-per-node",
            str(device.processes),
            "--max-restarts",
            str(device.restarts),
        ]
    return _poprun(job, device.processes) if device.launcher == "poprun" else []


def split_words(launcher: str) -> list[str]:
    """The words of PODIUM_DEVICE_LAUNCHER.

    Raises:
        ParamsError: it cannot be split.
    """
    try:
        # Split as a shell would, but given to no shell: it comes from the host's environment, not from params.yaml.
        return shlex.split(launcher)
    except ValueError as error:
        raise ParamsError(
            f"{DEVICE_LAUNCHER}={launcher!r} cannot be split into words ({error}): quote it as for a shell"
        ) from None


def _poprun(job: Job, processes: int) -> list[str]:
    """`--num-replicas` counts those of all instances together, of which each takes an equal part."""
    try:
        training = read_ipu_config(job.ipu_config or {}, f"the IPU config of the {job.kind} job").training
    except ConfigError as error:
        raise ParamsError(str(error)) from None
    if training.replication_factor % processes:
        raise ParamsError(
            f"device.processes={processes} cannot share the {training.replication_factor} replicas of the {job.kind} "
            "job (replication_factor of its IPU config): choose a divisor of them"
        )
    return [
        "poprun",
        "--num-instances",
        str(processes),
        "--num-replicas",
        str(training.replication_factor),
        "--ipus-per-replica",
        str(training.ipus_per_replica),
    ]
