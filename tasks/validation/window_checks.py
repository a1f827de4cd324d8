"""Checks of window rows: features.parquet of their folder is compared with their sequences.

Legend: n rows of S slots.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.rows.row_files import from_arrow
from tasks.stage import artifacts
from tasks.validation import text_features
from tasks.validation.checks import DataCheck, TotalFeature, Totals
from tasks.validation.row_checks import Columns, RowData, RowSequences, RowSource

FEATURE_ID, N_TOKENS = "feature_id", "n_tokens"


@dataclass(frozen=True)
class FeatureLines:
    """Lines of features.parquet for the slots of n rows."""

    present: np.ndarray
    """Slots with a sequence. bool [n, S]."""
    known: np.ndarray
    """Slots whose line exists in the file. bool [n, S]."""
    starts: np.ndarray
    """First token of the sequence. int64 [n, S]."""
    lengths: np.ndarray
    """Tokens of the sequence, 0 if there is none. int64 [n, S]."""
    columns: Columns
    """Integers of the lines by column; undefined if the line is not known. int64 [n, S]."""


class WindowData(RowData):
    """Rows of windows; kinds add the checks of labels."""

    def __init__(
        self, source: RowSource, schema: pa.Schema, labels: Sequence[DataCheck], columns: Sequence[str] = ()
    ) -> None:
        """Open the rows.

        Args:
            schema: columns of features.parquet, including feature_id and n_tokens.
            labels: checks of the labels of every row.
            columns: further integer columns of features.parquet to read.
        """
        super().__init__(source)
        numbered = "feature_id 0, 1, 2, ..., one for each sequence"
        self.total_checks += (DataCheck("features_numbered", "features.parquet", numbered, self.advice),)
        self.record_checks += (
            *labels,
            DataCheck("feature_slots", "feature_ids", "a line of features.parquet for every sequence", self.advice),
            DataCheck("feature_lengths", "features.parquet n_tokens", "the tokens of the sequence", self.advice),
        )
        self._path, self._schema, self._names = self.folder / artifacts.FEATURES, schema, (N_TOKENS, *columns)
        self._ids = np.zeros(0, np.int64)
        self._columns: Columns = {}

    def prepare_kind(self) -> list[str]:
        if not self._path.is_file():
            return [f"{self._path.name} is missing"]
        differences = text_features.compare_schema(self._path, self._schema)
        if differences:
            return differences
        required = [FEATURE_ID, *self._names]
        table = text_features.open_parquet(self._path).read(columns=required)
        columns = {name: _read_integers(table[name].combine_chunks()) for name in required}
        self._ids, self._columns = columns.pop(FEATURE_ID), columns
        return []

    def kind_features(self, rows: Columns, found: RowSequences) -> Columns:
        lines = self._lines(rows, found)
        return {
            "feature_slots": (lines.present & ~lines.known).sum(axis=1),
            "feature_lengths": (lines.known & (lines.lengths != lines.columns[N_TOKENS])).sum(axis=1),
            **self.label_features(rows, found, lines),
        }

    @abstractmethod
    def label_features(self, rows: Columns, found: RowSequences, lines: FeatureLines) -> Columns:
        """Return the features [n] of the checks of labels.

        Args:
            lines: lines of features.parquet for the slots of the rows.
        """

    def _lines(self, rows: Columns, found: RowSequences) -> FeatureLines:
        """Return the lines of features.parquet for the slots of rows."""
        ids, count = rows["feature_ids"].astype(np.int64), len(self._ids)
        present = found.present(ids.shape[1])
        starts, lengths = (found.table(values, ids.shape[1], 0) for values in (found.start, found.length))
        # Without lines there are no values to look up, and `known` is false everywhere.
        taken = np.clip(ids, 0, max(0, count - 1))
        columns = {name: values[taken] if count else np.zeros_like(ids) for name, values in self._columns.items()}
        return FeatureLines(present, present & (ids >= 0) & (ids < count), starts, lengths, columns)

    def totals(self) -> Totals:
        sequences = self.manifest.sequences
        other = np.flatnonzero(self._ids != np.arange(len(self._ids)))
        lines = [f"line {i}: feature_id {self._ids[i]}" for i in other[:3]]
        shown = f"{len(other):,} lines with another feature_id, {len(self._ids):,} lines of {sequences:,} sequences"
        numbered = TotalFeature(len(other) + abs(len(self._ids) - sequences), shown, lines)
        return {**super().totals(), "features_numbered": numbered}


def _read_integers(column: pa.Array) -> np.ndarray:
    """Return the integers of a column; -1 for null. int64 [n]."""
    return from_arrow(column.fill_null(-1) if column.null_count else column).astype(np.int64)
