"""fp16 on a CPU: operations without an fp16 kernel are computed in fp32 and rounded back."""

from __future__ import annotations

from typing import Any, Set

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

_WITHOUT_KERNEL: Set[Any] = set()


def call(function: Any, args: Any, kwargs: Any) -> Any:
    """function(*args, **kwargs), in fp32 where the CPU has no fp16 for it."""
    if function not in _WITHOUT_KERNEL:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if "Half" not in str(error) or (function._schema.is_mutable and not _in_place(function)):
                raise
        _WITHOUT_KERNEL.add(function)
    floats = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor) and x.is_floating_point()]
    if not any(x.dtype == torch.float16 for x in floats):
        return function(*args, **kwargs)
    result = function(*tree_map(_up, args), **tree_map(_up, kwargs))
    if _in_place(function):
        return args[0].copy_(result)
    if function._schema.name == "aten::native_layer_norm":
        return (_down(result[0]), *result[1:])  # 1 / deviation leaves the range of fp16 where eps is small
    return tree_map(_down, result)


def _in_place(function: Any) -> bool:
    """It writes into its first argument and returns it."""
    return bool(function._schema.is_mutable) and function._schema.name.endswith("_")


def _up(x: Any) -> Any:
    if isinstance(x, Tensor) and x.dtype == torch.float16:
        return x.float()
    return torch.float32 if x is torch.float16 else x


def _down(x: Any) -> Any:
    return x.half() if isinstance(x, Tensor) and x.dtype == torch.float32 else x


class HalfOnCpu(TorchDispatchMode):
    """Every operation inside, forward and backward, goes through `call`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})
