"""What the device's optimizers compute, in fp32, whatever the weights and the state are kept in.

Adam: arXiv 1412.6980. AdamW: arXiv 1711.05101. LAMB: arXiv 1904.00962.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from poptorch.attributes import Attributes

State = Dict[str, Tensor]


def state_names(kind: str, parameter: str) -> Dict[str, str]:
    if kind.startswith("SGD"):
        return {"velocity": f"Accl___{parameter}"}
    return {"first": f"Accl1___{parameter}", "second": f"Accl2___{parameter}", "step": f"Step___{parameter}"}


def new_state(attributes: Attributes, parameter: str, weight: Tensor) -> State:
    half = {
        "first": attributes.first_order_half,
        "second": attributes.second_order_half,
        "velocity": attributes.first_order_half and attributes.type == "SGD2",
    }
    made = {}
    for role, name in state_names(attributes.type, parameter).items():
        shape = () if role == "step" else weight.shape
        made[name] = torch.zeros(shape, dtype=torch.float16 if half.get(role) else torch.float32)
    return made


def host_values(attributes: Attributes, groups: Dict[str, int]) -> State:
    """The scalars of the optimizer by their names on the device; groups: parameter -> its group."""
    values = {"lossScaling_FLOAT": torch.tensor(attributes.loss_scaling)}
    for parameter, group in groups.items():
        found = {name: value for name, (value, _) in attributes.groups[group].items()}
        rate, decay = found["learningRate"], found["weightDecay"]
        if attributes.type.startswith("SGD"):
            rate_on_device = torch.tensor(rate / attributes.loss_scaling)
            values[f"scaledLearningRate0___specific___{parameter}"] = rate_on_device
            values[f"weightDecayScaleFactor0___specific___{parameter}"] = torch.tensor(1 - rate * decay)
        else:
            values[f"learningRate___specific___{parameter}"] = torch.tensor(rate)
            values[f"weightDecay___specific___{parameter}"] = torch.tensor(decay)
    return values


def clip(gradients: Dict[str, Tensor], max_norm: float) -> Dict[str, Tensor]:
    if not math.isfinite(max_norm) or not gradients:
        return gradients
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
    factor = max_norm / max(max_norm, norm)
    return {name: g * factor for name, g in gradients.items()}


def adam_direction(
    gradient: Tensor, moments: Tuple[Tensor, Tensor], betas: Tuple[float, float], eps: float, steps: Optional[float]
) -> Tensor:
    """Move the moments (in place) and give the direction; bias is corrected for `steps`, None = not at all."""
    averages = []
    for moment, beta, value in zip(moments, betas, (gradient, gradient * gradient)):
        moved = moment.float().mul(beta).add_(value, alpha=1 - beta)
        moment.copy_(moved)
        averages.append(moved if steps is None else moved / (1 - beta**steps))
    return averages[0] / averages[1].sqrt().add_(eps)


def trust_ratio(weight: Tensor, direction: Tensor, max_weight_norm: float) -> float:
    """|weight|, at most max_weight_norm, over |direction|; 1 where either is 0."""
    length, change = min(float(weight.norm()), max_weight_norm), float(direction.norm())
    return length / change if length and change else 1.0


def update(attributes: Attributes, group: int, parameter: str, weight: Tensor, gradient: Tensor, state: State) -> None:
    values = {name: value for name, (value, _) in attributes.groups[group].items()}
    roles = {role: state[name] for role, name in state_names(attributes.type, parameter).items()}
    old = weight.float()
    if attributes.type.startswith("SGD"):
        step = _sgd_step(values, old, gradient, roles["velocity"])
    else:
        step = _adam_step(attributes.type, values, old, gradient, roles)
    weight.copy_(old - step)


def _sgd_step(values: Dict[str, Any], weight: Tensor, gradient: Tensor, velocity: Tensor) -> Tensor:
    moved = values["momentum"] * velocity.float() + gradient + values["weightDecay"] * weight
    velocity.copy_(moved)
    return values["learningRate"] * moved


def _adam_step(kind: str, values: Dict[str, Any], weight: Tensor, gradient: Tensor, roles: State) -> Tensor:
    roles["step"] += 1
    # PopART knows no AdamW without bias correction: PopTorch gives it AdamW. LAMB it knows both ways.
    steps = None if kind == "LAMB_NO_BIAS" else float(roles["step"])
    decay = values["weightDecay"] * weight
    if kind == "ADAM":
        gradient = gradient + decay
    betas = (values["beta1"], values["beta2"])
    direction = adam_direction(gradient, (roles["first"], roles["second"]), betas, values["eps"], steps)
    if kind != "ADAM":
        direction = direction + decay
    rate = values["learningRate"]
    if kind.startswith("LAMB"):
        rate *= trust_ratio(weight, direction, values["maxWeightNorm"])
    return rate * direction
