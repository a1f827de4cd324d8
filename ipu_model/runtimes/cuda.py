"""One GPU under a TorchRuntime: which it is, what it computes at speed, and how batches get there.

fp32 means fp32: TF32, which rounds the factors of matrix products to 10 bits, stays off as torch has it by default,
so that fp32 on a GPU agrees with the CPU to 1e-5. Speed is what bf16 is for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ipu_model.errors import ConfigError
from ipu_model.jobs.plan import Choice
from ipu_model.models.encoder import Tokens
from ipu_model.models.flat import FlatBatch
from ipu_model.models.varlen import AMPERE, MakeAttention, choose_attention
from ipu_model.runtimes.torch_device import Device

READS_AHEAD = 2
"""Batches that are read and copied while the GPU computes: one would wait for a slow disk at once."""


def find_gpu() -> Tuple[bool, str]:
    """Whether there is a GPU that torch can use, and the reason in words."""
    if not torch.backends.cuda.is_built():
        return False, f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return False, "CUDA finds no GPU (nvidia-smi lists them)"
    return True, f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def require_gpu() -> None:
    """Raises ConfigError without a GPU that torch can use."""
    found, reason = find_gpu()
    if not found:
        raise ConfigError(
            f"runtime cuda needs a GPU and a torch built for CUDA: {reason}. Install such a torch into the Python "
            "that PODIUM_DEVICE_PYTHON names, or set device.runtime to cpu or auto"
        )


def fastest_precision() -> Choice:
    """bf16 where the GPU has it; before, it would be emulated."""
    capability = torch.cuda.get_device_capability()
    shown = "{}.{}".format(*capability)
    if capability >= AMPERE:
        return Choice("bf16", f"auto: this GPU has compute capability {shown}, bf16 comes with 8.0")
    return Choice("fp32", f"auto: this GPU has compute capability {shown}, bf16 comes with 8.0")


class CudaDevice(Device):
    """One GPU.

    Args:
        local_index: Which GPU of this host: the place of the process among those that share the host.
        precision: fp32 or bf16.
        heads: Attention heads of the model.
        hidden: Its hidden size.

    Raises:
        ConfigError: there are fewer GPUs than processes.
    """

    reads_ahead = READS_AHEAD

    def __init__(self, local_index: int, precision: str, heads: int, hidden: int) -> None:
        if local_index >= torch.cuda.device_count():
            raise ConfigError(
                f"process {local_index} of this host (LOCAL_RANK, counted from 0) finds {torch.cuda.device_count()} "
                "GPUs, one is needed for each process: lower torchrun --nproc-per-node, or see CUDA_VISIBLE_DEVICES"
            )
        self.place_of = torch.device("cuda", local_index)
        torch.cuda.set_device(self.place_of)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._attention, self.reason = choose_attention(self.place_of, dtype, heads, hidden)
        self._copies = torch.cuda.Stream(self.place_of)
        self._steps = torch.cuda.current_stream(self.place_of)

    def place(self, flat: FlatBatch) -> FlatBatch:
        """Copy from pinned memory on a stream of its own, beside the steps; back when the copy is there."""
        return place(flat, self._move, self._attention)

    def _move(self, packed: Tensor) -> Tensor:
        with torch.cuda.stream(self._copies):
            there = packed.pin_memory().to(self.place_of, non_blocking=True)
        # The steps read it: without this the copies' stream would reuse the memory as soon as Python lets go.
        there.record_stream(self._steps)
        self._copies.synchronize()  # of the reading thread; the steps go on
        return there

    def passes(self, flat: FlatBatch) -> Iterator[Tuple[int, Tokens, Tensor]]:
        yield flat.real_tokens, flat.tokens, flat.starts

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            found = str(error).partition(". ")[0]
            raise ConfigError(
                f"the GPU has not the memory for a micro-batch ({found}): lower device.micro_batch_size, which "
                "changes the result by rounding only"
            ) from None

    def clip(self, gradients: List[Tensor], max_norm: Optional[float]) -> Tensor:
        norm = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(gradients))))
        if max_norm is not None:
            # Always multiplied, by 1 if need be: to ask the norm first would make the host wait.
            scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, [scale] * len(gradients))
        return norm

    def rng_state(self) -> Dict[str, Tensor]:
        return {"torch": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state(self.place_of)}

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        torch.set_rng_state(state["torch"])
        torch.cuda.set_rng_state(state["cuda"], self.place_of)

    def versions(self) -> Dict[str, str]:
        return {"cuda": str(torch.version.cuda), "gpu": torch.cuda.get_device_name(self.place_of)}

    def peak_memory_mb(self) -> float:
        return torch.cuda.max_memory_allocated(self.place_of) / 2**20


def place(flat: FlatBatch, move: Callable[[Tensor], Tensor], make_attention: MakeAttention) -> FlatBatch:
    """A micro-batch on another device, in one copy, with the attention of that device.

    Args:
        move: Copies an int64 tensor there.
        make_attention: From varlen.choose_attention.
    """
    tokens = flat.tokens
    blocks = flat.blocks
    offsets = np.cumsum([0, *blocks]).astype(np.int32)
    halves = torch.from_numpy(np.append(offsets, offsets[:1] * 0) if len(offsets) % 2 else offsets)
    labels = [x.view(torch.int64) for x in flat.labels.values()]  # 64 bits each; only targets are no whole numbers
    parts = [tokens.input_ids, tokens.token_type_ids, tokens.position_ids, flat.starts, *labels]
    moved = move(torch.cat([*parts, halves.view(torch.int64)]))
    *there, packed_offsets = moved.split([*(len(part) for part in parts), len(halves) // 2])
    attention = make_attention(packed_offsets.view(torch.int32)[: len(offsets)], max(blocks))
    return dataclasses.replace(
        flat,
        tokens=dataclasses.replace(
            tokens, input_ids=there[0], token_type_ids=there[1], position_ids=there[2], attention=attention
        ),
        starts=there[3],
        labels={name: bits.view(x.dtype) for (name, x), bits in zip(flat.labels.items(), there[4:])},
    )
