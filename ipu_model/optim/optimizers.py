"""Optimizers of the torch runtimes, LAMB among them, and gradient clipping."""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ipu_model.errors import CheckpointError, ConfigError
from ipu_model.jobs.job import OptimizerConfig
from ipu_model.models.modeling import is_exempt
from ipu_model.models.precision import LowPrecisionCopies
from ipu_model.optim.blocked import PLAIN, BlockedAdamW, BlockedLamb


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments (You et al., arXiv 1904.00962, algorithm 2), with `torch._foreach`.

    For each tensor w with gradient g:

        m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
        u = m' / (sqrt(v') + eps) + weight_decay w,   where m', v' are bias-corrected if asked
        w = w - lr * ratio * u,   ratio = phi(|w|) / |u|, or 1 where either norm is 0

    phi is the identity; PopTorch makes it min(|w|, the largest fp16 number). Groups with `trust_ratio=False`
    (biases, LayerNorm) take ratio 1, which makes them AdamW (arXiv 1711.05101).

    Args:
        params: Parameters or groups, as torch's optimizers take them; fp32.
        lr: Learning rate.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Part of the direction u, hence scaled by the ratio too.
        bias_correction: Divide the moments by 1 - beta^t.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
    ) -> None:
        defaults: Dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "trust_ratio": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                directions = adam_directions(self.state, weights, group)
                if group["trust_ratio"]:
                    _scale_by_trust_ratio(directions, weights)
                torch._foreach_add_(weights, directions, alpha=-group["lr"])


def adam_directions(state: Any, weights: List[Tensor], group: Dict[str, Any]) -> List[Tensor]:
    """Advance the moments of `weights` and return u of the class above, one tensor per weight.

    Args:
        state: The optimizer's state; per weight `step` (0-dim), `exp_avg`, `exp_avg_sq`.
        group: betas, eps, weight_decay, bias_correction.
    """
    for weight in weights:
        if not state[weight]:
            state[weight]["step"] = torch.zeros(())
            state[weight]["exp_avg"] = torch.zeros_like(weight)
            state[weight]["exp_avg_sq"] = torch.zeros_like(weight)
    gradients = [w.grad for w in weights if w.grad is not None]
    first = [state[w]["exp_avg"] for w in weights]
    second = [state[w]["exp_avg_sq"] for w in weights]
    beta1, beta2 = group["betas"]
    torch._foreach_mul_(first, beta1)
    torch._foreach_add_(first, gradients, alpha=1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
    torch._foreach_add_([state[w]["step"] for w in weights], 1)
    step = float(state[weights[0]]["step"])  # all weights of a run advance together
    correction1 = 1 - beta1**step if group["bias_correction"] else 1.0
    correction2 = 1 - beta2**step if group["bias_correction"] else 1.0
    denominators = torch._foreach_sqrt(second)
    torch._foreach_div_(denominators, correction2**0.5)
    torch._foreach_add_(denominators, group["eps"])
    directions = torch._foreach_div(first, denominators)
    torch._foreach_div_(directions, correction1)
    if group["weight_decay"]:
        torch._foreach_add_(directions, weights, alpha=group["weight_decay"])
    return list(directions)


def _scale_by_trust_ratio(directions: List[Tensor], weights: List[Tensor]) -> None:
    # Stacked, so that an accelerator computes all ratios without waiting for the host.
    weight_norms = torch.stack(list(torch._foreach_norm(weights)))
    direction_norms = torch.stack(list(torch._foreach_norm(directions)))
    usable = (weight_norms > 0) & (direction_norms > 0)
    ratios = torch.where(usable, weight_norms / direction_norms, torch.ones_like(weight_norms))
    for direction, ratio in zip(directions, ratios):
        direction.mul_(ratio)


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
