"""Histogram packing: the assignment of sequences to rows.

The plan is made on the histogram of lengths, so its cost depends on the row length and not on the number of sequences.
Lengths are placed from longest to shortest, each into the fullest row that still has room (best fit decreasing, for
whole groups of equal rows at a time). Packing by histogram follows Krell, Kosec, Perez, Fitzgibbon, "Efficient
Sequence Packing without Cross-contamination", arXiv 2107.02027.
"""

from collections.abc import Sequence

import numpy as np

from tasks.stage.errors import InputError

Composition = tuple[int, ...]
NO_SEQUENCE = -1


def plan_packs(
    histogram: Sequence[int] | np.ndarray, row_length: int, max_sequences: int
) -> list[tuple[int, Composition]]:
    """Plan rows that hold all sequences, at most `max_sequences` each; 1 disables packing.

    Return (multiplicity, composition) pairs: the number of rows with sequences of these lengths, longest first.
    plan_packs([0, 0, 3, 1], 4, 3) == [(1, (3,)), (1, (2, 2)), (1, (2,))], in some order. Entry n of the histogram is
    the number of sequences of n tokens, n = 0..row_length; entry 0 must be 0.

    Raises:
        InputError: a sequence is empty or longer than a row.
    """
    counts = np.asarray(histogram, dtype=np.int64)
    if len(counts) > row_length + 1 and counts[row_length + 1 :].any():
        raise InputError(
            f"a sequence of {int(np.flatnonzero(counts)[-1])} tokens does not fit into a row of {row_length} tokens: "
            "raise row_length"
        )
    if counts[:1].any():
        raise InputError("a sequence without tokens cannot be packed")
    plan = _OpenRows(row_length, max_sequences)
    for length in np.flatnonzero(counts)[::-1].tolist():
        plan.add(length, int(counts[length]))
    return plan.strategies()


class _OpenRows:
    """Groups of equal rows that still have room, by number of free tokens."""

    def __init__(self, row_length: int, max_sequences: int) -> None:
        self.row_length, self.max_sequences = row_length, max_sequences
        self.by_room: list[list[tuple[int, Composition]]] = [[] for _ in range(row_length + 1)]

    def add(self, length: int, count: int) -> None:
        """Put `count` sequences of `length` tokens into rows, the fullest first."""
        for room in range(length, self.row_length + 1):
            # Rows that take a sequence move to less room, which this pass has already visited: none is seen twice.
            groups = self.by_room[room]
            while groups and count:
                count -= self._fill(*groups.pop(), room, length, count)
        while count:
            count -= self._fill(count, (), self.row_length, length, count)

    def _fill(self, rows: int, composition: Composition, room: int, length: int, count: int) -> int:
        """Fill a group of `rows` equal rows, and return how many of the `count` sequences were placed.

        A row takes as many sequences as fit: after the first it is the fullest row with room.
        """
        per_row = min(self.max_sequences - len(composition), room // length)
        filled = min(rows, count // per_row)
        rest = count - filled * per_row if filled < rows else 0
        self._add(filled, composition + (length,) * per_row, room - length * per_row)
        if rest:
            self._add(1, composition + (length,) * rest, room - length * rest)
        if composition:
            self._add(rows - filled - (rest > 0), composition, room)
        return filled * per_row + rest

    def _add(self, rows: int, composition: Composition, room: int) -> None:
        if rows:  # a row of the most sequences has no room
            self.by_room[0 if len(composition) == self.max_sequences else room].append((rows, composition))

    def strategies(self) -> list[tuple[int, Composition]]:
        return [group for groups in self.by_room for group in groups]


def pack_sequences(lengths: np.ndarray, row_length: int, max_sequences: int) -> np.ndarray:
    """Assign sequences of int[N] tokens to rows; those of equal length are used in order, so only `lengths` decide.

    Return int32[rows, max_sequences], indices into `lengths`; -1 in unused slots, which come last. Every index occurs
    exactly once.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    histogram = np.bincount(lengths, minlength=row_length + 1)
    strategies = plan_packs(histogram, row_length, max_sequences)
    # NumPy sorts two-byte integers by radix: 10 million lengths (384 at most) take 0.35 s, with eight bytes 1.1 s;
    # 8,000 take 3 ms either way, mostly for the plan.
    keys = lengths.astype(np.uint16) if row_length < 1 << 16 else lengths
    by_length = np.argsort(keys, kind="stable")
    next_of = np.cumsum(histogram) - histogram  # first unused sequence of each length in by_length
    packs = np.full((sum(rows for rows, _ in strategies), max_sequences), NO_SEQUENCE, dtype=np.int32)
    first = 0
    for rows, composition in strategies:
        for column, length in enumerate(composition):
            begin = int(next_of[length])
            packs[first : first + rows, column] = by_length[begin : begin + rows]
            next_of[length] += rows
        first += rows
    return packs
