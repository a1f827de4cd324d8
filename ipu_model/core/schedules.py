"""Names of the shapes of a learning rate (train/training.py computes it), and which settings fit them."""

from __future__ import annotations

from typing import Optional

SCHEDULES = ("linear", "cosine", "square_root", "constant", "trapezoid", "1-sqrt")
LATE_DECAYS = ("trapezoid", "1-sqrt")
"""Schedules that are constant between the warm-up and their decay at the end of the run."""


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
