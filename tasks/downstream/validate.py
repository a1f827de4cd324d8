"""Stage validate_examples: validate the examples of an entry with Great Expectations.

Valid examples are also searched for near-duplicates: development examples that nearly equal a text that the model is
trained on.

python -m tasks.downstream.validate NAME
"""

from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from tasks.params.entries import ENTRY_SECTIONS, entry_argument, find_entry, learns_text
from tasks.params.schema import Params, load_sections
from tasks.plan.kinds import TRAIN, DownstreamTask, load_part
from tasks.plan.main import run_main
from tasks.records.duplicate_report import NearDuplicateReport, write_report
from tasks.records.parquet import read_batches
from tasks.stage import artifacts
from tasks.validation.checks import DataSet
from tasks.validation.near_duplicates import find_near_duplicates
from tasks.validation.row_checks import RowData, RowSource
from tasks.validation.validate import validate_and_report

READ_AT_ONCE = 8192


class ChecksTask(DownstreamTask):
    """Checks of examples and of their rows, and the text used to find near-duplicates."""

    text_columns: ClassVar[tuple[str, ...]]
    """Columns of the text that development and training examples should not share."""

    def texts(self, batch: pa.RecordBatch) -> list[str]:
        """Return that text for each example of a batch with these columns."""
        parts = zip(*(batch.column(name).to_pylist() for name in self.text_columns), strict=True)
        return ["\t".join(part for part in some if part is not None) for some in parts]

    @abstractmethod
    def data(self, folder: Path) -> DataSet:
        """Return the data set of the examples in `folder`."""

    @abstractmethod
    def row_data(self, source: RowSource) -> RowData:
        """Return the data set of the rows in one folder."""


def search_near_duplicates(task: ChecksTask, params: Params, root: Path = Path()) -> NearDuplicateReport:
    """Find the development examples with a near-duplicate in the training data or pre-training corpus of an entry.

    Raises:
        InputError: examples or corpus are missing or damaged.
    """
    threshold = params.validate_.near_duplicates
    if threshold is None:
        return NearDuplicateReport(None, ())

    def read(split: str) -> Iterator[list[str]]:
        path, made_by = task.examples_file(split, root), task.entry.stage("examples")
        return map(task.texts, read_batches(path, task.text_columns, READ_AT_ONCE, made_by))

    corpus = root / artifacts.CORPUS if learns_text(task.entry, params) else None
    return find_near_duplicates(read, TRAIN, task.development, corpus, threshold, task.record)


def write_near_duplicates(task: ChecksTask, params: Params) -> dict[str, int]:
    """Write the near-duplicates for stage evaluate.

    Returns:
        Label -> number of near-duplicates in each source, for the page of the verdict.
    """
    report = search_near_duplicates(task, params)
    write_report(artifacts.near_duplicates_file(task.entry.name), report)
    return {f"dev {task.record}s with a near-duplicate in {one.name}": len(one.pairs) for one in report.sources}


def main() -> None:
    params = load_sections(*ENTRY_SECTIONS, "tokenizer", "pretrain_rows", "validate_")
    entry = find_entry(params, entry_argument("Validate the examples of a downstream task."))
    task: ChecksTask = load_part(entry, "checks")
    folder, more = artifacts.EXAMPLES / entry.name, partial(write_near_duplicates, task, params)
    print(validate_and_report(entry.verdict(), lambda: [task.data(folder)], params.validate_.data_docs, more))


if __name__ == "__main__":
    run_main(main)
