"""IPU programs of device jobs, compiled before training.

`executables/<job>/` contains the programs, which DVC transfers to other hosts. `reports/compile-<job>.json` has what
determines them. Training depends on the report only: it has no times, no hashes of programs and no versions of the
host, so that compiling again does not train again. Compiling needs rows, but no weights and no IPUs.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from ipu_model.files import read_json, write_json
from tasks.host.launcher import launch_command
from tasks.jobs.device_job import Job, run_device_job
from tasks.params.schema import DeviceParams
from tasks.stage import artifacts
from tasks.stage.errors import DeviceJobFailed

OF_THE_HOST = ("poptorch", "torch", "poplar_sdk", "ipu_version", "instances")
"""Parts of a fingerprint that depend on the host, not on the parameters: checked when a program is loaded, not
reported."""


def build_program(name: str, job: Job, device: DeviceParams, root: Path = Path()) -> str:
    """Compile the program of a job with random weights into `executables/<name>/`, and write its report.

    Args:
        name: phase1, phase2, or <entry>-finetune and -predict.
        job: the training or prediction job; it is only compiled here.

    Returns:
        A line for users.

    Raises:
        DeviceJobFailed: see `run_device_job`; or the program was not saved.
    """
    folder, report = root / artifacts.executables_folder(name), root / artifacts.compile_report(name)
    run_folder = root / artifacts.RUNS / f"compile-{name}"
    job = dataclasses.replace(
        job, output=str(folder), executables=str(folder), run_folder=str(run_folder), compile_only=True
    )
    result = run_device_job(job, launcher=launch_command(job, device))
    record = folder / artifacts.EXECUTABLES_RECORD
    if not record.is_file():
        raise DeviceJobFailed(f"{name}: the program was compiled, but {record} was not written")
    parts = read_json(record)["parts"]
    write_json(report, {"job": name, **_reported(parts)})
    return f"compile {name}: program ready after {result.compile_seconds:.1f} s ({result.program}, {result.precision})"


def _reported(parts: dict[str, Any]) -> dict[str, Any]:
    """Return everything that determines the program except the host, and its name, 16 hexadecimal digits."""
    decided = {part: value for part, value in parts.items() if part not in OF_THE_HOST}
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:16]
    return {"program": digest, "parts": decided}
