"""Distributions of small whole numbers (lengths, counts), accumulated in fixed memory."""

from typing import Any

import numpy as np

HIGHEST = 100_000
"""Larger numbers are counted as this one; sums and means stay exact."""
BARS = 32
LINEAR_RATIO = 30
"""Ratio of largest to smallest number above which the bars have a logarithmic scale."""


class Histogram:
    """Counter of lengths."""

    def __init__(self) -> None:
        self._counts = np.zeros(1, np.int64)
        self.count = 0
        self.sum = 0
        self.largest = 0

    def add(self, lengths: np.ndarray) -> None:
        """Count lengths; integers [n], not negative."""
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
        """Mean, rounded to one decimal; 0 without lengths."""
        return round(self.sum / self.count, 1) if self.count else 0.0

    def quantile(self, share: float) -> int:
        """Return the smallest length that at least `share` (0 to 1) of all lengths do not exceed."""
        if not self.count:
            return 0
        return int(np.searchsorted(np.cumsum(self._counts), share * self.count))

    def histogram(self, title: str, unit: str) -> dict[str, Any]:
        """Return the bars for the page: bar i counts the lengths from edges[i] up to, not including, edges[i + 1].

        With `open_end`, the last bar also counts everything above it. With `widening`, bars differ in width.
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
    """Return ascending integer edges of at most BARS bars over low..high: _edges(3, 5) == [3, 4, 5, 6]."""
    if high - low < BARS or high <= LINEAR_RATIO * max(1, low):
        width = -(-(high + 1 - low) // BARS)
        bars = -(-(high + 1 - low) // width)
        return [low + width * i for i in range(bars + 1)]
    ratios = np.geomspace(max(1, low), high + 1, BARS + 1 - (low == 0))
    return sorted({low, *(int(round(edge)) for edge in ratios)})
