"""Stage compile@phase1, @phase2, @finetune, @predict: the programs of a device job, built before anything is trained.

    python -m tasks.downstream.compile phase1|phase2|finetune|predict

For IPUs `executables/<job>/` holds the programs, which DVC carries to other hosts, and `reports/compile-<job>.json`
what decides them. The report is what training depends on: it holds no times, no hashes of programs and no
versions of the host, so that building again trains nothing again. Needs rows and no weights, and no IPUs.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from tasks.downstream.squad.finetune import finetune_job, own_model
from tasks.downstream.squad.predict import ROWS as DEV_ROWS
from tasks.downstream.squad.predict import predict_job
from tasks.host.launcher import launch_words
from tasks.jobs.device_job import Job, JobResult, run_device_job
from tasks.pretraining.pretrain import pretrain_job
from tasks.project import artifacts
from tasks.project.errors import DeviceJobFailed
from tasks.project.main import run_main
from tasks.project.params import PHASES, DeviceParams, Params, load_params

JOBS = (*PHASES, "finetune", "predict")
OF_THE_HOST = ("poptorch", "torch", "poplar_sdk", "instances")
"""Parts of a fingerprint that the host decides, not the parameters: checked before a program is used, not reported."""
NOTHING = "nothing"
"""Key of podium.json in a folder without programs: why there are none."""


def compile_job(name: str, params: Params, root: Path = Path()) -> Job:
    """The device job called `name`, from fresh weights, which only fills `executables/<name>/`."""
    ends = (params.model, params.device, params.ipu, root)
    if name in PHASES:
        job = pretrain_job(name, params.pretrain, *ends, untrained=True)
    elif name == "finetune":
        job = finetune_job(params.finetune, *ends, untrained=True)
    else:
        rows = root / artifacts.rows_folder(DEV_ROWS)
        job = predict_job(artifacts.SQUAD_MODEL, rows, artifacts.LOGITS, params.device, params.ipu, root, root)
        fresh = own_model(params.finetune, params.model, rows, whole=True)
        job = dataclasses.replace(job, init_checkpoint=None, model=fresh)
    folder = str(root / artifacts.executables_folder(name))
    run_folder = str(root / artifacts.RUNS / f"compile-{name}")
    return dataclasses.replace(
        job, output=folder, executables=folder, run_folder=run_folder, compile_only=True, evaluation=None
    )


def why_nothing(name: str, params: Params) -> str | None:
    """Why there is no program to build ahead, in the same words on every host; None where there is one."""
    if name in PHASES and not params.pretrain.enabled and params.device.runtime == "ipu":
        return "pretrain.enabled is false: no update is made"
    return nothing_on(params.device)


def nothing_on(device: DeviceParams) -> str | None:
    """`why_nothing` as far as the device decides it."""
    if device.runtime == "auto":
        return "device.runtime auto is chosen where the job runs, and what it needs is compiled there"
    if device.runtime != "ipu":
        if device.compile != "none":
            return f"what is compiled for {device.runtime} stays on its host: made for it, and in part read with pickle"
        return f"device.runtime {device.runtime} compiles nothing"
    return None


def compile_ahead(name: str, params: Params, root: Path = Path()) -> JobResult | None:
    """Write `executables/<name>/` and `reports/compile-<name>.json`; None where nothing is to be compiled.

    Raises:
        DeviceJobFailed: see `run_device_job`; or the program was not kept.
    """
    nothing = why_nothing(name, params)
    job = compile_job(name, params, root) if nothing is None else None
    return build_program(name, job, nothing, params.device, root)


def build_program(
    name: str, job: Job | None, nothing: str | None, device: DeviceParams, root: Path = Path()
) -> JobResult | None:
    """Run the compile_only `job`, or write down why there is `nothing` to build (then job is None).

    Raises:
        DeviceJobFailed: see `compile_ahead`.
    """
    folder, report = root / artifacts.executables_folder(name), root / artifacts.compile_report(name)
    if job is None:
        with artifacts.new_folder(folder) as partial:
            artifacts.write_json(partial / artifacts.EXECUTABLES_RECORD, {NOTHING: nothing})
        artifacts.write_json(report, {"job": name, "program": None, NOTHING: nothing})
        return None
    result = run_device_job(job, launcher=launch_words(job, device))
    record = folder / artifacts.EXECUTABLES_RECORD
    if not record.is_file():
        raise DeviceJobFailed(f"{name}: the program was compiled, but {record} was not written")
    parts = json.loads(record.read_text(encoding="utf-8"))["parts"]
    artifacts.write_json(report, {"job": name, **_reported(parts)})
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the programs of a device job before anything is trained.")
    parser.add_argument("job", choices=JOBS)
    name = parser.parse_args().job
    params = load_params()
    sys.stdout.write(said(name, why_nothing(name, params), compile_ahead(name, params)) + "\n")


if __name__ == "__main__":
    run_main(main)
