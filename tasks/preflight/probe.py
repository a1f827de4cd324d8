"""A few updates of a job that is only planned, timed on its real rows in the device's Python for `podium plan`."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from pathlib import Path

from ipu_model.files import write_text
from ipu_model.jobs.probed import Probed
from tasks.jobs.device_job import Job, device_python
from tasks.preflight.planned_jobs import PlannedJob
from tasks.project.process import describe_exit, die_with_parent, python_path

RUNTIMES = ("cpu", "cuda")
LONGEST = 180.0
"""Seconds: start-up, some ten seconds of updates, and one more update that may be long."""


class NotProbed(Exception):
    """Why a job could not be probed."""


def can_be_probed(planned: PlannedJob, runtime: str) -> bool:
    """Whether the rows of a job are there, on a runtime whose updates can be timed at once."""
    return runtime in RUNTIMES and not planned.rows.assumed and bool(planned.rows.manifest.files)


def probe(planned: PlannedJob, job: Job, root: Path) -> Probed:
    """What a few updates of a job take, from fresh weights; nothing that they make is kept.

    Args:
        job: of `planned`, with its runtime and precision.
        root: the checkout, which has its rows.

    Raises:
        NotProbed: the device's Python failed, or took too long.
    """
    alone = dataclasses.replace(job, rows=str((root / job.rows).absolute()), evaluation=None, executables=None)
    with tempfile.TemporaryDirectory(prefix="podium-probe-") as folder:
        file = Path(folder) / "job.json"
        write_text(file, dataclasses.replace(alone, output=f"{folder}/out", run_folder=folder).to_json())
        return _told(_run(file))


def _run(file: Path) -> str:
    command = [device_python(), "-m", "ipu_model", "--probe", str(file)]
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    try:
        done = subprocess.run(
            command,
            env=environment,
            text=True,
            capture_output=True,
            timeout=LONGEST,
            check=False,
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired:
        raise NotProbed(f"a probe of it took more than {LONGEST:.0f} s") from None
    except OSError as error:
        raise NotProbed(f"{command[0]} cannot be started ({error.strerror})") from None
    if done.returncode:
        said = [event["text"] for event in _events(done.stdout) if event["event"] == "error"]
        raise NotProbed(said[-1] if said else f"{describe_exit(done.returncode)} of the device's Python")
    return done.stdout


def _events(text: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]


def _told(text: str) -> Probed:
    """Of the event that a probe ends with."""
    names = {field.name for field in dataclasses.fields(Probed)}
    for event in _events(text):
        if event["event"] == "probed":
            return Probed(**{name: value for name, value in event.items() if name in names})  # type: ignore[arg-type]
    raise NotProbed("the device's Python ended without a word of it")
