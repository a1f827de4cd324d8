"""An optimizer as the device gets it: values, and which of them are constants of the executable."""

import dataclasses
import numbers

import torch

from poptorch.kinds import refusal

_SHARED = {"learningRate": "lr", "weightDecay": "weight_decay"}
_ADAM = {**_SHARED, "beta1": "betas", "beta2": "betas", "eps": "eps"}
_NAMES = {
    "SGD2": {**_SHARED, "momentum": "momentum"},
    "ADAM": _ADAM,
    "ADAMW": _ADAM,
    "LAMB": {**_ADAM, "maxWeightNorm": "max_weight_norm"},
}


@dataclasses.dataclass(frozen=True)
class Attributes:
    """A value is [number, is it a constant]."""

    type: str
    defaults: dict
    groups: list
    accum_type_half: bool
    first_order_half: bool
    second_order_half: bool
    max_grad_norm: float

    @property
    def loss_scaling(self):
        return self.defaults["lossScaling"][0]

    def check_replaces(self, compiled):
        """What was compiled in cannot change."""
        for old, new in zip([compiled.defaults, *compiled.groups], [self.defaults, *self.groups]):
            for name, (value, constant) in old.items():
                if constant and new[name] != [value, True]:
                    raise refusal(f"{name} was compiled as a constant of value {value} and cannot become {new[name]}")


def read_attributes(optimizer):
    names, variable = _NAMES[optimizer.kind], optimizer.variable_attrs
    first = "velocity" if optimizer.kind == "SGD2" else "first_order_momentum"
    scaling = [float(optimizer.loss_scaling), variable.isConstant("loss_scaling")]
    corrected = getattr(optimizer, "bias_correction", True)
    return Attributes(
        type=optimizer.kind if corrected else f"{optimizer.kind}_NO_BIAS",
        defaults={**_read_group(optimizer.defaults, names, variable), "lossScaling": scaling},
        groups=[_read_group(group, names, variable) for group in optimizer.param_groups],
        accum_type_half=optimizer.accum_type == torch.float16,
        first_order_half=getattr(optimizer, f"{first}_accum_type") == torch.float16,
        second_order_half=getattr(optimizer, "second_order_momentum_accum_type", None) == torch.float16,
        max_grad_norm=float(getattr(optimizer, "max_grad_norm", float("inf"))),
    )


def _read_group(group, names, variable):
    values = {}
    for name, key in names.items():
        value = group[key]
        if key == "betas":
            assert isinstance(value, tuple), f"betas are a pair of floats, found {value!r}"
            value = value[int(name[-1]) - 1]
        assert isinstance(value, numbers.Number), f"{key} of an optimizer group is a number, found {value!r}"
        values[name] = [float(value), variable.isConstant(key)]
    return values


def groups_of_parameters(model, optimizer):
    """Name of every parameter that is trained -> number of its optimizer group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise KeyError(f"group {number} of the optimizer holds a parameter that the model does not have")
            if parameter.requires_grad:
                groups[names[id(parameter)]] = number
    return groups
