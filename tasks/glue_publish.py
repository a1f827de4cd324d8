"""Publish a GLUE classifier that passed its gate: to a folder or repository of its own, as publish does.

    python -m tasks.glue_publish sst2 [--dry-run]

The name is glue_publish.folder or .repository with -<task> at its end; the rest is said by the section publish.
"""

from __future__ import annotations

import argparse
import functools
import time

from tasks.common import artifacts
from tasks.common.errors import run_main
from tasks.common.intact import require
from tasks.common.params import Params, PublishParams, load_params
from tasks.glue_card import glue_card
from tasks.glue_tasks import TASKS, GlueTask, glue_task
from tasks.publish import parameter_values, publish, tell
from tasks.release_subject import glue_subject


def publish_params(task: GlueTask, params: Params) -> PublishParams:
    """Where the classifier of a task goes."""
    folder, repository = params.glue_publish.folder, params.glue_publish.repository
    names = {"folder": f"{folder}-{task.name}", "repository": repository and f"{repository}-{task.name}"}
    return params.publish.model_copy(update=names)


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish a gated GLUE classifier.")
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--dry-run", action="store_true", help="show what would be published; touch nothing")
    arguments = parser.parse_args()
    task, params, started_at = glue_task(arguments.task), load_params(), time.perf_counter()
    parts = (artifacts.TOKENIZER, artifacts.glue_model(task.name), artifacts.glue_evaluation(task.name))
    require(str(path) for path in parts)
    receipt = publish(
        publish_params(task, params),
        parameter_values(params),
        dry_run=arguments.dry_run,
        subject=glue_subject(task.name),
        write_card=functools.partial(glue_card, task),
    )
    tell(receipt, arguments.dry_run, time.perf_counter() - started_at)


if __name__ == "__main__":
    run_main(main)
