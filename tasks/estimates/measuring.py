"""Measure a device job before it runs: a few of its updates in the device's Python, on rows that are made up."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ipu_model.errors import OutOfMemory
from ipu_model.files import write_text
from ipu_model.memory import free_memory, memory_limit
from ipu_model.units import format_bytes
from tasks.estimates.planned_jobs import Rows, write_manifests
from tasks.host.launcher import device_python
from tasks.jobs.device_job import Job
from tasks.stage.process import describe_exit, die_with_parent, python_path

LONGEST = 180.0
"""Seconds: start-up, a minute of updates at most, and a few more that may be long."""
MOSTLY_FREE = 0.8
"""Share of the memory of a host that must be free for a job that ran out of it to count as too large."""
KILLED = (-signal.SIGKILL, -signal.SIGABRT)
"""How a process ends that the kernel, or a library, takes memory from."""


class NotMeasured(Exception):
    """Why a job could not be measured."""


def measure(job: Job, rows: Rows, processes: int = 1) -> dict[str, Any]:
    """Run a few updates of a job from fresh weights, and return what they took (ipu_model/train/measuring.py).

    Args:
        job: with its runtime and precision; its rows need not be there.
        rows: what is known of them.
        processes: that train together; the share of one of them is measured.

    Raises:
        OutOfMemory: it takes more memory than there is.
        NotMeasured: the device's Python failed, or took too long.
    """
    share = -(-job.geometry.global_batch_size // processes)
    geometry = dataclasses.replace(job.geometry, global_batch_size=share)
    with tempfile.TemporaryDirectory(prefix="podium-measure-") as folder:
        place = Path(folder)
        write_manifests({Path("rows"): rows}, place)
        alone = dataclasses.replace(job, geometry=geometry, rows=f"{folder}/rows", executables=None)
        alone = dataclasses.replace(alone, output=f"{folder}/out", run_folder=folder)
        write_text(place / "job.json", alone.to_json())
        return _run([device_python(), "-m", "ipu_model", "--measure", str(place / "job.json")], job.runtime)


def _run(command: list[str], runtime: str) -> dict[str, Any]:
    """Return the event that the measurement ends with; on a CPU it may take the memory that is free, and no more."""
    free, limit = (free_memory(), memory_limit()) if runtime == "cpu" else (None, None)

    def limit_memory() -> None:
        die_with_parent()
        if free is not None:
            own, most = resource.getrlimit(resource.RLIMIT_DATA)
            allowed = min([free, *(each for each in (own, most) if each != resource.RLIM_INFINITY)])
            resource.setrlimit(resource.RLIMIT_DATA, (allowed, most))

    environment = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    try:
        done = subprocess.run(
            command,
            env=environment,
            text=True,
            capture_output=True,
            timeout=LONGEST,
            check=False,
            preexec_fn=limit_memory,
        )
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"it took more than {LONGEST:.0f} s") from None
    except OSError as error:
        raise NotMeasured(f"{command[0]} cannot be started ({error.strerror})") from None
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    last: dict[str, Any] = events[-1] if events else {"event": "", "type": ""}
    if last["event"] == "measured":
        return last
    if done.returncode in KILLED or last.get("type") == OutOfMemory.__name__:
        if free is not None and limit is not None and free < MOSTLY_FREE * limit:
            raise NotMeasured(f"it takes more than the {format_bytes(free)} of memory that are free here")
        raise OutOfMemory("it ran out of memory when a few of its updates were measured")
    raise NotMeasured(last["text"] if last["event"] == "error" else f"{describe_exit(done.returncode)} of {command[0]}")
