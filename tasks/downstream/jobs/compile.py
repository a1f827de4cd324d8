"""Stage compile: build the programs of fine-tuning and prediction for an entry before training starts.

    python -m tasks.downstream.jobs.compile NAME

Writes a folder of executables and a report for each job; see tasks/jobs/programs.py.
"""

import sys
from pathlib import Path

from tasks.downstream.jobs.entry_jobs import FINETUNE, PREDICT, build_finetune_job, build_predict_job
from tasks.jobs.programs import build_program
from tasks.params.entries import ENTRY_SECTIONS, entry_argument, find_entry
from tasks.params.schema import load_sections
from tasks.plan.kinds import load_spec
from tasks.plan.main import run_main
from tasks.stage import artifacts


def main() -> None:
    params, root = load_sections(*ENTRY_SECTIONS, "model", "device", "ipu"), Path()
    entry = find_entry(params, entry_argument("Build the programs of a downstream task before training."))
    task = load_spec(entry)
    rows = task.rows_folder(task.development[0])  # the development sets of an entry share a program
    jobs = {
        FINETUNE: build_finetune_job(task, params, untrained=True),
        PREDICT: build_predict_job(task, params, rows, root, root, untrained=True),
    }
    lines = [build_program(artifacts.job_name(entry.name, kind), job, params.device) for kind, job in jobs.items()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    run_main(main)
