"""Texts with labels as Parquet, one file a split, and reading.json; format.py checks each before anything is kept.

The names of the classes stand in the files, beside the columns.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.downstream.classification import about
from tasks.downstream.classification.format import Example, as_known, in_order, read_examples, schema_of
from tasks.downstream.classification.params import TextsParams
from tasks.downstream.entries import Entry
from tasks.downstream.examples import ExamplesTask
from tasks.inputs.dev_labels import require_known, require_several
from tasks.project.errors import InputError
from tasks.reading.labels import with_labels
from tasks.reading.parquet import group_batches
from tasks.reading.text_files import Reading, write_reading

ROW_GROUP = 8192
HEAD = 10_000
"""Examples of each file that are looked at before a run."""
MAX_CLASSES = 1000
UNKNOWN = "dev examples of classes that train has not, which no model can answer"


class Task(about.Task, ExamplesTask):
    """Texts of files or of the Hub."""

    groups: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = (("text", ("first", "second")),)

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.has_pairs = self._params().columns.text_pair is not None

    def write_examples(self, folder: Path) -> str:
        params, reading = self._params(), Reading()
        counts = {
            split: self._write(read_examples(params, self.entry.key("data"), split, self.is_regression, reading), file)
            for split, file in ((split, folder / f"{split}.parquet") for split in self.read_splits)
        }
        if len({pairs for _, pairs in counts.values()}) > 1:
            raise InputError(
                f"one split has pairs of texts, the other single texts ({'; '.join(reading.layouts.values())}): "
                f"state {self.entry.key('data', 'columns.text')} and {self.entry.key('data', 'columns.text_pair')}"
            )
        write_reading(folder, params.source, reading)
        said = ", ".join(f"{count:,} {split}" for split, (count, _) in counts.items())
        return "; ".join([f"{said} examples", *reading.summary()])

    def _params(self) -> TextsParams:
        assert isinstance(self.entry.params.data, TextsParams)
        return self.entry.params.data

    def _write(self, examples: Iterator[Example], path: Path) -> tuple[int, bool]:
        return write_split(examples, path, pa.float32() if self.is_regression else pa.string())

    def complete(self, folder: Path) -> dict[str, int]:
        """Numbers of the classes that the training examples have, in place of their names."""
        train, dev = (different_labels(folder / f"{split}.parquet") for split in self.splits)
        if self.is_regression:
            self._check_dev(train, dev)
            return {}
        labels = in_order(train)
        others = in_order(set(as_known(dev, labels).values()) - set(labels))
        self._require_classes(labels, MAX_CLASSES)
        self._check_dev(train, dev)
        return {UNKNOWN: sum(number(folder / f"{split}.parquet", labels, others) for split in self.splits)}

    def _require_classes(self, labels: Sequence[str], most: float) -> None:
        if not 2 <= len(labels) <= most:
            only = f" ({labels[0]})" if len(labels) == 1 else ""
            raise InputError(
                f"the training examples have labels of {len(labels):,} class(es){only}, required are 2 to "
                f"{MAX_CLASSES:,}: look at {self.entry.key('data', 'columns.label')}; for values state "
                f"downstream.{self.entry.name}.regression: true"
            )

    def _check_dev(self, train: Collection[Any], dev: Collection[Any]) -> None:
        """Refuse development examples by their labels.

        Raises:
            InputError: all have the same, or examples that were given have none of a class of the training examples.
        """
        [split], look = self.development, self.entry.key("data", "dev_path" if self.apart is None else "dev_fraction")
        if not self.is_regression:
            dev = as_known(dev, in_order(train)).values()
            if self.apart is None:
                require_known(train, set(dev), split, look)
        require_several(set(dev), split, look)

    def check_files(self) -> str:
        """The first examples of each file, and the classes of files that are no longer than that."""
        params, reading, labels = self._params(), Reading(), list[Counter[Any]]()
        for split in self.read_splits:
            labels.append(Counter())
            for one in read_examples(params, self.entry.key("data"), split, self.is_regression, reading, HEAD):
                labels[-1][one.label] += 1
                self.has_pairs = one.second is not None
        self.first_labels = self.labels or in_order(labels[0])
        self.has_all_labels = labels[0].total() < HEAD
        if self.has_all_labels and not self.is_regression:
            # Where a part of the file is set apart, the training examples may have fewer classes than the file.
            self._require_classes(in_order(labels[0]), MAX_CLASSES if self.apart is None else math.inf)
        if len(labels) == len(self.splits) and all(found.total() < HEAD for found in labels):
            self._check_dev(*labels)
        return f"{params.train_path} and {params.dev_path or 'a part of it'}: {next(iter(reading.layouts.values()))}"


def write_split(examples: Iterator[Example], path: Path, label: pa.DataType) -> tuple[int, bool]:
    """Write examples to a Parquet file, classes by name; how many there are, and whether they are pairs."""
    count, pairs, schema = 0, False, schema_of(label)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(itertools.islice(examples, ROW_GROUP)):
            writer.write_table(pa.Table.from_pylist([one._asdict() for one in group], schema=schema))
            count, pairs = count + len(group), group[0].second is not None
    return count, pairs


def different_labels(path: Path) -> list[Any]:
    """Return the labels that the examples of a Parquet file have, each once."""
    found: list[Any] = pc.unique(pq.read_table(path, columns=["label"]).column("label")).to_pylist()
    return found


def number(path: Path, labels: tuple[str, ...], others: tuple[str, ...]) -> int:
    """Write numbers in place of names; how many are of other classes than `labels`."""
    schema, names = with_labels(schema_of(pa.int32()), labels, others), [*labels, *others]
    known = as_known(different_labels(path), labels)
    texts = pa.array(list(known), pa.string())
    numbers = pa.array([names.index(name) for name in known.values()], pa.int32())
    partial, count = path.with_suffix(".part"), 0
    with (
        pq.ParquetFile(path, pre_buffer=False) as file,
        pq.ParquetWriter(partial, schema, compression="zstd") as writer,
    ):
        for batch in group_batches(file, file.schema_arrow.names, ROW_GROUP):
            found = numbers.take(pc.index_in(batch.column("label"), value_set=texts))
            count += pc.sum(pc.greater_equal(found, len(labels))).as_py() or 0
            columns = [found if name == "label" else batch.column(name) for name in schema.names]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    partial.rename(path)
    return count
