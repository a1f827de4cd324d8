"""Data classes of an estimate: terms that add up, intervals, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"
FIGURES = (MEMORY, SECONDS, TOKENS) = ("memory", "update_seconds", "tokens_per_second")
"""Figures that are estimated and measured: bytes of the fullest device or process; seconds of an update, or of a call
of predict; real tokens per second."""


@dataclass(frozen=True)
class Interval:
    """Estimated figure and its bounds, in one unit."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True)
class Term:
    """Part of a sum, and the setting that makes it smaller."""

    name: str
    amount: float
    """Bytes of memory, or seconds of time."""
    knob: str = ""
    """Parameter to change and its direction; empty if there is none."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak memory of one device or process."""

    where: str
    """Device or process, such as `IPU 0 of 4` or `each process`."""
    terms: Tuple[Term, ...]
    total: Interval
    """Bytes."""
    limit: float
    """Available bytes."""

    @property
    def verdict(self) -> str:
        """Verdict: `fits` if even the upper end fits, `does not fit` if even the lower end does not, else `tight`."""
        if self.total.high <= self.limit:
            return FITS
        return DOES_NOT_FIT if self.total.low > self.limit else TIGHT

    @property
    def largest(self) -> Term:
        """Largest term of the sum."""
        return max(self.terms, key=lambda term: term.amount)


@dataclass(frozen=True)
class TimeEstimate:
    """Duration of a device job, without set-up and compiling."""

    terms: Tuple[Term, ...]
    """Parts of one update, or of one call of a job without updates."""
    updates: int
    """Updates of the job, or its calls if it has no updates."""
    update_seconds: Interval
    sequences_per_second: Interval

    @property
    def largest(self) -> Term:
        """Largest term of an update."""
        return max(self.terms, key=lambda term: term.amount)


@dataclass(frozen=True)
class JobEstimate:
    """Estimate of one device job."""

    device: str
    """Hardware, such as `16 IPUs Mk2, 4 replicas of 4` or `2 CPU cores`."""
    memory: Tuple[MemoryEstimate, ...]
    """One estimate for each distinct device, the fullest first."""
    time: Optional[TimeEstimate]
    """None if the speed of the device is not known."""

    @property
    def verdict(self) -> str:
        """Worst verdict of its devices."""
        verdicts = [estimate.verdict for estimate in self.memory]
        return next((word for word in (DOES_NOT_FIT, TIGHT) if word in verdicts), FITS)
