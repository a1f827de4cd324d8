"""What the device's optimizers compute, in fp32, whatever the weights and the state are kept in.

Adam: arXiv 1412.6980. AdamW: arXiv 1711.05101. LAMB: arXiv 1904.00962.
"""

import math

import torch


def state_names(kind, parameter):
    if kind == "SGD2":
        return {"velocity": f"Accl___{parameter}"}
    return {"first": f"Accl1___{parameter}", "second": f"Accl2___{parameter}", "step": f"Step___{parameter}"}


def new_state(attributes, parameter, weight):
    half = {"second": attributes.second_order_half}
    half["first"] = half["velocity"] = attributes.first_order_half
    made = {}
    for role, name in state_names(attributes.type, parameter).items():
        shape = () if role == "step" else weight.shape
        made[name] = torch.zeros(shape, dtype=torch.float16 if half.get(role) else torch.float32)
    return made


def host_values(attributes, groups):
    """The scalars of the optimizer by their names on the device; groups: parameter -> its group."""
    values = {"lossScaling_FLOAT": torch.tensor(attributes.loss_scaling)}
    for parameter, group in groups.items():
        rate, decay = (attributes.groups[group][name][0] for name in ("learningRate", "weightDecay"))
        if attributes.type == "SGD2":
            rate_on_device = torch.tensor(rate / attributes.loss_scaling)
            values[f"scaledLearningRate0___specific___{parameter}"] = rate_on_device
            values[f"weightDecayScaleFactor0___specific___{parameter}"] = torch.tensor(1 - rate * decay)
        else:
            values[f"learningRate___specific___{parameter}"] = torch.tensor(rate)
            values[f"weightDecay___specific___{parameter}"] = torch.tensor(decay)
    return values


def clip(gradients, max_norm):
    if not math.isfinite(max_norm):
        return gradients
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
    factor = max_norm / max(max_norm, norm)
    return {name: g * factor for name, g in gradients.items()}


def update(attributes, group, parameter, weight, gradient, state):
    values = {name: value for name, (value, _) in attributes.groups[group].items()}
    roles = {role: state[name] for role, name in state_names(attributes.type, parameter).items()}
    step = _sgd_step if attributes.type == "SGD2" else _adam_step
    old = weight.float()
    weight.copy_(old - step(attributes.type, values, old, gradient, roles))


def _sgd_step(kind, values, weight, gradient, roles):
    moved = values["momentum"] * roles["velocity"].float() + gradient + values["weightDecay"] * weight
    roles["velocity"].copy_(moved)
    return values["learningRate"] * moved


def _adam_step(kind, values, weight, gradient, roles):
    roles["step"] += 1
    decay = values["weightDecay"] * weight
    if kind == "ADAM":
        gradient = gradient + decay
    averages = []
    for role, beta, value in (("first", "beta1", gradient), ("second", "beta2", gradient * gradient)):
        moved = roles[role].float().mul(values[beta]).add_(value, alpha=1 - values[beta])
        roles[role].copy_(moved)
        corrected = kind != "LAMB_NO_BIAS"
        averages.append(moved / (1 - values[beta] ** float(roles["step"])) if corrected else moved)
    direction = averages[0] / averages[1].sqrt().add_(values["eps"])
    if kind != "ADAM":
        direction = direction + decay
    rate = values["learningRate"]
    if kind.startswith("LAMB"):
        rate *= _trust_ratio(weight, direction, values["maxWeightNorm"])
    return rate * direction


def _trust_ratio(weight, direction, max_weight_norm):
    """|weight|, at most max_weight_norm, over |direction|; 1 where either is 0."""
    length, change = min(float(weight.norm()), max_weight_norm), float(direction.norm())
    return length / change if length and change else 1.0
