"""Medians, ranges and ratios of interleaved rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.protocol import Sample


@dataclass(frozen=True)
class Summary:
    """Median and range of some values."""

    median: float
    low: float
    high: float
    count: int


def summarise(values: Sequence[float]) -> Summary:
    """Return the median, minimum and maximum of at least one value."""
    return Summary(statistics.median(values), min(values), max(values), len(values))


def cpu_rate(samples: Sequence[Sample]) -> float:
    """Return the units per CPU second of a round: all its units over all its seconds."""
    return sum(s.units for s in samples) / sum(s.cpu for s in samples)


def wall_rate(samples: Sequence[Sample]) -> float:
    """Return the units per second of a round."""
    return sum(s.units for s in samples) / sum(s.wall for s in samples)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours over theirs by round, because adjacent rounds run under the same load of the host.

    Only rounds that both completed count.
    """
    return [a / b for a, b in zip(ours, theirs, strict=False)]
