"""Publish a GLUE classifier that passed its gate: to a folder or repository of its own, as publish does.

    python -m tasks.downstream.glue.publish sst2 [--dry-run]

The name is glue_publish.folder or .repository with -<task> at its end; the rest is said by the section publish.
"""

from __future__ import annotations

import argparse
import functools
import time

from tasks.downstream.glue.card import glue_card
from tasks.downstream.glue.gate import decide_again, subject_of
from tasks.downstream.glue.tasks import TASKS, GlueTask, glue_task
from tasks.project.main import run_main
from tasks.project.params import Params, PublishParams, load_params, parameter_values
from tasks.release.publish import Kind, publish, tell


def publish_params(task: GlueTask, params: Params) -> PublishParams:
    """Where the classifier of a task goes."""
    folder, repository = params.glue_publish.folder, params.glue_publish.repository
    names = {"folder": f"{folder}-{task.name}", "repository": repository and f"{repository}-{task.name}"}
    return params.publish.model_copy(update=names)


def kind_of(task: GlueTask) -> Kind:
    """What the release of a task is."""
    decide = functools.partial(decide_again, task)
    return Kind(subject_of(task), "glue_gate", decide, functools.partial(glue_card, task))


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish a gated GLUE classifier.")
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--dry-run", action="store_true", help="show what would be published; touch nothing")
    arguments = parser.parse_args()
    task, params, started_at = glue_task(arguments.task), load_params(), time.perf_counter()
    where, values = publish_params(task, params), parameter_values(params)
    receipt = publish(where, values, dry_run=arguments.dry_run, kind=kind_of(task))
    tell(receipt, arguments.dry_run, time.perf_counter() - started_at)


if __name__ == "__main__":
    run_main(main)
