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

from ipu_model.files import read_json, write_json
from tasks.host.launcher import launch_words
from tasks.jobs.device_job import Job, run_device_job
from tasks.params.schema import DeviceParams
from tasks.stage import artifacts
from tasks.stage.errors import DeviceJobFailed

OF_THE_HOST = ("poptorch", "torch", "poplar_sdk", "ipu_version", "instances")
"""Parts of a fingerprint that the host decides, not the parameters: checked before a program is used, not reported."""


def build_program(name: str, job: Job, device: DeviceParams, root: Path = Path()) -> str:
    """Fill `executables/<name>/` with the program of a job from fresh weights, and write its report.

    Args:
        name: phase1, phase2, or <entry>-finetune and -predict.
        job: as it is trained or predicted; it only compiles here.

    Returns:
        The line that says so.

    Raises:
        DeviceJobFailed: see `run_device_job`; or the program was not kept.
    """
    folder, report = root / artifacts.executables_folder(name), root / artifacts.compile_report(name)
    run_folder = root / artifacts.RUNS / f"compile-{name}"
    job = dataclasses.replace(
        job, output=str(folder), executables=str(folder), run_folder=str(run_folder), compile_only=True
    )
    result = run_device_job(job, launcher=launch_words(job, device))
    record = folder / artifacts.EXECUTABLES_RECORD
    if not record.is_file():
        raise DeviceJobFailed(f"{name}: the program was compiled, but {record} was not written")
    parts = read_json(record)["parts"]
    write_json(report, {"job": name, **_reported(parts)})
    return f"compile {name}: program ready after {result.compile_seconds:.1f} s ({result.program}, {result.precision})"


def _reported(parts: dict[str, Any]) -> dict[str, Any]:
    """What decides the program but the host, and its name: 16 hexadecimal digits."""
    decided = {part: value for part, value in parts.items() if part not in OF_THE_HOST}
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:16]
    return {"program": digest, "parts": decided}
