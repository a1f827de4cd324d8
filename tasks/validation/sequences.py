"""Where the sequences of rows are, by sequence_ids alone. Legend: n rows of L tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Columns = dict[str, np.ndarray]
"""Column name -> [n, width] array as stored."""


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


def find_sequences(sequence_ids: np.ndarray) -> tuple[Sequences, Columns]:
    """Sequences of rows, and what is wrong with their order.

    Args:
        sequence_ids: uint8 [n, L], 1.. in order, 0 = padding.

    Returns:
        The sequences; features [n] `sequences` (how many), `padding_at_end` (padding before the last real
        token), `sequences_in_order` (tokens that break 1, 1, 2, 2, 3 ...).
    """
    n, length = sequence_ids.shape
    real = sequence_ids > 0
    end_of_row = np.where(real.any(axis=1), length - np.argmax(real[:, ::-1], axis=1), 0)
    holes = end_of_row - real.sum(axis=1)
    columns = np.arange(length, dtype=np.int16)
    before = np.zeros_like(sequence_ids)
    before[:, 1:] = sequence_ids[:, :-1]
    if holes.any():  # a sequence goes on after padding inside it
        last_real = np.maximum.accumulate(np.where(real, columns, np.int16(0)), axis=1)
        before[:, 1:] = np.take_along_axis(sequence_ids, last_real.astype(np.int64), axis=1)[:, :-1]
    is_start = real & (sequence_ids != before)
    row, start = np.nonzero(is_start)
    per_row = np.bincount(row, minlength=n)
    slot = np.arange(len(row)) - (np.cumsum(per_row) - per_row)[row]
    end = end_of_row[row]
    same_row = row[1:] == row[:-1]
    end[:-1][same_row] = start[1:][same_row]
    start_of_token = np.maximum.accumulate(np.where(is_start, columns, np.int16(0)), axis=1)
    jumps = is_start & (sequence_ids.astype(np.int16) != before.astype(np.int16) + 1)
    features = {
        "sequences": per_row,
        "padding_at_end": holes,
        "sequences_in_order": jumps.sum(axis=1),
    }
    return Sequences(row, slot, start, end - start, per_row, real, start_of_token), features
