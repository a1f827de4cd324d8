"""What rows must be by the columns that their kind declares (ipu_model/rows/format.py): values in their range, and the
value that means nothing wherever there is nothing. Legend: n rows."""

from __future__ import annotations

import numpy as np

from tasks.rows.row_files import IGNORED, PREDICTIONS, SEQUENCES, TOKENS, Column, columns_of
from tasks.validation.checks import Check
from tasks.validation.row_features import Columns, Sequences
from tasks.validation.row_rules import RowLimits

STRUCTURE = ("sequence_ids", "cls_positions")
"""Columns that say where sequences are, and so what is in use; row_checks.py holds them against each other."""
NOWHERE = {TOKENS: "in padding", SEQUENCES: "where no sequence is", PREDICTIONS: "where nothing is masked"}
TOKEN_TYPES = 2


class ColumnRules:
    """A check for each column of the rows of one folder."""

    def __init__(self, limits: RowLimits) -> None:
        """Take note of what is required."""
        manifest, again = limits.manifest, limits.again
        sizes = {
            "vocab_size": limits.vocab_size,
            "type_vocab_size": TOKEN_TYPES,
            "max_positions": limits.max_positions,
            "row_length": manifest.row_length,
            "num_labels": max(1, manifest.num_labels),
        }
        advice = {
            "vocab_size": f"the tokenizer may have changed: {again}",
            "max_positions": f"raise model.max_positions or lower {limits.section}.row_length",
        }
        declared = columns_of(manifest.kind, manifest.vocab_size)
        self._ends = {column: column.end(sizes) for column in declared if column.name not in STRUCTURE}
        self.record_checks = tuple(
            Check(column.name, column.name, _requirement(column, end), advice.get(str(column.below), again))
            for column, end in self._ends.items()
        )

    def features(self, rows: Columns, found: Sequences) -> Columns:
        """Return the number of values that are not as declared, by column. int64 [n] each."""
        used = {TOKENS: found.real, SEQUENCES: found.present(rows["cls_positions"].shape[1])}
        for column in self._ends:
            if column.width == PREDICTIONS and column.least == IGNORED:
                used[PREDICTIONS] = rows[column.name] != IGNORED
        return {
            column.name: _are_wrong(rows[column.name], used[column.width], column, end).sum(axis=1)
            for column, end in self._ends.items()
        }


def _requirement(column: Column, end: float) -> str:
    values = "a finite number" if end == float("inf") else f"from 0 to {int(end) - 1:,}"
    if isinstance(column.below, str):
        values += f", as {column.below} is {int(end):,}"
    # A token or a sequence may be without a label, which its kind allows or not; what is masked has one.
    or_none = f", or {IGNORED} for none" if column.least == IGNORED and column.width != PREDICTIONS else ""
    return f"{values}{or_none}; {column.least} {NOWHERE[column.width]}"


def _are_wrong(values: np.ndarray, used: np.ndarray, column: Column, end: float) -> np.ndarray:
    right = np.isfinite(values) if end == float("inf") else (values >= 0) & (values < end)
    if column.least == IGNORED:
        right |= values == IGNORED
    return np.where(used, ~right, values != column.least)
