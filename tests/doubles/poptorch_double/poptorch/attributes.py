"""An optimizer as the device gets it: values, and which of them are constants of the executable."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch

from poptorch import optim
from poptorch.errors import refusal

Value = Tuple[float, bool]
"""(value, is a constant)."""
_SHARED = {"learningRate": "lr", "weightDecay": "weight_decay"}
_ADAM = {**_SHARED, "beta1": "betas", "beta2": "betas", "eps": "eps"}
_SGD = {**_SHARED, "momentum": "momentum", "dampening": "dampening", "velocityScaling": "velocity_scaling"}
GROUP_ATTRIBUTES = {
    "SGD": {**_SGD, "nesterov": "nesterov"},
    "ADAM": _ADAM,
    "LAMB": {**_ADAM, "maxWeightNorm": "max_weight_norm"},
}
CONSTANT_WHEN = {"weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "velocity_scaling": 1.0, "eps": 1e-8}
"""With torch's own optimizers, which do not say: constant at these values, else variable."""


@dataclass(frozen=True)
class Attributes:
    """The optimizer at one moment."""

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
        """As it is recorded."""
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
        """What was compiled in cannot change.

        Raises:
            Error: another type, other groups, or another value of a constant.
        """
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
    """The device's name for it.

    Raises:
        AssertionError: the device has no such optimizer.
    """
    if isinstance(optimizer, torch.optim.SGD):
        return "SGD1" if getattr(optimizer, "use_combined_accum", False) else "SGD2"
    uncorrected = not getattr(optimizer, "bias_correction", True)
    for kind, name in ((optim.LAMB, "LAMB"), (torch.optim.AdamW, "ADAMW"), (torch.optim.Adam, "ADAM")):
        if isinstance(optimizer, kind):
            return name + {"LAMB": "_NO_BIAS", "ADAMW": "_NO_BIAS"}.get(name, "") * uncorrected
    raise AssertionError(f"the device has no {type(optimizer).__name__}: use SGD, Adam, AdamW or LAMB")


def read_attributes(optimizer: Any, auto_loss_scaling: bool) -> Attributes:
    """Look at an optimizer and its groups.

    Raises:
        AssertionError: an optimizer the device does not have, or a value that is not a number.
        ValueError: amsgrad.
    """
    kind = optimizer_type(optimizer)
    variable: Optional[optim.VariableAttributes] = getattr(optimizer, "variable_attrs", None)
    if variable is not None and auto_loss_scaling:
        variable.markAsVariable("loss_scaling")
    names = next(value for key, value in GROUP_ATTRIBUTES.items() if kind.startswith(key))
    scaling = float(getattr(optimizer, "loss_scaling", 1.0))
    constant = variable.isConstant("loss_scaling") if variable else scaling == 1.0 and not auto_loss_scaling
    defaults = _read_group(optimizer.defaults, names, variable, kind)
    return Attributes(
        type=kind,
        defaults={**defaults, "lossScaling": (scaling, constant)},
        groups=[_read_group(group, names, variable, kind) for group in optimizer.param_groups],
        accum_type_half=getattr(optimizer, "accum_type", None) == torch.float16,
        first_order_half=torch.float16
        in (getattr(optimizer, f"{name}_accum_type", None) for name in ("velocity", "first_order_momentum")),
        second_order_half=getattr(optimizer, "second_order_momentum_accum_type", None) == torch.float16,
        max_grad_norm=float(getattr(optimizer, "max_grad_norm", float("inf"))),
    )


def _read_group(group: Dict[str, Any], names: Dict[str, str], variable: Any, kind: str) -> Dict[str, Value]:
    if group.get("amsgrad"):
        raise ValueError("the device has no amsgrad")
    found: Dict[str, Value] = {}
    for name, key in names.items():
        value = group.get(key, 1.0 if key == "velocity_scaling" else None)
        if key == "betas":
            assert isinstance(value, tuple), f"betas are a pair of floats, found {value!r}"
            assert len(value) == 2, f"betas are a pair of floats, found {value!r}"
            value = value[int(name[-1]) - 1]
        assert isinstance(value, numbers.Number), f"{key} of an optimizer group is a number, found {value!r}"
        constant = variable.isConstant(key) if variable is not None else _constant_in_torch(key, value, kind)
        found[name] = (float(value), constant)  # type: ignore[arg-type]
    return found


def _constant_in_torch(key: str, value: Any, kind: str) -> bool:
    if key in ("betas", "nesterov"):
        return True
    if key == "weight_decay" and kind.startswith("ADAMW"):
        return bool(value == 0.01)
    return key in CONSTANT_WHEN and bool(value == CONSTANT_WHEN[key])


def groups_of_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, int]:
    """Name of every parameter that is trained -> number of its optimizer group.

    Raises:
        KeyError: the optimizer holds a parameter of another model.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise KeyError(f"group {number} of the optimizer holds a parameter that the model does not have")
            if parameter.requires_grad:
                groups[names[id(parameter)]] = number
    return groups
