"""The examples of a GLUE task as Parquet, one file a split, with reading.json; each is checked before anything is kept
(format.py)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.files import new_folder
from tasks.downstream.entries import Entry
from tasks.downstream.examples import ExamplesTask
from tasks.downstream.glue import about
from tasks.downstream.glue.format import (
    KEY,
    Example,
    examples_from_files,
    examples_from_hub,
    schema_of,
    stage_note,
    unused_files,
)
from tasks.downstream.glue.params import GlueData
from tasks.downstream.glue.tasks import TRAIN, GlueTask
from tasks.inputs.dev_labels import require_several
from tasks.inputs.tables import without_rows
from tasks.project.errors import InputError
from tasks.reading.text_files import Reading, write_reading

ROW_GROUP = 8192
HEAD = 10_000
"""Examples of each split that are looked at before a run."""


class Task(about.Task, ExamplesTask):
    """Examples of files or of the Hub."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.first_labels, self.has_pairs = self.labels, len(self.glue.columns) > 1

    def write_examples(self, folder: Path) -> str:
        assert isinstance(self.entry.params.data, GlueData)
        counts, reading = make_glue_data(self.glue, self.entry.params.data, folder)
        return "; ".join(
            [", ".join(f"{count:,} {split}" for split, count in counts.items()) + " examples", *reading.summary()]
        )

    def complete(self, folder: Path) -> dict[str, int]:
        for split in self.development:
            self._check_dev(split, pq.read_table(folder / f"{split}.parquet", columns=["label"])["label"].to_pylist())
        return {}

    def _check_dev(self, split: str, labels: Collection[float]) -> None:
        names = labels if self.is_regression else [self.glue.labels[int(one)] for one in labels]
        require_several(set(names), split, self.entry.key("data", "path"))

    def check_files(self) -> str:
        """The first examples of every split, and the labels of development files that are no longer than that."""
        assert isinstance(self.entry.params.data, GlueData)
        path, separator = self.entry.params.data.path, self.entry.params.data.separator
        for split in self.glue.splits:
            found = examples_from_files(self.glue, Path(path), split, Reading(), separator)
            labels = [one.label for one in itertools.islice(found, HEAD)]
            if split != TRAIN and len(labels) < HEAD:
                self._check_dev(split, labels)
        return f"{self.glue.name} in {path}"


def make_glue_data(task: GlueTask, params: GlueData, folder: Path) -> tuple[dict[str, int], Reading]:
    """Write the splits of `task` to `folder`, all or none.

    Returns:
        Examples of each split, and what was counted on the way.

    Raises:
        InputError: the first thing that is not as the task needs it, or a split without examples.
    """
    reading, counts = Reading(), {}
    if params.source == "files":
        reading.ignored = unused_files(task, Path(params.path))
    with new_folder(folder) as partial:
        for split in task.splits:
            if params.source == "files":
                examples = examples_from_files(task, Path(params.path), split, reading, params.separator)
            else:
                examples = examples_from_hub(task, params.dataset, params.dataset_revision, split)
            counts[split] = write_split(task, examples, split, partial / f"{split}.parquet", reading)
        write_reading(partial, params.source, reading)
    return counts, reading


def write_split(task: GlueTask, examples: Iterator[Example], split: str, path: Path, reading: Reading) -> int:
    """Write checked examples to a Parquet file; how many there are.

    Raises:
        InputError: none, or what is wrong with one.
    """
    count, schema = 0, schema_of(task)
    number = float if task.is_regression else int
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(itertools.islice(examples, ROW_GROUP)):
            empty = [example for example in group if not all(example[: len(task.columns)])]
            reading.counts[stage_note(split)] += len(empty)
            kept = [example for example in group if split != TRAIN or all(example[: len(task.columns)])]
            rows = [{"first": one.first, "second": one.second, "label": number(one.label)} for one in kept]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(kept)
    if not count:
        raise InputError(
            f"{task.title} has no {split} example{without_rows(reading)}: look at {KEY} or dataset beside it"
        )
    return count
