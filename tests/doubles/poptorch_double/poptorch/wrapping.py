"""A model in training belongs to its executor: looking at a weight brings it back from the device first."""

from __future__ import annotations

import weakref
from typing import Any, Dict

import torch
from torch import Tensor, nn

from poptorch.errors import misuse

WRAPPED = "_poptorch_wrapped"


def is_wrapped(thing: Any) -> bool:
    """It belongs to a training executor."""
    return hasattr(type(thing), WRAPPED)


def wrap(model: nn.Module, executor: Any) -> None:
    """Change the classes of a model, its parameters and its buffers in place.

    Raises:
        Error: a buffer of a class of its own.
    """
    owner = weakref.ref(executor)
    for buffer in model.buffers():
        if type(buffer) is not Tensor and not is_wrapped(buffer):
            raise misuse(f"buffers are plain torch.Tensor, found {type(buffer).__name__}")
    parameter_class, buffer_class = _tensor_class(nn.Parameter, owner), _tensor_class(Tensor, owner)
    for parameter in model.parameters():
        parameter.__class__ = parameter_class
    for buffer in model.buffers():
        buffer.__class__ = buffer_class
    model.__class__ = _model_class(type(model), owner)


def unwrap(model: nn.Module) -> None:
    """Undo `wrap`."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if is_wrapped(tensor):
            tensor.__class__ = type(tensor).__bases__[0]
    if is_wrapped(model):
        model.__class__ = type(model).__bases__[0]


def _fetch(owner: Any) -> bool:
    executor = owner()
    return executor is not None and executor.copyWeightsToHostIfNeeded()


def _tensor_class(base: Any, owner: Any) -> Any:
    def get(self: Any, name: str) -> Any:
        if not name.startswith("__"):
            _fetch(owner)
        return object.__getattribute__(self, name)

    def torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _fetch(owner)
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))

    members = {"__getattribute__": get, "__torch_function__": classmethod(torch_function), WRAPPED: True}
    return type(f"Poptorch{base.__name__}", (base,), members)


def _model_class(base: Any, owner: Any) -> Any:
    def get(self: Any, name: str) -> Any:
        if name == "_host_weights_version":
            executor = owner()
            return None if executor is None else executor._host_weights_version
        if name in ("_parameters", "_buffers", "forward"):
            _fetch(owner)
        return object.__getattribute__(self, name)

    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        _fetch(owner)
        found = base.state_dict(self, *args, **kwargs)
        return {name: torch.Tensor.detach(x) if is_wrapped(x) else x for name, x in found.items()}

    members = {"__getattribute__": get, "state_dict": state_dict, WRAPPED: True}
    members["copyWeightsToHostIfNeeded"] = lambda self: _fetch(owner)
    return type(f"Poptorch{base.__name__}", (base,), members)
