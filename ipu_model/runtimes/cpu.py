"""The CPU under a TorchRuntime."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ContextManager, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch import Tensor

from ipu_model.models.encoder import Tokens
from ipu_model.models.flat import FlatBatch
from ipu_model.models.inference import passes
from ipu_model.optim.optimizers import clip_gradients


class CpuDevice:
    """The device of a TorchRuntime that is the host itself (device.Device says what each method is for).

    There is nothing to copy, and no thread reads ahead: reading and flattening 4,000 tokens took 0.7 ms of an update
    of 282 ms (2 layers of 128, bf16, CPU time of one thread), and a second thread would take a core from the update.
    """

    place_of = torch.device("cpu")
    reads_ahead = 0

    def place(self, flat: FlatBatch) -> FlatBatch:
        return flat

    def passes(self, flat: FlatBatch) -> Iterator[Tuple[int, Tokens, Tensor]]:
        return passes(flat)

    def running(self) -> ContextManager[None]:
        return contextlib.nullcontext()

    def clip(self, gradients: List[Tensor], max_norm: Optional[float]) -> Tensor:
        return torch.tensor(clip_gradients(gradients, max_norm))

    def rng_state(self) -> Dict[str, Tensor]:
        return {"torch": torch.get_rng_state()}

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        torch.set_rng_state(state["torch"])

    def versions(self) -> Dict[str, str]:
        return {}

    def peak_memory_mb(self) -> Optional[float]:
        return None


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> Set[str]:
    """Instruction sets of the CPU as Linux names them; empty elsewhere."""
    return set(_cpu_field("flags", cpuinfo).split())


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The model of the CPU as Linux names it; empty elsewhere."""
    return " ".join(_cpu_field("model name", cpuinfo).split())


def _cpu_field(name: str, cpuinfo: Path) -> str:
    if not cpuinfo.is_file():
        return ""
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(name):
            return line.partition(":")[2]
    return ""
