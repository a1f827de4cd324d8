"""An optimizer as the device gets it: values, and which of them are constants of the executable."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

import torch

from poptorch import optim
from poptorch.errors import refusal

Value = Tuple[float, bool]
"""(value, is a constant)."""
_SHARED = {"learningRate": "lr", "weightDecay": "weight_decay"}
_ADAM = {**_SHARED, "beta1": "betas", "beta2": "betas", "eps": "eps"}
GROUP_ATTRIBUTES = {
    "SGD": {**_SHARED, "momentum": "momentum", "dampening": "dampening", "nesterov": "nesterov"},
    "ADAM": _ADAM,
    "LAMB": {**_ADAM, "maxWeightNorm": "max_weight_norm"},
}


@dataclass(frozen=True)
class Attributes:
    type: str
    defaults: Dict[str, Value]
    groups: List[Dict[str, Value]]
    accum_type_half: bool
    first_order_half: bool
    second_order_half: bool
    max_grad_norm: float

    @property
    def loss_scaling(self) -> float:
        return self.defaults["lossScaling"][0]

    def describe(self) -> Dict[str, Any]:
        return {
            "type": self.type,
            "defaults": {name: list(value) for name, value in self.defaults.items()},
            "groups": [{name: list(value) for name, value in group.items()} for group in self.groups],
            "accum_type_half": self.accum_type_half,
            "first_order_half": self.first_order_half,
            "second_order_half": self.second_order_half,
            "max_grad_norm": self.max_grad_norm,
            "use_tf_variant": False,
        }

    def check_replaces(self, compiled: Attributes) -> None:
        """What was compiled in cannot change."""
        if self.type != compiled.type or len(self.groups) != len(compiled.groups):
            raise refusal(
                f"{self.type} with {len(self.groups)} groups cannot replace {compiled.type} with "
                f"{len(compiled.groups)} in a compiled model"
            )
        for old, new in zip([compiled.defaults, *compiled.groups], [self.defaults, *self.groups]):
            for name, (value, constant) in old.items():
                if new[name][1] != constant or (constant and new[name][0] != value):
                    raise refusal(
                        f"{name} was compiled as {'a constant' if constant else 'variable'} of value {value} and "
                        f"cannot become {new[name]}: use variable_attrs.markAsVariable before compilation"
                    )


def optimizer_type(optimizer: Any) -> str:
    if isinstance(optimizer, optim.SGD):
        return "SGD1" if optimizer.use_combined_accum else "SGD2"
    for kind, name, uncorrected in (
        (optim.LAMB, "LAMB", "LAMB_NO_BIAS"),
        (optim.AdamW, "ADAMW", "ADAMW_NO_BIAS"),
        (optim.Adam, "ADAM", "ADAM"),
    ):
        if isinstance(optimizer, kind):
            return name if getattr(optimizer, "bias_correction", True) else uncorrected
    raise AssertionError(
        f"the device has no {type(optimizer).__name__}: use SGD, Adam, AdamW or LAMB of poptorch.optim"
    )


def read_attributes(optimizer: Any, auto_loss_scaling: bool) -> Attributes:
    kind = optimizer_type(optimizer)
    variable = optimizer.variable_attrs
    if auto_loss_scaling:
        variable.markAsVariable("loss_scaling")
    names = next(value for key, value in GROUP_ATTRIBUTES.items() if kind.startswith(key))
    defaults = _read_group(optimizer.defaults, names, variable)
    first = "velocity" if kind.startswith("SGD") else "first_order_momentum"
    return Attributes(
        type=kind,
        defaults={**defaults, "lossScaling": (float(optimizer.loss_scaling), variable.isConstant("loss_scaling"))},
        groups=[_read_group(group, names, variable) for group in optimizer.param_groups],
        accum_type_half=optimizer.accum_type == torch.float16,
        first_order_half=getattr(optimizer, f"{first}_accum_type") == torch.float16,
        second_order_half=getattr(optimizer, "second_order_momentum_accum_type", None) == torch.float16,
        max_grad_norm=float(getattr(optimizer, "max_grad_norm", float("inf"))),
    )


def _read_group(group: Dict[str, Any], names: Dict[str, str], variable: Any) -> Dict[str, Value]:
    if group.get("amsgrad"):
        raise ValueError("the device has no amsgrad")
    found: Dict[str, Value] = {}
    for name, key in names.items():
        value = group[key]
        if key == "betas":
            assert isinstance(value, tuple), f"betas are a pair of floats, found {value!r}"
            value = value[int(name[-1]) - 1]
        assert isinstance(value, numbers.Number), f"{key} of an optimizer group is a number, found {value!r}"
        found[name] = (float(value), variable.isConstant(key))  # type: ignore[arg-type]
    return found


def groups_of_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, int]:
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
