"""What labelled texts of one's own must be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.downstream.classification import about
from tasks.downstream.classification.format import schema_of
from tasks.downstream.labelled.checks import LabelledChecksTask, LabelledData, Meant
from tasks.downstream.task import TRAIN
from tasks.reading.labels import all_labels_in, labels_of_rows
from tasks.reading.parquet import read_batches
from tasks.rows.row_files import IGNORED
from tasks.validation.checks import DataSet
from tasks.validation.row_rules import Examples


class Task(about.Task, LabelledChecksTask):
    """Training and dev examples."""

    def data(self, folder: Path) -> DataSet:
        section, entry = self.entry.key("data"), self.entry
        look = f"look at train_path, dev_path, columns and dataset of {section} in params.yaml"
        labels, others = ((), ()) if self.is_regression else all_labels_in(folder / "dev.parquet")
        meant = Meant(
            name=entry.verdict(),
            schema=schema_of(pa.float32() if self.is_regression else pa.int32()),
            columns=("first", "second") if self._are_pairs(folder) else ("text",),
            values=(-np.inf, np.inf) if self.is_regression else (0, len(labels) + len(others) - 1),
            classes=None if self.is_regression else (*labels, *others),
            required=len(labels),
            min_examples=entry.params.data.min_examples,
            look=look,
        )
        return LabelledData(meant, folder, self.splits)

    def expected_labels(self, examples: Examples, rows: Path) -> np.ndarray:
        """Compare names: the classes of rows have the numbers that features.parquet states."""
        labels = super().expected_labels(examples, rows)
        if self.is_regression:
            return labels
        learned, others = all_labels_in(examples.path)
        numbers = {name: number for number, name in enumerate(labels_of_rows(rows))}
        return np.array([numbers.get(name, IGNORED) for name in (*learned, *others)])[labels]

    def _are_pairs(self, folder: Path) -> bool:
        """Whether the training examples are: the first one says it for all, as the checks then do."""
        rows = read_batches(folder / f"{TRAIN}.parquet", ("second",), 1, self.entry.stage("examples"))
        return any(one is not None for one in next(rows, pa.record_batch({"second": []}))["second"].to_pylist())
