"""Optimizers of the torch runtimes, and gradient clipping."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional

import torch
from torch import Tensor, nn

from ipu_model.errors import CheckpointError, ConfigError
from ipu_model.jobs.job import OptimizerConfig
from ipu_model.models.modeling import is_exempt
from ipu_model.models.precision import LowPrecisionCopies
from ipu_model.optim.blocked import PLAIN, BlockedAdamW, BlockedLamb
from ipu_model.optim.lamb import Lamb


def make_optimizer(
    config: OptimizerConfig, model: nn.Module, copies: Optional[LowPrecisionCopies] = None
) -> torch.optim.Optimizer:
    """The optimizer of a job, in the fastest form here. Biases and LayerNorm take no weight decay and no trust ratio.

    The decay of adamw and lamb is decoupled from the gradient; that of adam and sgd is an L2 penalty,
    part of the gradient. sgd has one moment, which nothing corrects: betas, eps and bias_correction are not its.

    Raises:
        ConfigError: adam without bias correction.
    """
    if config.name == "adam" and not config.bias_correction:
        raise ConfigError(
            "optimizer.bias_correction=false with adam: Adam always corrects. "
            "Set bias_correction to true, or use adamw or lamb, which can go without"
        )
    decayed = [p for name, p in model.named_parameters() if not is_exempt(name)]
    exempt = [p for name, p in model.named_parameters() if is_exempt(name)]
    groups: List[Dict[str, Any]] = [{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]
    shared: Dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, **shared)
    shared.update(betas=(config.beta1, config.beta2), eps=config.eps)
    if config.name == "adam":
        return torch.optim.Adam(groups, **shared)
    groups[1]["trust_ratio"] = False
    device = decayed[0].device.type
    if device == "cpu" and decayed[0].dtype == torch.float32 and _has_fused_adamw(device):
        blocked = BlockedLamb if config.name == "lamb" else BlockedAdamW
        return blocked(groups, bias_correction=config.bias_correction, copies=copies, **shared)
    if config.name == "lamb" or not config.bias_correction:  # torch's AdamW always corrects
        groups[0]["trust_ratio"] = config.name == "lamb"
        return Lamb(groups, bias_correction=config.bias_correction, **shared)
    return torch.optim.AdamW(groups, fused=True if _has_fused_adamw(device) else None, **shared)


@functools.lru_cache(maxsize=None)
def _has_fused_adamw(device: str) -> bool:
    """Try it on one number: torch before 2.4 has no kernel for CPU tensors. Its AdamW would load its compiler first."""
    weight, gradient, first, second, step = ([torch.zeros((), device=device)] for _ in range(5))
    rates: Dict[str, Any] = {"lr": 0.0, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1.0}
    try:
        torch._fused_adamw_(weight, gradient, first, second, [], step, **rates, **PLAIN)
    except RuntimeError:
        return False
    return True


def clip_gradients(gradients: List[Tensor], max_norm: Optional[float]) -> float:
    """Scale gradients down to a global L2 norm of at most `max_norm`; None leaves them as they are.

    Returns:
        The norm before clipping. It is NaN or infinite if a gradient is; then nothing is scaled usefully,
        and the loss check stops the run.
    """
    norm = float(torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(gradients)))))
    if max_norm is not None and norm > max_norm:
        torch._foreach_mul_(gradients, max_norm / (norm + 1e-6))
    return norm


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> Dict[str, Tensor]:
    """State as named tensors: 'bert....weight/exp_avg' and so on, independent of the order of groups."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:  # SGD without momentum notes a buffer that is not there
                tensors[f"{name}/{key}"] = value.detach().clone().contiguous()
    return tensors


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Dict[str, Tensor]) -> None:
    """The inverse of optimizer_tensors.

    Raises:
        CheckpointError: a parameter that the model does not have.
    """
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition("/")
        if name not in parameters:
            raise CheckpointError(f"the optimizer state names {name}, which this model does not have")
        optimizer.state[parameters[name]][key] = value.clone()
