"""Stage compile: the programs of fine-tuning and prediction for an entry, built before anything is trained.

    python -m tasks.downstream.jobs.compile NAME

Fills a folder of executables and a report for each job, see tasks/jobs/programs.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tasks.downstream.entries import entry_of
from tasks.downstream.jobs.entry_jobs import FINETUNE, JOBS, finetune_job, predict_job
from tasks.downstream.task import DownstreamTask, about
from tasks.jobs.device_job import Job
from tasks.jobs.programs import build_program, compiling, said
from tasks.project import artifacts
from tasks.project.main import run_main
from tasks.project.params import Params, load_params


def compile_job(task: DownstreamTask, kind: str, params: Params, root: Path = Path()) -> Job:
    """The device job of that kind, from fresh weights; the development sets of an entry share a program."""
    name = artifacts.job_name(task.entry.name, kind)
    if kind == FINETUNE:
        job = finetune_job(task, params, root, untrained=True)
    else:
        rows = task.rows_folder(task.development[0], root)
        job = predict_job(task, params, rows, root, root, root, untrained=True)
    return compiling(job, name, root)


def compile_ahead(task: DownstreamTask, params: Params, root: Path = Path()) -> list[str]:
    """Write the executables and the report of each job; the lines that say so.

    Raises:
        DeviceJobFailed: see `build_program`.
    """
    lines = []
    for kind in JOBS:
        name, job = artifacts.job_name(task.entry.name, kind), compile_job(task, kind, params, root)
        lines.append(said(name, build_program(name, job, params.device, root)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the programs of a downstream task before anything is trained.")
    parser.add_argument("name", help="the entry, or what its stage is called")
    params = load_params()
    lines = compile_ahead(about(entry_of(params, parser.parse_args().name)), params)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    run_main(main)
