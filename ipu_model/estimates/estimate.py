"""The words of an estimate: terms that add up, intervals, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"


@dataclass(frozen=True)
class Interval:
    """A figure and how far off it may be; all in one unit."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True)
class Term:
    """One part of a sum, and what makes it smaller."""

    name: str
    amount: float
    """Bytes of memory, or seconds of time."""
    knob: str = ""
    """Which parameter to turn, and which way; empty where there is none."""


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of one device, or of one process, at its fullest instant."""

    where: str
    """Such as `IPU 0 of 4` or `each process`."""
    terms: Tuple[Term, ...]
    total: Interval
    """Bytes."""
    limit: float
    """Bytes that are there."""

    @property
    def verdict(self) -> str:
        """fits: even the upper end does. does not fit: even the lower end does not. tight: between."""
        if self.total.high <= self.limit:
            return FITS
        return DOES_NOT_FIT if self.total.low > self.limit else TIGHT

    @property
    def largest(self) -> Term:
        """The term that says most about the sum."""
        return max(self.terms, key=lambda term: term.amount)


@dataclass(frozen=True)
class TimeEstimate:
    """How long a device job takes, set-up and compiling aside."""

    terms: Tuple[Term, ...]
    """Of one update, or of one call where a job makes none."""
    updates: int
    """Of the job; its calls, where it makes no updates."""
    update_seconds: Interval
    sequences_per_second: Interval

    @property
    def largest(self) -> Term:
        """The term that says most about an update."""
        return max(self.terms, key=lambda term: term.amount)


@dataclass(frozen=True)
class JobEstimate:
    """The estimate of one device job."""

    device: str
    """Such as `16 IPUs Mk2, 4 replicas of 4` or `2 CPU cores`."""
    memory: Tuple[MemoryEstimate, ...]
    """One for every device that differs, the fullest first."""
    time: Optional[TimeEstimate]
    """None where nothing is known of the speed of the device."""

    @property
    def verdict(self) -> str:
        """The worst of its memories."""
        return worst_verdict(self.memory)


def worst_verdict(memories: Sequence[MemoryEstimate]) -> str:
    """The worst verdict of several devices."""
    verdicts = [one.verdict for one in memories]
    return next((word for word in (DOES_NOT_FIT, TIGHT) if word in verdicts), FITS)
