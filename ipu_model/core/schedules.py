"""Schedules of a training: names of the shapes of a learning rate (train/training.py computes it), which settings fit
them, and the size of each update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

SCHEDULES = ("linear", "cosine", "square_root", "constant", "trapezoid", "1-sqrt")
LATE_DECAYS = ("trapezoid", "1-sqrt")
"""Schedules that are constant between the warm-up and their decay at the end of the run."""


@dataclass(frozen=True)
class BatchSizes:
    """Rows of each update: `full`, or evenly more from about `first` to `full` in the first `growing` updates.

    Every size is used in as many updates, as ModernBERT's batch grows (arXiv 2412.13663, section 2.2.2).
    """

    full: int
    first: int
    growing: int

    def count_before(self, update: int) -> int:
        """Return the number of rows of all updates before this one, counted from 0."""
        inside = min(update, self.growing)
        grown = (self.full - self.first) * inside * inside // (2 * self.growing) if self.growing else 0
        return self.first * inside + grown + self.full * (update - inside)

    def __getitem__(self, update: int) -> int:
        """Return the rows of an update, counted from 0."""
        return self.count_before(update + 1) - self.count_before(update)


def find_growth_problem(first: Optional[int], full: int, fraction: Optional[float]) -> Optional[str]:
    """Return what is wrong with a batch that grows from `first` to `full` in this share of the updates, if anything."""
    if (first is None) != (fraction is None):
        return f"first_batch_size={first} and batch_warmup_fraction={fraction}: set both, or none of them"
    if first is not None and not first < full:
        return f"first_batch_size={first} must be below global_batch_size={full}"
    return None


def find_decay_problem(shape: str, warmup_fraction: float, decay_fraction: Optional[float]) -> Optional[str]:
    """Return what is wrong with the share of the updates in which a schedule decays; None if nothing is."""
    if shape not in LATE_DECAYS:
        fix = f"set it to null, or the schedule to {' or '.join(LATE_DECAYS)}"
        return None if decay_fraction is None else f"decay_fraction={decay_fraction} has no effect on {shape}: {fix}"
    if decay_fraction is None or not 0 < decay_fraction <= 1:
        return (
            f"decay_fraction={'null' if decay_fraction is None else decay_fraction}: {shape} needs the share of the "
            "updates in which the learning rate decays, above 0 and at most 1, such as 0.1"
        )
    if warmup_fraction + decay_fraction > 1:
        return (
            f"decay_fraction={decay_fraction} and warmup_fraction={warmup_fraction} are more than all updates: lower "
            "one of them"
        )
    return None
