"""The compile pass: `forward` runs once under watch, and what a compiled graph could not do is refused."""

from __future__ import annotations

from typing import Any, Dict, List, Set

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from poptorch.errors import refusal
from poptorch.half import call
from poptorch.record import STATE
from poptorch.strategies import PipelinedExecution

READS_A_VALUE = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"}
SHAPE_FROM_VALUES = {
    "aten::nonzero",
    "aten::nonzero_numpy",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
}


class HostWatch(TorchFunctionMode):
    """Values do not come to the host, and constants may be moved to the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, program = getattr(func, "__name__", ""), STATE.program
        if program is not None:
            if name in ("numpy", "tolist", "__array__"):
                raise RuntimeError(f"{name}(): values stay on the device while the model is compiled")
            program.makes_constant = name in ("tensor", "as_tensor", "scalar_tensor")
        result = func(*args, **(kwargs or {}))
        if program is not None and name in ("to", "ipu") and isinstance(result, Tensor):
            program.know(result)  # a constant that was moved to the device
        return result


MOVES_ONLY = ("aten._to_copy", "aten.detach", "aten.alias", "aten.clone", "aten.lift_fresh")
"""May stand outside blocks."""


class Program(TorchDispatchMode):
    def __init__(self, strategy: PipelinedExecution, tensors: List[Tensor]) -> None:
        super().__init__()
        self._strategy = strategy
        self._kept: List[Tensor] = []  # alive, so that no storage is used twice
        self._known: Set[int] = set()  # storages on the device
        self.makes_constant = False
        self._block_ipu, self._last_ipu, self._switches = 0, 0, 0
        self._ipus: List[int] = []
        self._outside: List[str] = []
        self.signature: List[str] = []
        self.ops: Dict[str, int] = {}
        self.blocks: List[Dict[str, Any]] = []
        self.used: Set[int] = set()
        self.attributes: List[List[str]] = []
        self.checkpoints = 0
        self.serialization: List[List[Any]] = []
        for tensor in tensors:
            self.know(tensor)

    # Blocks

    def begin_block(self, user_id: Any, ipu_id: Any) -> None:
        stage, ipu = self._strategy.place(user_id or str(len(self._ipus)), ipu_id)
        place = {"user_id": user_id, "ipu_id": ipu, "stage": stage}
        self.blocks.append({"event": "begin", **place, "at_op": len(self.signature)})
        self._switches += ipu != self._last_ipu
        self._block_ipu = self._last_ipu = ipu
        self._ipus.append(ipu)

    def end_block(self) -> None:
        self.blocks.append({"event": "end", "at_op": len(self.signature)})
        self._block_ipu = -1

    @property
    def forward_stages(self) -> int:
        """1 + changes of IPU."""
        return self._switches + 1

    def check_blocks(self) -> None:
        """Refuse operations that belong to no block, and stages that a pipeline cannot have."""
        if self._outside:
            raise refusal(f"every operation belongs to a Block once one is used; outside: {self._outside[:5]}")
        if self._strategy.one_stage_per_ipu and self._strategy.execution_mode == 0:
            runs = [ipu for at, ipu in enumerate(self._ipus) if at == 0 or self._ipus[at - 1] != ipu]
            if len(set(runs)) < len(runs):
                raise refusal(f"AutoStage.SameAsIpu: the pipeline comes back to an IPU, {runs}; use AutoIncrement")

    # Operations

    def know(self, tensor: Tensor) -> None:
        self._kept.append(tensor)
        self._known.add(_storage(tensor))

    def let_go(self) -> None:
        self._kept, self._known = [], set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        _check_static(name, args)
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

    def _note(self, name: str, arguments: Any) -> None:
        self.ops[name] = self.ops.get(name, 0) + 1
        self.signature.append(f"{name}{tree_map(_described, arguments)}@{self._block_ipu}")
        if self._block_ipu >= 0:
            self.used.add(self._block_ipu)
        elif not name.startswith(MOVES_ONLY):
            self._outside.append(name)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _described(x: Any) -> Any:
    return f"{tuple(x.shape)}{x.dtype}" if isinstance(x, Tensor) else repr(x)


def _check_static(name: str, args: Any) -> None:
    if name in READS_A_VALUE:
        raise refusal(f"{name}: the value of a tensor cannot be read while the model is compiled (item(), if, float())")
    masks = [x for x in args[1] if isinstance(x, Tensor)] if name == "aten::index" else []
    if name in SHAPE_FROM_VALUES or any(x.dtype in (torch.bool, torch.uint8) for x in masks):
        raise refusal(f"{name}: the shape of its result depends on values, and a compiled graph has fixed shapes")


def final_loss() -> int:
    """Which of the losses that were marked is the one no other is computed from."""
    losses = [loss for loss, _ in STATE.losses]
    last = [i for i, loss in enumerate(losses) if not any(_reads(later, loss) for later in losses[i + 1 :])]
    if len(last) != 1:
        raise refusal(f"{len(last)} final losses: combine them and mark the result with poptorch.identity_loss")
    return last[0]


def _reads(loss: Tensor, earlier: Tensor) -> bool:
    todo, seen = [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is earlier.grad_fn:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    return False
