"""Medians, spreads and ratios of interleaved rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.protocol import Sample


@dataclass(frozen=True)
class Summary:
    """A median and the range it comes from."""

    median: float
    low: float
    high: float
    count: int


def summarise(values: Sequence[float]) -> Summary:
    """Median, least and greatest of at least one value."""
    return Summary(statistics.median(values), min(values), max(values), len(values))


def cpu_rate(samples: Sequence[Sample]) -> float:
    """Units per CPU second over a round: all its units by all its seconds."""
    return sum(s.units for s in samples) / sum(s.cpu for s in samples)


def wall_rate(samples: Sequence[Sample]) -> float:
    """Units per second over a round."""
    return sum(s.units for s in samples) / sum(s.wall for s in samples)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours over theirs, round by round: neighbours in time share the load of the host.

    Only rounds that both finished count.
    """
    return [a / b for a, b in zip(ours, theirs, strict=False)]
