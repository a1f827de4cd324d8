"""Stage glue_predict@TASK: logits of every example of the development sets of a GLUE task.

python -m tasks.downstream.glue.predict sst2
"""

from __future__ import annotations

import argparse
import sys

from tasks.downstream.glue.jobs import glue_predict_job
from tasks.downstream.glue.tasks import TASKS, glue_task
from tasks.downstream.squad.predict import figures
from tasks.jobs.device_job import run_device_job
from tasks.jobs.training import require_verdict
from tasks.project import artifacts
from tasks.project.main import run_main
from tasks.project.params import load_params
from tasks.project.process import item


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict the development sets of a GLUE task.")
    parser.add_argument("task", type=item, choices=sorted(TASKS))
    task, params = glue_task(parser.parse_args().task), load_params()
    require_verdict(f"glue-{task.name}-rows", stage=f"validate_glue_rows@{task.name}")
    artifacts.glue_logits(task.name).mkdir(parents=True, exist_ok=True)
    found = {}
    for split in task.splits[1:]:
        result = run_device_job(glue_predict_job(task, split, params))
        found[split] = figures(result)
        sys.stdout.write(
            f"glue-{task.name} {split}: {result.sequences} examples in {result.train_seconds:.1f} s "
            f"({result.real_tokens_per_second:,.0f} tokens/s, {result.runtime}, {result.precision})\n"
        )
    figures_of_all = next(iter(found.values())) if len(found) == 1 else found
    artifacts.write_json(artifacts.glue_metrics(task.name, "predict"), figures_of_all)


if __name__ == "__main__":
    run_main(main)
