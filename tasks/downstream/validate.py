"""Stages validate and validate_rows: Great Expectations' verdict on the examples of an entry, and on their rows.

python -m tasks.downstream.validate NAME examples
python -m tasks.downstream.validate NAME rows
"""

from __future__ import annotations

import argparse
from abc import abstractmethod
from functools import partial
from pathlib import Path

from tasks.downstream.entries import entry_of
from tasks.downstream.task import TRAIN, DownstreamTask, part_of
from tasks.project import artifacts
from tasks.project.main import run_main
from tasks.project.params import Params, load_params
from tasks.project.row_folders import HELD_OUT, held_out_folder
from tasks.validation.checks import DataSet
from tasks.validation.row_checks import RowData
from tasks.validation.row_requirements import RowLimits
from tasks.validation.row_rules import RowRules
from tasks.validation.validate import judge_and_report


class ChecksTask(DownstreamTask):
    """What Great Expectations is to judge of examples and of their rows."""

    @abstractmethod
    def data(self, folder: Path) -> DataSet:
        """The examples in `folder`, to be judged."""

    @abstractmethod
    def row_rules(self, limits: RowLimits, *, training: bool) -> RowRules:
        """What rows of this kind must be, beside what all rows must.

        Args:
            limits: of one folder of rows.
            training: whether these rows are learnt from, or were held out of such.
        """


def row_data(task: ChecksTask, params: Params, splits: tuple[str, ...], root: Path = Path()) -> list[DataSet]:
    """The rows of these splits, each with those that were held out of it."""
    found: list[DataSet] = []
    for split in splits:
        rows, rules = task.rows_folder(split, root), partial(task.row_rules, training=split == TRAIN)
        for name, folder in ((split, rows), (HELD_OUT, held_out_folder(rows))):
            if folder is not None:
                tokenizer, most = root / artifacts.TOKENIZER, params.model.max_positions
                found.append(RowData(name, folder, tokenizer, most, task.entry.key("rows"), rules))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge the examples or the rows of a downstream task.")
    parser.add_argument("name", help="the entry, or what its stage is called")
    parser.add_argument("what", choices=("examples", "rows"))
    arguments = parser.parse_args()
    params = load_params()
    entry, data_docs = entry_of(params, arguments.name), params.validate_.data_docs
    task: ChecksTask = part_of(entry, "checks")
    if arguments.what == "rows":
        print(judge_and_report(entry.verdict("rows"), lambda: row_data(task, params, task.splits), data_docs))
    else:
        folder = artifacts.examples_folder(entry.name)
        print(judge_and_report(entry.verdict(), lambda: [task.data(folder)], data_docs))


if __name__ == "__main__":
    run_main(main)
