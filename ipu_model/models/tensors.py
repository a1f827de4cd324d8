"""Named tensors on disk (safetensors); a failed write is an OSError like any other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ipu_model.errors import CheckpointError, NonFiniteWeights

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
"""What safetensors calls the kinds of numbers that models and optimizers hold, in the order of its files."""
HEADER_MULTIPLE = 8
"""Bytes: the widest number, so that tensors behind the header are aligned."""


def save_tensors(path: Path, tensors: Dict[str, Tensor]) -> None:
    """Write tensors that share no memory.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    try:
        save_file({name: x.contiguous() for name, x in tensors.items()}, str(path), {"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from None


def load_tensors(path: Path) -> Dict[str, Tensor]:
    """Read what save_tensors wrote.

    Raises:
        CheckpointError: missing or damaged.
    """
    try:
        return load_file(str(path))
    except (safetensors.SafetensorError, FileNotFoundError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error})") from None


def require_finite(weights: Dict[str, Tensor], step: int) -> Dict[str, Tensor]:
    """The weights as they came, if every value is finite. Where a device tells no gradient norm, only they show
    that the last update went wrong.

    Raises:
        NonFiniteWeights: naming some that are not.
    """
    wrong = [name for name, x in weights.items() if not bool(torch.isfinite(x).all())]
    if wrong:
        raise NonFiniteWeights(step, wrong)
    return weights


@dataclass(frozen=True)
class Layout:
    """A file of safetensors before it is written: its header, and where each tensor begins."""

    header: bytes
    starts: Dict[str, int]
    """Byte of the file."""
    size: int
    """Bytes of the file."""

    def copy_to(self, memory: Any, first: int, tensors: Dict[str, Tensor]) -> None:
        """Write the file into writable memory (bytearray, mmap) from byte `first` on; tensors of any device."""
        memory[first : first + len(self.header)] = self.header
        for name, x in tensors.items():
            if x.numel():
                there = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=first + self.starts[name])
                there.copy_(x.detach().reshape(-1))


def lay_out(tensors: Dict[str, Tensor]) -> Layout:
    """Where safetensors' save_file would put each tensor (github.com/huggingface/safetensors, "Format").

    By kind, widest numbers first, then by name, so that each lies at a multiple of its own width.
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
