"""The learning rate of an update, as a pure function."""

from __future__ import annotations

import math

from ipu_model.errors import ConfigError


def learning_rate(step: int, steps: int, warmup_steps: int, peak: float, shape: str = "linear") -> float:
    """Linear warm-up, then decay.

    Args:
        step: The update, counted from 0.
        steps: Updates of the whole run.
        warmup_steps: Updates with rising rate: update 0 gets peak / warmup_steps, update
            warmup_steps - 1 gets the peak.
        peak: The highest rate.
        shape: Of the decay, one of job.SCHEDULES. linear: to zero, as in BERT (arXiv 1810.04805, appendix A.2).
            cosine: half a period to zero (transformers.get_cosine_schedule_with_warmup). square_root: the root of the
            share of all updates that is left, warm-up counted, so that it begins under the peak (PolyWarmUpScheduler
            of NVIDIA/DeepLearningExamples:PyTorch/LanguageModeling/BERT/schedulers.py, degree 0.5). constant: none.

    Returns:
        The rate of this update. None is wasted on rate 0: the update after the last would have it.

    Raises:
        ConfigError: the warm-up is longer than the run, or the step lies outside it.
    """
    if not 0 <= warmup_steps <= steps:
        raise ConfigError(f"warm-up of {warmup_steps} updates does not fit {steps} updates: lower warmup_fraction")
    if not 0 <= step < steps:
        raise ConfigError(f"update {step} lies outside a run of {steps} updates")
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if shape == "constant":
        return peak
    if shape == "square_root":
        return peak * math.sqrt((steps - step) / steps)
    if shape == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * (step - warmup_steps) / (steps - warmup_steps)))
    return peak * (steps - step) / (steps - warmup_steps)
