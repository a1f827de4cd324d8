"""Texts as sequences of rows, with the names of their classes in features.parquet."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tasks.downstream.classification import about
from tasks.downstream.labelled.rows import LabelledRowsTask
from tasks.reading.labels import labels_in, with_labels
from tasks.rows.row_files import IGNORED

FEATURES_SCHEMA = pa.schema([pa.field(name, pa.int32(), nullable=False) for name in ("feature_id", "example_index")])


class Task(about.Task, LabelledRowsTask):
    """Each example becomes one sequence; dev examples of classes that train has not have no label there."""

    @property
    def labels(self) -> tuple[str, ...]:
        """As the examples have them: rows that lie there may be of others."""
        return super().labels or labels_in(self.examples_file(self.development[0]))

    @property
    def features(self) -> pa.Schema | None:
        return None if self.is_regression else with_labels(FEATURES_SCHEMA, self.labels)

    def numbers(self, labels: np.ndarray) -> np.ndarray:
        return labels if self.is_regression else np.where(labels < len(self.labels), labels, IGNORED).astype(np.int32)

    def feature_table(self, examples: int) -> pa.Table | None:
        numbers = pa.array(np.arange(examples, dtype=np.int32))
        return None if self.is_regression else pa.table([numbers, numbers], schema=FEATURES_SCHEMA)
