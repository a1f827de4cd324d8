"""LAMB: Adam's direction, scaled per tensor by weight norm over update norm (arXiv 1904.00962)."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Tuple

import torch
from torch import Tensor


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
