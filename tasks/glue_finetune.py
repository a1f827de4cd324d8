"""Stage glue_finetune@TASK: the pre-trained model and the packed rows of a GLUE task in, a classifier out.

python -m tasks.glue_finetune sst2
"""

from __future__ import annotations

import argparse
import sys

from tasks.common.main import run_main
from tasks.common.params import load_params
from tasks.common.process import item
from tasks.glue_jobs import glue_finetune_job
from tasks.glue_tasks import TASKS, glue_task
from tasks.jobs.training import require_verdict, summary, train
from tasks.launcher import launch_words


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
