"""Distributions of small whole numbers (lengths, counts), gathered piece by piece in fixed memory."""

from __future__ import annotations

from typing import Any

import numpy as np

HIGHEST = 100_000
"""Numbers above it are counted as this one; sums, and so means, stay exact."""
BARS = 32
LINEAR_RATIO = 30
"""Largest / smallest number up to which bars of equal width show more than bars of equal ratio."""


class Lengths:
    """How often each length was seen."""

    def __init__(self) -> None:
        self._counts = np.zeros(1, np.int64)
        self.count = 0
        self.sum = 0
        self.largest = 0

    def add(self, lengths: np.ndarray) -> None:
        """Count some lengths; integers [n], not negative."""
        if not len(lengths):
            return
        self.count += len(lengths)
        self.sum += int(lengths.sum())
        self.largest = max(self.largest, int(lengths.max()))
        counts = np.bincount(np.minimum(lengths, HIGHEST))
        if len(counts) > len(self._counts):
            self._counts = np.pad(self._counts, (0, len(counts) - len(self._counts)))
        self._counts[: len(counts)] += counts

    @property
    def mean(self) -> float:
        """Rounded to one decimal; 0 when nothing was seen."""
        return round(self.sum / self.count, 1) if self.count else 0.0

    def quantile(self, share: float) -> int:
        """The smallest length that at least `share` (0 to 1) of those seen do not exceed."""
        if not self.count:
            return 0
        return int(np.searchsorted(np.cumsum(self._counts), share * self.count))

    def histogram(self, title: str, unit: str) -> dict[str, Any]:
        """Bars for the page: bar i counts the lengths from edges[i] up to, not including, edges[i + 1].

        `open_end` says that the last bar also counts everything above it, `widening` that bars are not of equal
        width.
        """
        seen = np.flatnonzero(self._counts)
        low, high = (int(seen[0]), int(seen[-1])) if len(seen) else (0, 0)
        edges = _edges(low, high)
        below = np.concatenate([[0], np.cumsum(self._counts)])
        counts = np.diff(below[np.minimum(edges, len(self._counts))])
        return {
            "title": title,
            "unit": unit,
            "edges": edges,
            "counts": [int(count) for count in counts],
            "open_end": self.largest > HIGHEST,
            "widening": len(set(np.diff(edges).tolist())) > 1,
        }


def _edges(low: int, high: int) -> list[int]:
    """Whole, rising edges of at most BARS bars over low..high: _edges(3, 5) == [3, 4, 5, 6]."""
    if high - low < BARS or high <= LINEAR_RATIO * max(1, low):
        width = -(-(high + 1 - low) // BARS)
        bars = -(-(high + 1 - low) // width)
        return [low + width * i for i in range(bars + 1)]
    ratios = np.geomspace(max(1, low), high + 1, BARS + 1 - (low == 0))
    return sorted({low, *(int(round(edge)) for edge in ratios)})
