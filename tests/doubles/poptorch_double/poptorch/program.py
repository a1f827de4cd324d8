"""The compile pass: `forward` runs once under watch, and what a compiled graph could not do is refused."""

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from poptorch.half import call
from poptorch.kinds import refusal
from poptorch.poptorch_core import STATE

READS_A_VALUE = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal")
SHAPE_FROM_VALUES = ("aten::nonzero", "aten::nonzero_numpy", "aten::masked_select", "aten::_unique2")
MOVES_ONLY = ("aten._to_copy", "aten.detach", "aten.alias", "aten.clone", "aten.lift_fresh")
"""May stand outside blocks."""


class HostWatch(TorchFunctionMode):
    """Values do not come to the host, and constants may be moved to the device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, program = getattr(func, "__name__", ""), STATE.program
        if name in ("numpy", "tolist", "__array__"):
            raise RuntimeError(f"{name}(): values stay on the device while the model is compiled")
        program.makes_constant = name in ("tensor", "as_tensor", "scalar_tensor")
        result = func(*args, **(kwargs or {}))
        if name == "to" and isinstance(result, Tensor):
            program.know(result)  # a constant that was moved to the device
        return result


class Program(TorchDispatchMode):
    def __init__(self, strategy, tensors):
        super().__init__()
        self._strategy = strategy
        self._kept = []  # alive, so that no storage is used twice
        self._known = set()  # storages on the device
        self.makes_constant = False
        self._block_ipu = self._last_ipu = 0
        self._outside = []
        self.forward_stages = 1  # and one more for every change of IPU
        self.signature, self.ops, self.used = [], {}, set()
        self.blocks, self.attributes, self.serialization = [], [], []
        self.checkpoints = 0
        for tensor in tensors:
            self.know(tensor)

    def begin_block(self, user_id, ipu):
        if self._strategy is None:
            raise refusal("a pipeline that may come back to an IPU needs setExecutionStrategy with AutoIncrement")
        stage = 1 + len(self.blocks) // 2
        self.blocks.append(
            {"event": "begin", "user_id": user_id, "ipu_id": ipu, "stage": stage, "at_op": len(self.signature)}
        )
        self.forward_stages += ipu != self._last_ipu
        self._block_ipu = self._last_ipu = ipu

    def end_block(self):
        self.blocks.append({"event": "end", "at_op": len(self.signature)})
        self._block_ipu = -1

    def finish(self):
        """Refuse operations that belong to no block, and let the tensors go."""
        self._kept, self._known = [], set()
        if self._outside:
            raise refusal(f"every operation belongs to a Block once one is used; outside: {self._outside[:5]}")

    def know(self, tensor):
        self._kept.append(tensor)
        self._known.add(_storage(tensor))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func._schema.name
        _check_static(name, args)
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        if name == "aten::lift_fresh" and (self.makes_constant or args[0].dim() == 0):
            tensors = []  # torch.tensor([...]) or a number: a constant on the device
        for tensor in tensors:
            if _storage(tensor) not in self._known:
                raise refusal(
                    f"{name}: a host tensor {list(tensor.shape)} {tensor.dtype} is used on the device: make it an "
                    "input, a buffer or a parameter, or move it with .to(x.device)"
                )
        result = call(func, args, kwargs)
        self._note(str(func), (args, kwargs))
        for made in tree_flatten(result)[0]:
            if isinstance(made, Tensor):
                self.know(made)
        return result

    def _note(self, name, arguments):
        self.ops[name] = self.ops.get(name, 0) + 1
        self.signature.append(f"{name}{tree_map(_described, arguments)}@{self._block_ipu}")
        if self._block_ipu >= 0:
            self.used.add(self._block_ipu)
        elif not name.startswith(MOVES_ONLY):
            self._outside.append(name)


def _storage(tensor):
    return int(tensor.untyped_storage()._cdata)


def _described(x):
    return f"{tuple(x.shape)}{x.dtype}" if isinstance(x, Tensor) else repr(x)


def _check_static(name, args):
    if name in READS_A_VALUE:
        raise refusal(f"{name}: the value of a tensor cannot be read while the model is compiled (item(), if, float())")
    masks = [x for x in args[1] if isinstance(x, Tensor)] if name == "aten::index" else []
    if name in SHAPE_FROM_VALUES or any(x.dtype in (torch.bool, torch.uint8) for x in masks):
        raise refusal(f"{name}: the shape of its result depends on values, and a compiled graph has fixed shapes")
