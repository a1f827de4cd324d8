"""Stage glue_finetune@TASK: the pre-trained model and the packed rows of a GLUE task in, a classifier out.

python -m tasks.downstream.glue.finetune sst2
"""

from __future__ import annotations

import argparse
import sys

from tasks.downstream.glue.jobs import glue_finetune_job
from tasks.downstream.glue.tasks import TASKS, glue_task
from tasks.host.launcher import launch_words
from tasks.jobs.training import require_verdict, summary, train
from tasks.project.main import run_main
from tasks.project.params import load_params
from tasks.project.process import item


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune on a GLUE task.")
    parser.add_argument("task", type=item, choices=sorted(TASKS))
    task, params = glue_task(parser.parse_args().task), load_params()
    require_verdict(f"glue-{task.name}-rows", stage=f"validate_glue_rows@{task.name}")
    job, name = glue_finetune_job(task, params), f"glue-{task.name}-finetune"
    launcher = launch_words(job, params.device)
    result = train(job, name, launcher=launcher, remote=params.checkpoint.remote, tracking=params.tracking)
    sys.stdout.write(summary(name, result) + "\n")


if __name__ == "__main__":
    run_main(main)
