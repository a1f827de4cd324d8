"""Benchmark results as plain data: the content of bench.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.protocol import Sample
from bench.statistics import Summary, cpu_rate, ratios, summarise, wall_rate


@dataclass
class Measurement:
    """Measurements of one configuration of a case at one number of threads."""

    case: str
    variant: str
    threads: int
    unit: str
    """Unit of its samples."""
    rounds: list[list[Sample]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """peak_memory_mb, precision, ..."""
    failure: str | None = None

    @property
    def cpu_rates(self) -> list[float]:
        """Units per CPU second of every round."""
        return [cpu_rate(samples) for samples in self.rounds]

    @property
    def wall_rates(self) -> list[float]:
        """Units per second of every round."""
        return [wall_rate(samples) for samples in self.rounds]

    @property
    def rates(self) -> list[float]:
        """Rates to compare: per CPU second with one thread, per second with several."""
        return self.cpu_rates if self.threads == 1 else self.wall_rates

    def note_rates(self, note: str) -> list[float]:
        """Return the sum of a note of the samples per second, for every round."""
        return [sum(s.notes[note] for s in samples) / sum(s.wall for s in samples) for samples in self.rounds]


class Results:
    """All measurements so far."""

    def __init__(self) -> None:
        self.measured: list[Measurement] = []

    def find(self, case: str, variant: str, threads: int) -> Measurement | None:
        """Return the measurements of a configuration with at least one round; None if there are none."""
        for one in self.measured:
            if (one.case, one.variant, one.threads) == (case, variant, threads) and one.rounds:
                return one
        return None

    def ratio(self, case: str, ours: str, theirs: str, threads: int = 1) -> Summary | None:
        """Return the rate of `ours` over that of `theirs` by round; None if one of them is missing."""
        first, second = self.find(case, ours, threads), self.find(case, theirs, threads)
        if first is None or second is None or first.unit != second.unit:
            return None
        return summarise(ratios(first.rates, second.rates))

    def fact(self, case: str, variant: str, name: str, threads: int = 1) -> Any:
        """Return a fact of a configuration, or None."""
        one = self.find(case, variant, threads)
        return None if one is None else one.facts.get(name)
