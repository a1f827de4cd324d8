"""Stages validate_glue@TASK and validate_glue_rows@TASK: Great Expectations' verdict on a GLUE task.

python -m tasks.downstream.glue.validate sst2           its examples: reports/validation/glue-sst2.json and .html
python -m tasks.downstream.glue.validate sst2 --rows    the rows of all its splits: glue-sst2-rows.json and .html
"""

from __future__ import annotations

import argparse

from tasks.downstream.glue.checks import GlueData
from tasks.downstream.glue.tasks import TASKS, glue_task
from tasks.project import artifacts
from tasks.project.main import run_main
from tasks.project.params import load_params
from tasks.project.process import item
from tasks.validation.checks import DataSet
from tasks.validation.row_checks import RowData
from tasks.validation.validate import judge_and_report


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge the examples of a GLUE task.")
    parser.add_argument("task", type=item, choices=sorted(TASKS))
    parser.add_argument("--rows", action="store_true", help="judge the packed rows instead of the examples")
    arguments = parser.parse_args()
    task, params, name = glue_task(arguments.task), load_params(), f"glue-{arguments.task}"

    def examples() -> list[DataSet]:
        return [GlueData(task, artifacts.glue_folder(task.name), params.glue.min_examples)]

    def rows() -> list[DataSet]:
        folders = {split: artifacts.glue_rows_folder(task.name, split) for split in task.splits}
        most = params.model.max_positions
        return [RowData(split, folder, artifacts.TOKENIZER, most, None) for split, folder in folders.items()]

    if arguments.rows:
        print(judge_and_report(f"{name}-rows", rows, params.validate_.data_docs))
    else:
        print(judge_and_report(name, examples, params.validate_.data_docs))


if __name__ == "__main__":
    run_main(main)
