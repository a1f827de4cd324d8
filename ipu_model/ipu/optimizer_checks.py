"""What an optimizer of a job may not ask of an IPU, and its precisions; without PopTorch and torch."""

from __future__ import annotations

from typing import List

from ipu_model.errors import ConfigError
from ipu_model.jobs.job import OptimizerConfig


def check_optimizer(config: OptimizerConfig) -> None:
    """Refuse what an IPU would ignore or do otherwise than torch; needs no PopTorch.

    Raises:
        ConfigError: with all of it.
    """
    # Read off popart_compiler/source/CompilerImpl.cpp (getPopartOptimizer) of PopTorch, and
    # willow/src/transforms/clipweightgradientsbynorm.cpp and willow/src/patterns/*decompose.cpp of PopART.
    problems: List[str] = []
    if not config.bias_correction and config.name in ("adam", "adamw"):
        # PopTorch takes bias_correction=False of AdamW and hands PopART AdamMode::Adam, which corrects.
        problems.append(
            f"optimizer.bias_correction=false with {config.name}: on IPU it corrects all the same. "
            "Set bias_correction to true, or use lamb, which can go without"
        )
    if config.max_grad_norm is not None:
        problem = _clipping_problem(config)
        if problem:
            problems.append(f"optimizer.max_grad_norm={config.max_grad_norm:g} with {config.name}: {problem}")
    if problems:
        raise ConfigError("; ".join(problems))


def _clipping_problem(config: OptimizerConfig) -> str:
    """Why PopART would not clip the gradient of the update as torch does; empty where it does."""
    if config.name == "lamb":
        return "PopTorch's LAMB has no clipping. Set max_grad_norm to null (the trust ratio bounds the update)"
    if config.name == "sgd":
        # The updater of its var update is clipped: the velocity, or the sum of micro-batches times loss scaling.
        return "PopART clips the scaled velocity, not the gradient. Set max_grad_norm to null, or use adamw"
    if config.name == "adam" and config.weight_decay:
        # The L2 penalty is added before the accumulator that clipping looks for.
        return "PopART clips the gradient with the decay in it. Set weight_decay to 0, or use adamw"
    return ""


def is_half(precision: str, half: bool) -> bool:
    """Whether accumulators or moments of `precision` are fp16; auto is that of the weights (`half`)."""
    return half if precision == "auto" else precision == "fp16"
