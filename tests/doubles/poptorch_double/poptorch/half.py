"""fp16 on a CPU: what the CPU computes slowly or not at all in fp16 is computed in fp32 and rounded back."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_IN_FP32 = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
"""Products: today's torch has fp16 ones, 20 times slower than in fp32; torch 2.0 has none. Others join on failing."""


def call(function, args, kwargs):
    """function(*args, **kwargs), in fp32 where that is needed, with fp16 results all the same."""
    if function not in _IN_FP32:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if "Half" not in str(error) or (function._schema.is_mutable and not _in_place(function)):
                raise
        _IN_FP32.add(function)
    raised = [_up(x) for x in args]
    options = {name: _up(x) for name, x in kwargs.items()}
    if all(new is old for new, old in zip([*raised, *options.values()], [*args, *kwargs.values()])):
        return function(*args, **kwargs)
    result = function(*raised, **options)
    if _in_place(function):
        return args[0].copy_(result)
    if isinstance(result, Tensor):
        return _down(result)
    if function is _aten.native_layer_norm.default:
        return (_down(result[0]), *result[1:])  # 1 / deviation leaves the range of fp16 where eps is small
    return type(result)(_down(x) for x in result)


def _in_place(function):
    """It writes into its first argument and returns it."""
    return bool(function._schema.is_mutable) and function._schema.name.endswith("_")


def _up(x):
    if isinstance(x, Tensor):
        return x.float() if x.dtype == torch.float16 else x
    if isinstance(x, (list, tuple)) and any(isinstance(part, Tensor) and part.dtype == torch.float16 for part in x):
        return [_up(part) for part in x]
    return torch.float32 if x is torch.float16 else x


def _down(x):
    return x.half() if isinstance(x, Tensor) and x.dtype == torch.float32 else x


class HalfOnCpu(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return call(func, args, kwargs or {})
