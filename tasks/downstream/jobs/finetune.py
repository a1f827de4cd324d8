"""Stage finetune: fine-tune the pre-trained model on the packed rows of an entry.

python -m tasks.downstream.jobs.finetune NAME
"""

import sys

from tasks.downstream.jobs.entry_jobs import FINETUNE, build_finetune_job, require_valid_rows
from tasks.host.launcher import launch_command
from tasks.jobs.training import summary, train
from tasks.params.entries import ENTRY_SECTIONS, entry_argument, find_entry
from tasks.params.schema import load_sections
from tasks.plan.kinds import load_spec
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.errors import InputError


def main() -> None:
    params = load_sections(*ENTRY_SECTIONS, "model", "device", "ipu", "checkpoint", "tracking")
    task = load_spec(find_entry(params, entry_argument("Fine-tune the model of a downstream task.")))
    entry = task.entry
    require_valid_rows(task)
    job, name = build_finetune_job(task, params), artifacts.job_name(entry.name, FINETUNE)
    if job.evaluation is None and entry.params.finetune.evaluate_every_updates is not None:
        raise InputError(
            f"{job.rows} has no held-out rows, required by {entry.key('finetune', 'evaluate_every_updates')}. Set "
            f"{entry.key('rows', 'held_out_fraction')} and run `dvc repro {entry.stage('rows')}`"
        )
    launcher = launch_command(job, params.device)
    result = train(job, name, launcher=launcher, remote=params.checkpoint.remote, tracking=params.tracking)
    sys.stdout.write(summary(name, result) + "\n")


if __name__ == "__main__":
    run_main(main)
