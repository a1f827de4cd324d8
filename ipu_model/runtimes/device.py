"""What a TorchRuntime needs of the device it computes on."""

from __future__ import annotations

import contextlib
from typing import ContextManager, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

from ipu_model.models.encoder import Tokens
from ipu_model.models.flat import FlatBatch
from ipu_model.models.inference import passes
from ipu_model.optim.optimizers import clip_gradients


class Device:
    """Where a TorchRuntime computes: here the host itself, in cuda.py a GPU.

    On the host there is nothing to copy, and no thread reads ahead: reading and flattening 4,000 tokens took 0.7 ms of
    an update of 282 ms (2 layers of 128, bf16, CPU time of one thread), and a second thread would take a core from it.
    """

    place_of = torch.device("cpu")
    reads_ahead = 0
    """Batches that are made ready while the device computes."""

    def place(self, flat: FlatBatch) -> FlatBatch:
        """A micro-batch as the steps read it; may run in another thread."""
        return flat

    def passes(self, flat: FlatBatch) -> Iterator[Tuple[int, Tokens, Tensor]]:
        """The forward passes that predict a placed batch: real tokens, tokens, and starts of the sequences of each."""
        return passes(flat)

    def running(self) -> ContextManager[None]:
        """Around what computes: says what the device's own errors mean."""
        return contextlib.nullcontext()

    def clip(self, gradients: List[Tensor], max_norm: Optional[float]) -> Tensor:
        """Scale gradients down to a global L2 norm of at most `max_norm`; the norm before, maybe on the device."""
        return torch.tensor(clip_gradients(gradients, max_norm))

    def rng_state(self) -> Dict[str, Tensor]:
        """All generators that dropout may draw from, on the host."""
        return {"torch": torch.get_rng_state()}

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        """Set what rng_state gave."""
        torch.set_rng_state(state["torch"])

    def versions(self) -> Dict[str, str]:
        """Versions of what the device adds to torch."""
        return {}

    def peak_memory_mb(self) -> Optional[float]:
        """Peak of the device's own memory, MB of 2**20 bytes; None where it has none."""
        return None
