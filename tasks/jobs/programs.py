"""The programs of device jobs for IPUs, built before anything is trained.

`executables/<job>/` holds the programs, which DVC carries to other hosts, and `reports/compile-<job>.json` what decides
them. The report is what training depends on: it holds no times, no hashes of programs and no versions of the host, so
that building again trains nothing again. Needs rows and no weights, and no IPUs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from tasks.host.launcher import launch_words
from tasks.jobs.device_job import Job, JobResult, run_device_job
from tasks.project import artifacts
from tasks.project.errors import DeviceJobFailed
from tasks.project.files import new_folder, read_json, write_json
from tasks.project.params import DeviceParams

OF_THE_HOST = ("poptorch", "torch", "poplar_sdk", "instances")
"""Parts of a fingerprint that the host decides, not the parameters: checked before a program is used, not reported."""
NOTHING = "nothing"
"""Key of podium.json in a folder without programs: why there are none."""


def nothing_on(device: DeviceParams) -> str | None:
    """Why this device has no program to build ahead, in the same words on every host; None where it has."""
    if device.runtime == "auto":
        return "device.runtime auto is chosen where the job runs, and what it needs is compiled there"
    if device.runtime != "ipu":
        if device.compile != "none":
            return f"what is compiled for {device.runtime} stays on its host, for which it is made"
        return f"device.runtime {device.runtime} compiles nothing"
    return None


def compiling(job: Job, name: str, root: Path = Path()) -> Job:
    """The job called `name`, so that it only fills `executables/<name>/`."""
    folder, run_folder = str(root / artifacts.executables_folder(name)), str(root / artifacts.RUNS / f"compile-{name}")
    return dataclasses.replace(
        job, output=folder, executables=folder, run_folder=run_folder, compile_only=True, evaluation=None
    )


def build_program(
    name: str, job: Job | None, nothing: str | None, device: DeviceParams, root: Path = Path()
) -> JobResult | None:
    """Run the compile_only `job`, or write down why there is `nothing` to build (then job is None).

    Raises:
        DeviceJobFailed: see `run_device_job`; or the program was not kept.
    """
    folder, report = root / artifacts.executables_folder(name), root / artifacts.compile_report(name)
    if job is None:
        with new_folder(folder) as partial:
            write_json(partial / artifacts.EXECUTABLES_RECORD, {NOTHING: nothing})
        write_json(report, {"job": name, "program": None, NOTHING: nothing})
        return None
    result = run_device_job(job, launcher=launch_words(job, device))
    record = folder / artifacts.EXECUTABLES_RECORD
    if not record.is_file():
        raise DeviceJobFailed(f"{name}: the program was compiled, but {record} was not written")
    parts = read_json(record)["parts"]
    write_json(report, {"job": name, **_reported(parts)})
    return result


def _reported(parts: dict[str, Any]) -> dict[str, Any]:
    """What decides the program but the host, and its name: 16 hexadecimal digits."""
    decided = {part: value for part, value in parts.items() if part not in OF_THE_HOST}
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:16]
    return {"program": digest, "parts": decided}


def said(name: str, nothing: str | None, result: JobResult | None) -> str:
    """One line at the end of the stage."""
    if result is None:
        return f"compile {name}: nothing to compile ({nothing})"
    return f"compile {name}: program ready after {result.compile_seconds:.1f} s ({result.program}, {result.precision})"
