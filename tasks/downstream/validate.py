"""Stage validate_examples: Great Expectations' verdict on the examples of an entry.

Examples that are fit to train on are also searched for near-duplicates: development examples that are nearly the same
as something the model learns from.

python -m tasks.downstream.validate NAME
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from tasks.params.entries import ENTRY_SECTIONS, entry_argument, entry_of, learns_text
from tasks.params.schema import Params, load_sections
from tasks.plan.kinds import TRAIN, DownstreamTask, part_of
from tasks.plan.main import run_main
from tasks.records.near_duplicates import Report, write_report
from tasks.records.parquet import read_batches
from tasks.stage import artifacts
from tasks.validation.checks import DataSet
from tasks.validation.near_duplicates import contamination
from tasks.validation.row_checks import RowData, RowSource
from tasks.validation.validate import judge_and_report

READ_AT_ONCE = 8192


class ChecksTask(DownstreamTask):
    """What is judged of examples and of their rows, and which text of an example counts."""

    text_columns: ClassVar[tuple[str, ...]]
    """Columns of the text that no development example should have in common with training."""

    def texts(self, batch: pa.RecordBatch) -> list[str]:
        """Return that text of each example, of a batch with these columns."""
        parts = zip(*(batch.column(name).to_pylist() for name in self.text_columns), strict=True)
        return ["\t".join(part for part in some if part is not None) for some in parts]

    @abstractmethod
    def data(self, folder: Path) -> DataSet:
        """The examples in `folder`, to be judged."""

    @abstractmethod
    def row_data(self, source: RowSource) -> RowData:
        """The rows of one folder, to be judged."""


def near_duplicates(task: ChecksTask, params: Params, root: Path = Path()) -> Report:
    """Which development examples have a near-duplicate in what the model of an entry learns from.

    Raises:
        InputError: examples or text are missing or damaged.
    """
    threshold = params.validate_.near_duplicates
    if threshold is None:
        return Report(None)

    def read(split: str) -> Iterator[list[str]]:
        path, made_by = task.examples_file(split, root), task.entry.stage("examples")
        return map(task.texts, read_batches(path, task.text_columns, READ_AT_ONCE, made_by))

    corpus = root / artifacts.CORPUS if learns_text(task.entry, params) else None
    return contamination(read, TRAIN, task.development, corpus, threshold, task.record)


def write_near_duplicates(task: ChecksTask, params: Params) -> dict[str, int]:
    """Write them where the evaluation finds them.

    Returns:
        How many there are of each source, in words, for the page of the verdict.
    """
    report = near_duplicates(task, params)
    write_report(artifacts.near_duplicates_file(task.entry.name), report)
    return {f"dev {task.record}s with a near-duplicate in {one.name}": len(one.pairs) for one in report.sources}


def main() -> None:
    params = load_sections(*ENTRY_SECTIONS, "tokenizer", "pretrain_rows", "validate_")
    entry = entry_of(params, entry_argument("Judge the examples of a downstream task."))
    task: ChecksTask = part_of(entry, "checks")
    folder, more = artifacts.examples_folder(entry.name), partial(write_near_duplicates, task, params)
    print(judge_and_report(entry.verdict(), lambda: [task.data(folder)], params.validate_.data_docs, more))


if __name__ == "__main__":
    run_main(main)
