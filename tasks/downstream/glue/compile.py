"""Stage compile_glue@TASK: the programs of fine-tuning and prediction on a GLUE task, as those of the stage compile.

    python -m tasks.downstream.glue.compile sst2

Fills executables/glue-<task>-finetune/ and -predict/, and reports/compile-glue-<task>-finetune.json and -predict.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from tasks.downstream.compile import build_program, nothing_on, said
from tasks.downstream.glue.jobs import glue_finetune_job, glue_predict_job, program_name
from tasks.downstream.glue.tasks import TASKS, GlueTask, glue_task
from tasks.jobs.device_job import Job
from tasks.project import artifacts
from tasks.project.main import run_main
from tasks.project.params import Params, load_params
from tasks.project.process import item

KINDS = ("finetune", "predict")


def compile_glue_job(task: GlueTask, kind: str, params: Params, root: Path = Path()) -> Job:
    """The device job of that kind, from fresh weights; development sets of one task share a program."""
    if kind == "finetune":
        job = glue_finetune_job(task, params, root, untrained=True)
    else:
        job = glue_predict_job(task, task.splits[1], params, root, untrained=True)
    folder = str(root / artifacts.executables_folder(program_name(task, kind)))
    run_folder = str(root / artifacts.RUNS / f"compile-{program_name(task, kind)}")
    return dataclasses.replace(job, output=folder, executables=folder, run_folder=run_folder, compile_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the programs of a GLUE task before anything is trained.")
    parser.add_argument("task", type=item, choices=sorted(TASKS))
    task, params = glue_task(parser.parse_args().task), load_params()
    for kind in KINDS:
        name, nothing = program_name(task, kind), nothing_on(params.device)
        job = compile_glue_job(task, kind, params) if nothing is None else None
        result = build_program(name, job, nothing, params.device)
        sys.stdout.write(said(name, nothing, result) + "\n")


if __name__ == "__main__":
    run_main(main)
