"""Optimizers that run on the device: their constructors say which attributes can change after compilation."""

from __future__ import annotations

import inspect
import itertools
import weakref
from typing import Any, Callable, Dict, Iterable, List, Tuple

import torch

FLOATS = (torch.float16, torch.float32)


class VariableAttributes:
    """Which attributes can change once the model is compiled; the others are constants of the executable."""

    def __init__(self, variable_attributes: List[str], allowed_attributes: List[str]) -> None:
        self._variable = list(variable_attributes)
        self._allowed = list(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        self._check(attr)
        self._variable = [name for name in self._variable if name != attr]

    def markAsVariable(self, attr: str) -> None:
        self._check(attr)
        self._variable.append(attr)

    def _check(self, attr: str) -> None:
        assert attr in self._allowed, f"no attribute {attr}: {self._allowed}"


class Optimizer:
    """What the device's optimizers add to torch's: state that lives on the device."""

    _own: Dict[str, Any] = {}

    def _start(self, parent: Callable[..., None], arguments: Dict[str, Any]) -> None:
        given = {name: value for name, value in arguments.items() if name not in ("self", "__class__")}
        stated = [name for name, value in given.items() if value is not None]
        self._device_state: Dict[str, Any] = {"ipu_state": None, "ipu_param": None}
        self._executor: Any = None
        self._host_is_old = self._device_is_old = False
        parent(self, **{name: given[name] for name in stated if name not in self._own})
        for name, default in self._own.items():
            value = default if given[name] is None else given[name]
            if name.endswith("accum_type"):
                assert value in FLOATS, f"{name} is torch.float16 or torch.float32, found {value}"
            setattr(self, name, value)
        self.variable_attrs = VariableAttributes(stated, [*self.defaults, "loss_scaling"])  # type: ignore[attr-defined]

    def _belong_to(self, executor: Any) -> None:
        self._executor = None if executor is None else weakref.ref(executor)

    def _has_state(self) -> bool:
        return all(self._device_state.get(key) is not None for key in ("ipu_state", "ipu_param"))

    def state_dict(self) -> Dict[str, Any]:
        """torch's, with `ipu_state` and `ipu_param`, which are read from the device when they changed there."""
        executor = self._executor() if self._executor is not None else None
        if self._host_is_old and executor is not None:
            self._device_state = executor._compiled().read_optimizer()
            self._host_is_old = False
        return {**self._device_state, **torch.optim.Optimizer.state_dict(self)}  # type: ignore[arg-type]

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes to the device before the next execution."""
        torch.optim.Optimizer.load_state_dict(self, state)  # type: ignore[arg-type]
        if not ("ipu_state" in state and "ipu_param" in state):
            raise RuntimeError("this state is not of an IPU optimizer: it has no ipu_state and ipu_param")
        self._device_state = {key: state[key] for key in ("ipu_state", "ipu_param")}
        self._device_is_old, self._host_is_old = True, False


_TYPES = {
    "accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
}
INF = float("inf")


def _taking(parent: Callable[..., None], needed: Tuple[str, ...], *optional: Tuple[str, ...]) -> Any:
    """A constructor that takes these arguments by place or by name; None, the default of optional ones, is unset."""
    kind, rest = inspect.Parameter.POSITIONAL_OR_KEYWORD, itertools.chain(*optional)
    taken = [inspect.Parameter(name, kind) for name in ("self", *needed)]
    signature = inspect.Signature([*taken, *(inspect.Parameter(name, kind, default=None) for name in rest)])

    def start(self: Any, *given: Any, **named: Any) -> None:
        bound = signature.bind(self, *given, **named)
        bound.apply_defaults()
        self._start(parent, bound.arguments)

    start.__signature__ = signature  # type: ignore[attr-defined]
    return start


class SGD(Optimizer, torch.optim.SGD):
    _own = {"loss_scaling": 1.0, "velocity_scaling": 1.0, "use_combined_accum": False, "max_grad_norm": INF}
    _own.update(accum_type=torch.float32, velocity_accum_type=torch.float32)

    __init__ = _taking(
        torch.optim.SGD.__init__,
        ("params", "lr"),
        ("momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach", "differentiable", "loss_scaling"),
        ("velocity_scaling", "use_combined_accum", "accum_type", "velocity_accum_type", "max_grad_norm"),
    )


class Adam(Optimizer, torch.optim.Adam):
    _own = {"loss_scaling": 1.0, **_TYPES, "max_grad_norm": INF}

    __init__ = _taking(
        torch.optim.Adam.__init__,
        ("params",),
        ("lr", "betas", "eps", "weight_decay", "amsgrad", "foreach", "maximize", "capturable", "differentiable"),
        ("fused", "loss_scaling", *_TYPES, "max_grad_norm"),
    )


class AdamW(Optimizer, torch.optim.AdamW):
    _own = {"loss_scaling": 1.0, "bias_correction": True, **_TYPES, "max_grad_norm": INF}

    __init__ = _taking(
        torch.optim.AdamW.__init__,
        ("params",),
        ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable", "differentiable"),
        ("fused", "loss_scaling", "bias_correction", *_TYPES, "max_grad_norm"),
    )


def _start_lamb(optimizer: torch.optim.Optimizer, params: Iterable, **given: Any) -> None:
    defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0}
    torch.optim.Optimizer.__init__(optimizer, params, {**defaults, **given})


class LAMB(Optimizer, torch.optim.Optimizer):
    """Adam's direction scaled by the trust ratio of each tensor (arXiv 1904.00962)."""

    _own = {"loss_scaling": 1.0, "bias_correction": True, **_TYPES}

    __init__ = _taking(
        _start_lamb,
        ("params",),
        ("lr", "betas", "eps", "weight_decay", "bias_correction", "loss_scaling", "max_weight_norm", *_TYPES),
    )
