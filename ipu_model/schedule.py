"""The learning rate of an update, as a pure function."""

from __future__ import annotations

from ipu_model.errors import ConfigError


def learning_rate(step: int, steps: int, warmup_steps: int, peak: float) -> float:
    """Linear warm-up, then linear decay to zero, as in BERT (arXiv 1810.04805, appendix A.2).

    Args:
        step: The update, counted from 0.
        steps: Updates of the whole run.
        warmup_steps: Updates with rising rate: update 0 gets peak / warmup_steps, update
            warmup_steps - 1 gets the peak.
        peak: The highest rate.

    Returns:
        The rate of this update. No update is wasted on rate 0: the update after the last would have it.

    Raises:
        ConfigError: the warm-up is longer than the run, or the step lies outside it.
    """
    if not 0 <= warmup_steps <= steps:
        raise ConfigError(f"warm-up of {warmup_steps} updates does not fit {steps} updates: lower warmup_fraction")
    if not 0 <= step < steps:
        raise ConfigError(f"update {step} lies outside a run of {steps} updates")
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * (steps - step) / (steps - warmup_steps)
