"""Named tensors on disk (safetensors); a failed write is an OSError like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ipu_model.errors import CheckpointError, NonFiniteWeights


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
