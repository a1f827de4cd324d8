"""Named tensors on disk (safetensors); a failed write raises OSError."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ipu_model.core.errors import CheckpointError, NonFiniteWeights

DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names in safetensors of the types in models and optimizers, in the order of its files."""
HEADER_MULTIPLE = 8
"""Bytes of the widest type: the header is padded to a multiple, so that tensors after it are aligned."""


class UndrawnWeights(TorchFunctionMode):
    """Context in which modules do not draw their initial weights, because these are replaced.

    Drawing takes a second for BERT base; on the device `meta` it loads torch's compiler, which takes as long.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: Sequence[Any] = (),
        named: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        named = named or {}
        draws = getattr(function, "__module__", "") == nn.init.__name__
        return named["tensor"] if draws else function(*arguments, **named)


def save_tensors(path: Path, tensors: Dict[str, Tensor]) -> None:
    """Write tensors that do not share memory."""
    try:
        save_file({name: x.contiguous() for name, x in tensors.items()}, str(path), {"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from None


def load_tensors(path: Path) -> Dict[str, Tensor]:
    """Read a file of save_tensors.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        return load_file(str(path))
    except (safetensors.SafetensorError, FileNotFoundError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error})") from None


def require_finite(weights: Dict[str, Tensor], step: int) -> Dict[str, Tensor]:
    """Return the weights unchanged if every value is finite; NonFiniteWeights names those that are not.

    If a device does not report a gradient norm, only the weights show that the last update failed.
    """
    not_finite = [name for name, x in weights.items() if not bool(torch.isfinite(x).all())]
    if not_finite:
        raise NonFiniteWeights(step, not_finite)
    return weights


@dataclass(frozen=True)
class Layout:
    """Layout of a safetensors file to be written: its header, and the offset of each tensor."""

    header: bytes
    starts: Dict[str, int]
    """Offset of each tensor in the file, bytes."""
    size: int

    def copy_to(self, memory: Any, first: int, tensors: Dict[str, Tensor]) -> None:
        """Write the file into writable memory (bytearray, mmap) from byte `first` on; tensors of any device."""
        memory[first : first + len(self.header)] = self.header
        for name, x in tensors.items():
            if x.numel():
                target = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=first + self.starts[name])
                target.copy_(x.detach().reshape(-1))


def lay_out(tensors: Dict[str, Tensor]) -> Layout:
    """Compute the layout of safetensors' save_file (github.com/huggingface/safetensors, "Format").

    Tensors are ordered by type, widest first, then by name, so that each is at a multiple of its own width.
    """
    kinds = list(DTYPES)
    table: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    starts, end = {}, 0
    for name in sorted(tensors, key=lambda name: (kinds.index(tensors[name].dtype), name)):
        x = tensors[name]
        starts[name], after = end, end + x.numel() * x.element_size()
        table[name] = {"dtype": DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [end, after]}
        end = after
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_MULTIPLE)
    header = len(text).to_bytes(8, "little") + text
    return Layout(header, {name: len(header) + start for name, start in starts.items()}, len(header) + end)
