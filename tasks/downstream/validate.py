"""Stages validate and validate_rows: Great Expectations' verdict on the examples of an entry, and on their rows.

python -m tasks.downstream.validate NAME examples
python -m tasks.downstream.validate NAME rows
"""

from __future__ import annotations

import argparse
from abc import abstractmethod
from pathlib import Path

from tasks.downstream.entries import entry_of
from tasks.downstream.task import DownstreamTask, about, part_of
from tasks.project import artifacts
from tasks.project.main import run_main
from tasks.project.params import Params, load_params
from tasks.project.row_folders import HELD_OUT, held_out_folder
from tasks.validation.checks import DataSet
from tasks.validation.row_checks import RowData
from tasks.validation.validate import judge_and_report


class ChecksTask(DownstreamTask):
    """What Great Expectations is to judge of examples."""

    @abstractmethod
    def data(self, folder: Path) -> DataSet:
        """The examples in `folder`, to be judged."""


def row_data(task: DownstreamTask, params: Params, splits: tuple[str, ...], root: Path = Path()) -> list[DataSet]:
    """The rows of these splits, each with those that were held out of it."""
    found: list[DataSet] = []
    for split in splits:
        rows = task.rows_folder(split, root)
        for name, folder in ((split, rows), (HELD_OUT, held_out_folder(rows))):
            if folder is not None:
                found.append(RowData(name, folder, root / artifacts.TOKENIZER, params.model.max_positions, None))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge the examples or the rows of a downstream task.")
    parser.add_argument("name", help="the entry, or what its stage is called")
    parser.add_argument("what", choices=("examples", "rows"))
    arguments = parser.parse_args()
    params = load_params()
    entry, data_docs = entry_of(params, arguments.name), params.validate_.data_docs
    if arguments.what == "rows":
        task = about(entry)
        print(judge_and_report(entry.verdict(task.splits[0]), lambda: row_data(task, params, task.splits), data_docs))
    else:
        checks: ChecksTask = part_of(entry, "checks")
        folder = artifacts.examples_folder(entry.name)
        print(judge_and_report(entry.verdict(), lambda: [checks.data(folder)], data_docs))


if __name__ == "__main__":
    run_main(main)
