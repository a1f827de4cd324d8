"""What a gate says of one condition."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.statistics.significance import Interval


@dataclass(frozen=True)
class Check:
    """One condition: what was found, what is required."""

    name: str
    ok: bool
    found: float | str | None
    required: float | str | None


Judged = tuple[Check, str]
"""A check, and the reason in a full sentence, which counts where the check failed."""


def in_points(difference: Interval) -> str:
    """A difference of two percentages with its bounds."""
    mean, low, high = (round(x, 4) for x in (difference.mean, difference.low, difference.high))
    return f"{mean:+.2f} points ({low:+.2f} to {high:+.2f})"
