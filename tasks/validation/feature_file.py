"""What features.parquet must be, for kinds of rows that have it: a line for every sequence of the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tasks.project import artifacts
from tasks.validation import text_features
from tasks.validation.checks import Check, Total, Totals
from tasks.validation.row_features import Columns, Sequences
from tasks.validation.row_rules import Occurrences, RowLimits, RowRules

FEATURE_ID, N_TOKENS = "feature_id", "n_tokens"


@dataclass(frozen=True)
class Lines:
    """The lines that the slots of some rows name. n rows of S slots."""

    present: np.ndarray
    """Where a sequence is. bool [n, S]."""
    known: np.ndarray
    """Where the file has the line that it names. bool [n, S]."""
    columns: Columns
    """Integers of these lines by column; they mean nothing where the line is not known. int64 [n, S]."""


class WindowRules(RowRules):
    """Rules of features.parquet of a folder, held against the sequences of its rows; a kind adds those of labels."""

    def __init__(self, limits: RowLimits, schema: pa.Schema, columns: tuple[str, ...] = ()) -> None:
        """Take note of what is required.

        Args:
            schema: its columns; feature_id and n_tokens are among them.
            columns: others of them, of integers, that `lines` is to give.
        """
        super().__init__(limits)
        again = limits.again
        self.total_checks: tuple[Check, ...] = (
            Check("features_numbered", "features.parquet", "feature_id 0, 1, 2, ... in order", again),
            Check("features_once", "feature_ids", "every feature of features.parquet exactly once", again),
        )
        self.record_checks: tuple[Check, ...] = (
            Check("feature_slots", "feature_ids", "a line of features.parquet for every sequence", again),
            Check("feature_lengths", "features.parquet n_tokens", "the tokens of the sequence", again),
        )
        self._path, self._schema, self._names = limits.folder / artifacts.FEATURES, schema, (N_TOKENS, *columns)
        self._ids, self._seen = np.zeros(0, np.int64), Occurrences(0)
        self._columns: Columns = {}

    def prepare(self) -> list[str]:
        if not self._path.is_file():
            return [f"{self._path.name} is missing"]
        differences = text_features.schema_differences(self._path, self._schema)
        if differences:
            return differences
        required = [FEATURE_ID, *self._names]
        table = text_features.open_parquet(self._path).read(columns=required)
        columns = {name: table.column(name).fill_null(-1).to_numpy().astype(np.int64) for name in required}
        self._ids, self._columns = columns.pop(FEATURE_ID), columns
        self._seen = Occurrences(len(self._ids))
        return []

    def lines(self, rows: Columns, found: Sequences) -> Lines:
        """The lines of the slots of some rows."""
        ids, count = rows["feature_ids"].astype(np.int64), len(self._ids)
        present = found.present(ids.shape[1])
        # Without lines there is nothing to take from; `known` is false everywhere then.
        taken = np.clip(ids, 0, max(0, count - 1))
        columns = {name: values[taken] if count else np.zeros_like(ids) for name, values in self._columns.items()}
        return Lines(present, present & (ids >= 0) & (ids < count), columns)

    def window_features(self, rows: Columns, found: Sequences, lines: Lines) -> Columns:
        """Return the features [n] of the checks of windows; the lines that were seen are counted."""
        ids = rows["feature_ids"]
        self._seen.add(ids.reshape(-1))
        tokens = found.table(found.length, ids.shape[1], 0)
        return {
            "feature_slots": (lines.present & ~lines.known).sum(axis=1),
            "feature_lengths": (lines.known & (tokens != lines.columns[N_TOKENS])).sum(axis=1),
        }

    def totals(self) -> Totals:
        once = self._seen.total("feature")
        misnumbered = np.flatnonzero(self._ids != np.arange(len(self._ids)))
        lines = [f"line {i}: feature_id {self._ids[i]}" for i in misnumbered[:3]]
        shown = f"{once.value:,} of {len(self._seen):,} features are not there exactly once"
        return {
            "features_once": replace(once, shown=shown),
            "features_numbered": Total(len(misnumbered), f"{len(misnumbered):,} lines with another feature_id", lines),
        }
