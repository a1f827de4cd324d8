"""What a kind of rows adds to the requirements on all rows (row_checks.py), stated where the kind is at home.

Those of pre-training are in pretrain_rules.py, those of downstream work in tasks/downstream/<kind>/, which
`ChecksTask.row_rules` offers. Legend: n rows of L tokens and S slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tasks.project import artifacts
from tasks.project.row_folders import Manifest
from tasks.reading.parquet import read_batches
from tasks.rows.row_files import from_arrow
from tasks.validation import text_features
from tasks.validation.checks import Check, Requirements, Total, Totals

Columns = dict[str, np.ndarray]
"""Column name -> [n, width] array as stored."""
FEATURE_ID, N_TOKENS = "feature_id", "n_tokens"


@dataclass(frozen=True)
class Sequences:
    """Where the sequences of some rows are, found from sequence_ids alone."""

    row: np.ndarray
    """Row of every sequence, in order of row and position. int64 [sequences]."""
    slot: np.ndarray
    """Its number within the row, from 0. int64 [sequences]."""
    start: np.ndarray
    """Its first token. int64 [sequences]."""
    length: np.ndarray
    """Its tokens, up to the next sequence or the last real token. int64 [sequences]."""
    per_row: np.ndarray
    """Sequences of every row. int64 [n]."""
    real: np.ndarray
    """True where a token is no padding. [n, L]."""
    start_of_token: np.ndarray
    """First token of the sequence that a token is in. int16 [n, L]."""

    def present(self, slots: int) -> np.ndarray:
        """Return where a row has a sequence. bool [n, slots]."""
        return np.arange(slots) < self.per_row[:, None]

    def table(self, values: np.ndarray, slots: int, absent: int) -> np.ndarray:
        """One value per sequence as [n, slots]; `absent` where there is no sequence."""
        table = np.full((len(self.per_row), slots), absent, np.int64)
        fits = self.slot < slots
        table[self.row[fits], self.slot[fits]] = values[fits]
        return table


@dataclass(frozen=True)
class RowLimits:
    """What rows are measured against."""

    folder: Path
    section: str
    """Section of params.yaml that made the rows."""
    manifest: Manifest
    vocab_size: int
    """Vocabulary size of data/tokenizer."""
    tokenizer_sha256: str
    """SHA-256 of its tokenizer.json."""
    max_positions: int
    max_unknown_share: float = 1.0
    """Share of [UNK] among the tokens at most."""

    @property
    def again(self) -> str:
        return f"make the rows again (section {self.section} of params.yaml)"


Side = Callable[[pa.RecordBatch], pa.Array]
"""Which examples of a batch are wanted: booleans."""


@dataclass(frozen=True)
class Examples:
    """The examples that the rows of one folder were made from."""

    path: Path
    stage: str
    """That writes them, for messages."""
    choose: Callable[[], tuple[Side, Sequence[str]]] | None = None
    """Finds which of a batch the rows were made from, and the columns that say so; None: all."""

    def read(self, columns: Sequence[str], at_once: int = 8192) -> Iterator[pa.RecordBatch]:
        """Yield them in order, with these columns among others.

        Raises:
            InputError: they are missing or damaged.
        """
        side, others = self.choose() if self.choose is not None else (None, ())
        for batch in read_batches(self.path, tuple(dict.fromkeys((*columns, *others))), at_once, self.stage):
            yield batch if side is None else batch.filter(side(batch))


class RowRules(Requirements, ABC):
    """The rules for the rows of one folder, and what was seen of these rows.

    The methods are called in this order: `prepare`, `features` for batch after batch, then the others. None but
    `prepare` is called where the files, columns or tokenizer are not those that the manifest names.
    """

    kinds: ClassVar[tuple[str, ...]]
    """Kinds of rows, as manifests name them, that the rules are for."""

    def __init__(self, limits: RowLimits) -> None:
        self.limits = limits

    def prepare(self) -> list[str]:
        """Read what lies beside the rows; returns what is wrong with its columns."""
        return []

    @abstractmethod
    def features(self, rows: Columns, found: Sequences) -> Columns:
        """One integer array [n] by the name of each record check.

        Args:
            rows: the columns of n rows, as stored.
            found: where their sequences are.
        """


RulesOf = Callable[[RowLimits], RowRules]
"""Makes the rules for a folder once it is known what its rows are measured against."""


@dataclass(frozen=True)
class Lines:
    """The lines that the slots of some rows name. n rows of S slots."""

    present: np.ndarray
    """Where a sequence is. bool [n, S]."""
    known: np.ndarray
    """Where the file has the line that it names. bool [n, S]."""
    starts: np.ndarray
    """First token of the sequence. int64 [n, S]."""
    lengths: np.ndarray
    """Tokens of the sequence, 0 where there is none. int64 [n, S]."""
    columns: Columns
    """Integers of these lines by column; they mean nothing where the line is not known. int64 [n, S]."""


class WindowRules(RowRules):
    """Rules of features.parquet of a folder, held against the sequences of its rows; a kind adds those of labels."""

    def __init__(self, limits: RowLimits, schema: pa.Schema, columns: tuple[str, ...] = ()) -> None:
        """Take note of what is required.

        Args:
            schema: its columns; feature_id and n_tokens are among them.
            columns: others of them, of integers, that the lines are to have.
        """
        super().__init__(limits)
        again = limits.again
        self.total_checks: tuple[Check, ...] = (
            Check("features_numbered", "features.parquet", "feature_id 0, 1, 2, ..., one for each sequence", again),
        )
        self.record_checks: tuple[Check, ...] = (
            Check("feature_slots", "feature_ids", "a line of features.parquet for every sequence", again),
            Check("feature_lengths", "features.parquet n_tokens", "the tokens of the sequence", again),
        )
        self._path, self._schema, self._names = limits.folder / artifacts.FEATURES, schema, (N_TOKENS, *columns)
        self._ids = np.zeros(0, np.int64)
        self._columns: Columns = {}

    def prepare(self) -> list[str]:
        if not self._path.is_file():
            return [f"{self._path.name} is missing"]
        differences = text_features.schema_differences(self._path, self._schema)
        if differences:
            return differences
        required = [FEATURE_ID, *self._names]
        table = text_features.open_parquet(self._path).read(columns=required)
        columns = {name: _read_numbers(table[name].combine_chunks()) for name in required}
        self._ids, self._columns = columns.pop(FEATURE_ID), columns
        return []

    def features(self, rows: Columns, found: Sequences) -> Columns:
        lines = self._lines(rows, found)
        return {
            "feature_slots": (lines.present & ~lines.known).sum(axis=1),
            "feature_lengths": (lines.known & (lines.lengths != lines.columns[N_TOKENS])).sum(axis=1),
            **self.label_features(rows, found, lines),
        }

    @abstractmethod
    def label_features(self, rows: Columns, found: Sequences, lines: Lines) -> Columns:
        """Return the features [n] of the checks of labels.

        Args:
            lines: of features.parquet, that the slots of the rows name.
        """

    def _lines(self, rows: Columns, found: Sequences) -> Lines:
        """The lines of the slots of some rows."""
        ids, count = rows["feature_ids"].astype(np.int64), len(self._ids)
        present = found.present(ids.shape[1])
        starts, lengths = (found.table(values, ids.shape[1], 0) for values in (found.start, found.length))
        # Without lines there is nothing to take from; `known` is false everywhere then.
        taken = np.clip(ids, 0, max(0, count - 1))
        columns = {name: values[taken] if count else np.zeros_like(ids) for name, values in self._columns.items()}
        return Lines(present, present & (ids >= 0) & (ids < count), starts, lengths, columns)

    def totals(self) -> Totals:
        sequences = self.limits.manifest.sequences
        other = np.flatnonzero(self._ids != np.arange(len(self._ids)))
        lines = [f"line {i}: feature_id {self._ids[i]}" for i in other[:3]]
        shown = f"{len(other):,} lines with another feature_id, {len(self._ids):,} lines of {sequences:,} sequences"
        return {"features_numbered": Total(len(other) + abs(len(self._ids) - sequences), shown, lines)}


def _read_numbers(column: pa.Array) -> np.ndarray:
    """Return the integers of a column; -1 for null. int64 [n]."""
    return from_arrow(column.fill_null(-1) if column.null_count else column).astype(np.int64)
