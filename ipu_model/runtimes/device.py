"""What a TorchRuntime needs of the device it computes on: the CPU (cpu.py) or a GPU (cuda.py)."""

from __future__ import annotations

from typing import ContextManager, Dict, Iterator, List, Optional, Protocol, Tuple

import torch
from torch import Tensor

from ipu_model.models.encoder import Tokens
from ipu_model.models.flat import FlatBatch


class Device(Protocol):
    """Where a TorchRuntime computes."""

    place_of: torch.device
    reads_ahead: int
    """Batches that are made ready while the device computes."""

    def place(self, flat: FlatBatch) -> FlatBatch:
        """A micro-batch as the steps read it; may run in another thread."""

    def passes(self, flat: FlatBatch) -> Iterator[Tuple[int, Tokens, Tensor]]:
        """The forward passes that predict a placed batch: real tokens, tokens, and starts of the sequences of each."""

    def running(self) -> ContextManager[None]:
        """Around what computes: says what the device's own errors mean."""

    def clip(self, gradients: List[Tensor], max_norm: Optional[float]) -> Tensor:
        """Scale gradients down to a global L2 norm of at most `max_norm`; the norm before, maybe on the device."""

    def rng_state(self) -> Dict[str, Tensor]:
        """All generators that dropout may draw from, on the host."""

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        """Set what rng_state gave."""

    def versions(self) -> Dict[str, str]:
        """Versions of what the device adds to torch."""

    def peak_memory_mb(self) -> Optional[float]:
        """Peak of the device's own memory, MB of 2**20 bytes; None where it has none."""
