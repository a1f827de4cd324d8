"""The compile pass: `forward` runs once under watch, and what a compiled graph could not do is refused."""

from __future__ import annotations

from typing import Any, Dict, List, Set, Tuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from poptorch.errors import refusal
from poptorch.half import call
from poptorch.record import RECORD
from poptorch.state import STATE
from poptorch.strategies import PipelinedExecution
from poptorch.words import words

READS_A_VALUE = words("aten::_local_scalar_dense aten::item aten::is_nonzero aten::equal")
SHAPE_FROM_VALUES = words(
    """aten::nonzero aten::nonzero_numpy aten::masked_select aten::_unique aten::_unique2 aten::unique_dim
    aten::unique_consecutive"""
)
RANDOM = ("rand", "dropout", "bernoulli", "normal", "uniform", "exponential", "multinomial")
MOVES_ONLY = ("aten._to_copy", "aten.detach", "aten.alias", "aten.clone", "aten.lift_fresh")
"""May stand outside blocks."""
LOSS_FUNCTIONS = words(
    """cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss binary_cross_entropy kl_div
    binary_cross_entropy_with_logits poisson_nll_loss hinge_embedding_loss soft_margin_loss ctc_loss"""
)


class LossWatch(TorchFunctionMode):
    """torch's own losses are losses without being marked."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if STATE.program is not None:
            if name in ("numpy", "tolist", "__array__"):
                raise RuntimeError(f"{name}(): values stay on the device while the model is compiled")
            STATE.program.makes_constant = name in ("tensor", "as_tensor", "scalar_tensor")
        result = func(*args, **kwargs)
        if name in LOSS_FUNCTIONS and isinstance(result, Tensor):
            STATE.losses.append((result, name, kwargs.get("reduction", "mean")))
        elif STATE.program is not None and name in ("to", "ipu") and isinstance(result, Tensor):
            STATE.program.know(result, "moved")  # a constant that was moved to the device
        return result


class Program(TorchDispatchMode):
    """Sees every operation of one micro-batch.

    Args:
        strategy: Places the blocks.
        tensors: Inputs, parameters and buffers: what is on the device from the start.
    """

    def __init__(self, strategy: PipelinedExecution, tensors: List[Tensor]) -> None:
        super().__init__()
        self._strategy = strategy
        self._kept: List[Tensor] = []  # alive, so that no storage is used twice
        self._maker: Dict[int, str] = {}  # storage -> operation that wrote it last
        self._varying: Set[int] = set()  # storages that depend on inputs, weights or random numbers
        self.makes_constant = False
        self._block_ipu, self._last_ipu, self._switches, self._unnamed = 0, 0, 0, 0
        self._stages: List[Tuple[int, int]] = []
        self._outside: List[str] = []
        self.signature: List[str] = []
        self.ops: Dict[str, int] = {}
        self.blocks: List[Dict[str, Any]] = []
        self.used: Set[int] = set()
        self.attributes: List[List[str]] = []
        self.checkpoints = 0
        self.serialization: List[List[Any]] = []
        self.memory: List[Dict[str, Any]] = []
        for tensor in tensors:
            self.know(tensor, "input")
            self._varying.add(_storage(tensor))

    # Blocks

    def begin_block(self, user_id: Any, ipu_id: Any) -> None:
        """A block begins; everything from here on runs on its IPU."""
        if user_id is None:
            user_id, self._unnamed = str(self._unnamed), self._unnamed + 1
        stage, ipu = self._strategy.place(user_id, ipu_id)
        place = {"user_id": user_id, "requested_ipu_id": ipu_id, "ipu_id": ipu, "stage": stage}
        self.blocks.append({"event": "begin", **place, "phase": -1, "at_op": len(self.signature)})
        self._switches += ipu != self._last_ipu
        self._block_ipu = self._last_ipu = ipu
        self._stages.append((stage, ipu))

    def end_block(self) -> None:
        """The block ends; an operation before the next one belongs nowhere."""
        self.blocks.append({"event": "end", "at_op": len(self.signature)})
        self._block_ipu = -1

    @property
    def forward_stages(self) -> int:
        """1 + changes of IPU."""
        return self._switches + 1

    def check_blocks(self) -> None:
        """Refuse operations that belong to no block, and stages that a pipeline cannot have.

        Raises:
            Error: one of them was found.
        """
        if self._outside:
            raise refusal(f"every operation belongs to a Block once one is used; outside: {self._outside[:5]}")
        if self._strategy.one_stage_per_ipu and self._strategy.execution_mode == 0:
            runs = [ipu for at, (_, ipu) in enumerate(self._stages) if at == 0 or self._stages[at - 1][1] != ipu]
            again = sorted({ipu for ipu in runs if runs.count(ipu) > 1})
            if again:
                raise refusal(f"AutoStage.SameAsIpu: the pipeline comes back to IPU {again}; use AutoIncrement")

    # Operations

    def know(self, tensor: Tensor, maker: str) -> None:
        """The tensor is on the device."""
        self._kept.append(tensor)
        self._maker[_storage(tensor)] = maker

    def let_go(self) -> None:
        """The pass is over: its tensors may go."""
        self._kept, self._maker = [], {}

    def varies(self, tensor: Tensor) -> bool:
        """It is not the same for every micro-batch."""
        return _storage(tensor) in self._varying

    def note_memory(self, tensor: Tensor, share: float) -> None:
        """set_available_memory was called."""
        maker = self._maker.get(_storage(tensor))
        self.memory.append({"shape": list(tensor.shape), "value": share, "ipu": self._block_ipu, "producer": maker})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        leaves = tree_flatten((args, kwargs))[0]
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        _check_static(name, args)
        if name == "aten::lift_fresh" and (self.makes_constant or args[0].dim() == 0):
            tensors = []  # torch.tensor([...]) or a number: a constant on the device
        for tensor in tensors:
            if _storage(tensor) not in self._maker:
                raise refusal(
                    f"{name}: a host tensor {list(tensor.shape)} {tensor.dtype} is used on the device: make it an "
                    "input, a buffer or a parameter, or move it with .to(x.device)"
                )
        result = call(func, args, kwargs)
        self._note(func, args, kwargs, [x for x in tree_flatten(result)[0] if isinstance(x, Tensor)])
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, made: List[Tensor]) -> None:
        name = str(func)
        self.ops[name] = self.ops.get(name, 0) + 1
        shapes = tree_map(_described, (args, kwargs))
        self.signature.append(f"{name}{shapes}@{self._block_ipu}")
        if self._block_ipu >= 0:
            self.used.add(self._block_ipu)
        elif not name.startswith(MOVES_ONLY):
            self._outside.append(name)
        read = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        for tensor in made:
            self.know(tensor, name)
            if is_random(name) or any(self.varies(x) for x in read):
                self._varying.add(_storage(tensor))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def is_random(operation: str) -> bool:
    """It draws random numbers."""
    return any(part in operation for part in RANDOM)


def _described(x: Any) -> Any:
    return f"{tuple(x.shape)}{x.dtype}" if isinstance(x, Tensor) else repr(x)


def _check_static(name: str, args: Any) -> None:
    if name in READS_A_VALUE:
        raise refusal(f"{name}: the value of a tensor cannot be read while the model is compiled (item(), if, float())")
    masks = [x for x in args[1] if isinstance(x, Tensor)] if name == "aten::index" else []
    if name in SHAPE_FROM_VALUES or any(x.dtype in (torch.bool, torch.uint8) for x in masks):
        raise refusal(f"{name}: the shape of its result depends on values, and a compiled graph has fixed shapes")


def final_loss() -> int:
    """Which of the losses that were marked is the one no other is computed from.

    Raises:
        Error: none, or several.
    """
    losses = STATE.losses
    if not losses:
        raise refusal("no loss: mark the final one with poptorch.identity_loss")
    last = [i for i in range(len(losses)) if not any(_reads(later, losses[i][0]) for later, _, _ in losses[i + 1 :])]
    if len(last) != 1:
        names = [losses[i][1] for i in last]
        raise refusal(f"{len(last)} final losses {names}: combine them and mark the result with identity_loss")
    return last[0]


def _reads(loss: Tensor, earlier: Tensor) -> bool:
    target, todo, seen = earlier.grad_fn, [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if node is target:
            return True
        seen.add(node)
        todo += [parent for parent, _ in node.next_functions]
    return False


def warn(message: str) -> None:
    """Keep a warning in the recording."""
    RECORD["warnings"].append(message)
