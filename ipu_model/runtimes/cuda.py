"""A GPU as the device of a TorchRuntime: selection, precision, batch transfer, and attention.

TF32, which rounds the factors of matrix products to 10 bits, stays off (torch's default), so that fp32 on a GPU agrees
with the CPU to 1e-5. Use bf16 for speed.

Attention over flat tokens is computed per sequence, without scores between sequences. `VarlenAttention` calls torch's
flash kernel for sequences of any length. torch offers it as `torch.nn.attention.varlen.varlen_attn`, which has no
dropout (torch 2.13). So the operator underneath is called, which has dropout and a backward pass, as torch's own nested
tensors do (torch/nested/_internal/sdpa.py). `PaddedAttention` uses public operators only and supports every precision,
head size and device.

Legend: T tokens of all sequences concatenated, N sequences, H hidden size, A heads, D = H / A.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ipu_model.core.errors import ConfigError
from ipu_model.jobs.plan import Choice
from ipu_model.models.flat import FlatBatch
from ipu_model.models.layers import Attention, Tokens
from ipu_model.runtimes.torch_device import Device

READS_AHEAD = 2
"""Batches that are read and copied while the GPU computes; a single one could not absorb delays of a slow disk."""
MakeAttention = Callable[[Tensor, int], Attention]
"""(offsets, longest) -> attention; offsets [N + 1] int32: the start of each sequence, then T."""

LARGEST_HEAD = 256
"""Limit of flash attention; sizes must also be a multiple of 8 (torch,
aten/src/ATen/native/transformers/cuda/sdp_utils)."""
AMPERE = (8, 0)
"""First compute capability with flash attention and fast bf16."""
WINDOWS = (0, 4)
TOLERANCE = 0.05
"""Maximum difference of the two attentions on 16-bit numbers of magnitude 1; a wrong result differs by about 1."""


def find_gpu() -> Tuple[bool, str]:
    """Return whether torch can use a GPU, and the reason as text."""
    if not torch.backends.cuda.is_built():
        return False, f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return False, "CUDA finds no GPU (nvidia-smi lists them)"
    return True, f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def fastest_precision() -> Choice:
    """Return bf16 if the GPU supports it; older GPUs would emulate it."""
    capability = torch.cuda.get_device_capability()
    shown = "{}.{}".format(*capability)
    precision = "bf16" if capability >= AMPERE else "fp32"
    return Choice(precision, f"auto: this GPU has compute capability {shown}, bf16 comes with 8.0")


class CudaDevice(Device):
    """One GPU, whose number is the rank of the process on this host; `windows`: the model has layers with a window.

    Raises:
        ConfigError: there are fewer GPUs than processes.
    """

    reads_ahead = READS_AHEAD

    def __init__(self, local_index: int, precision: str, heads: int, hidden: int, windows: bool = False) -> None:
        if local_index >= torch.cuda.device_count():
            raise ConfigError(
                f"process {local_index} of this host (LOCAL_RANK, counted from 0) finds {torch.cuda.device_count()} "
                "GPUs, but each process needs one: lower torchrun --nproc-per-node, or check CUDA_VISIBLE_DEVICES"
            )
        self.device = torch.device("cuda", local_index)
        torch.cuda.set_device(self.device)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._attention, self.reason = choose_attention(self.device, dtype, heads, hidden, windows=windows)
        self._copies = torch.cuda.Stream(self.device)
        self._steps = torch.cuda.current_stream(self.device)

    def move_batch(self, flat: FlatBatch) -> FlatBatch:
        """Copy from pinned memory on a separate stream while steps run; return once the copy is complete."""
        return move_batch(flat, self._move, self._attention)

    def _move(self, packed: Tensor) -> Tensor:
        with torch.cuda.stream(self._copies):
            moved = packed.pin_memory().to(self.device, non_blocking=True)
        # The steps read it: without this, the copy stream could reuse the memory once Python drops the tensor.
        moved.record_stream(self._steps)
        self._copies.synchronize()  # blocks the reading thread only
        return moved

    def split_passes(self, flat: FlatBatch) -> Iterator[Tuple[int, Tokens, Tensor]]:
        yield flat.real_tokens, flat.tokens, flat.starts

    @contextlib.contextmanager
    def explain_errors(self) -> Iterator[None]:
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            reason = str(error).partition(". ")[0]
            raise ConfigError(
                f"the GPU has not enough memory for a micro-batch ({reason}): lower device.micro_batch_size, which "
                "changes the result by rounding only"
            ) from None

    def clip(self, gradients: List[Tensor], max_norm: Optional[float]) -> Tensor:
        norm = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(gradients))))
        if max_norm is not None:
            # Always multiply, if necessary by 1: reading the norm first would make the host wait.
            scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, [scale] * len(gradients))
        return norm

    def rng_state(self) -> Dict[str, Tensor]:
        return {"torch": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state(self.device)}

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        torch.set_rng_state(state["torch"])
        torch.cuda.set_rng_state(state["cuda"], self.device)

    def versions(self) -> Dict[str, str]:
        return {"cuda": str(torch.version.cuda), "gpu": torch.cuda.get_device_name(self.device)}

    def peak_memory_mb(self) -> float:
        return torch.cuda.max_memory_allocated(self.device) / 2**20


def move_batch(flat: FlatBatch, move: Callable[[Tensor], Tensor], make_attention: MakeAttention) -> FlatBatch:
    """Move a micro-batch to another device in one copy of an int64 tensor, and add the attention of that device."""
    tokens = flat.tokens
    blocks = flat.blocks
    offsets = np.cumsum([0, *blocks]).astype(np.int32)
    halves = torch.from_numpy(np.append(offsets, offsets[:1] * 0) if len(offsets) % 2 else offsets)
    labels = [x.view(torch.int64) for x in flat.labels.values()]  # 64 bits each; only targets are floats
    parts = [tokens.input_ids, tokens.token_type_ids, tokens.position_ids, flat.starts, *labels]
    moved = move(torch.cat([*parts, halves.view(torch.int64)]))
    *pieces, packed_offsets = moved.split([*(len(part) for part in parts), len(halves) // 2])
    attention = make_attention(packed_offsets.view(torch.int32)[: len(offsets)], max(blocks))
    return dataclasses.replace(
        flat,
        tokens=dataclasses.replace(
            tokens, input_ids=pieces[0], token_type_ids=pieces[1], position_ids=pieces[2], attention=attention
        ),
        starts=pieces[3],
        labels={name: bits.view(x.dtype) for (name, x), bits in zip(flat.labels.items(), pieces[4:])},
    )


class VarlenAttention:
    """Flash attention over cumulative lengths; for `offsets` and `longest` see MakeAttention."""

    def __init__(self, offsets: Tensor, longest: int) -> None:
        self.offsets, self.longest = offsets, longest

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int = 0
    ) -> Tensor:
        """query, key, value and the result: [T, H] fp16 or bf16. `dropout` acts on the attention probabilities."""
        split, offsets, longest = (len(query), heads, -1), self.offsets, self.longest
        views = [x.view(split) for x in (query, key, value)]
        attend = torch.ops.aten._flash_attention_forward
        sizes = {"window_size_left": window, "window_size_right": window} if window else {}
        context = attend(*views, offsets, offsets, longest, longest, dropout, False, False, **sizes)[0]
        return context.reshape(query.shape)


class PaddedAttention:
    """scaled_dot_product_attention over sequences padded to the longest; for the arguments see MakeAttention.

    The padding costs little: attention is a small part of the computation at lengths up to 512, and the kernels that
    torch chooses on a GPU (here the memory-efficient one) store no scores.
    """

    def __init__(self, offsets: Tensor, longest: int) -> None:
        self._offsets, self._longest = offsets.long(), longest
        self._layout: Optional[Tuple[Tensor, Tensor]] = None
        """[T] the padded position of each token (of N * longest), and [N, longest] True for real tokens."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int = 0
    ) -> Tensor:
        """query, key, value and the result: [T, H]. `dropout` acts on the attention probabilities."""
        count, longest = len(self._offsets) - 1, self._longest
        if self._layout is None:  # made once, for all layers
            starts, lengths, device = self._offsets[:-1], self._offsets.diff(), query.device
            # output_size avoids waiting for the device to compute the total.
            rows = torch.repeat_interleave(torch.arange(count, device=device), lengths, output_size=len(query))
            padded_at = rows * longest + torch.arange(len(query), device=device) - starts[rows]
            self._layout = padded_at, torch.arange(longest, device=device) < lengths[:, None]
        positions, real = self._layout

        def padded(flat: Tensor) -> Tensor:  # [T, H] -> [N, A, longest, D]
            rows = flat.new_zeros(count * longest, flat.shape[1]).index_copy(0, positions, flat)
            return rows.view(count, longest, heads, -1).transpose(1, 2)

        visible = real[:, None, None, :]
        if 0 < window < longest - 1:  # padded queries see their own position, as a softmax needs one
            index = torch.arange(longest, device=query.device)
            visible = (visible | ~real[:, None, :, None]) & ((index[:, None] - index).abs() <= window)
        context = scaled_dot_product_attention(
            padded(query), padded(key), padded(value), attn_mask=visible, dropout_p=dropout
        )
        return context.transpose(1, 2).reshape(count * longest, -1).index_select(0, positions)


def choose_attention(
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    hidden: int,
    flash: MakeAttention = VarlenAttention,
    windows: bool = False,
) -> Tuple[MakeAttention, str]:
    """Choose the attention of a GPU, for a model with layers with a window or without; return the reason as well.

    Flash attention is not a public operator: it is used only if its forward and backward results on a few tokens agree
    with those of the public one.
    """
    size = hidden // heads
    if dtype not in (torch.bfloat16, torch.float16):
        return PaddedAttention, f"padded: flash attention does not support {str(dtype).partition('.')[2]}"
    if size % 8 or size > LARGEST_HEAD:
        return PaddedAttention, f"padded: flash attention needs head sizes of a multiple of 8 up to 256, not {size}"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < AMPERE:
        return PaddedAttention, "padded: flash attention needs a GPU of compute capability 8.0"
    try:
        settings = device, dtype, heads, hidden
        difference = max(_difference(flash, PaddedAttention, *settings, window) for window in WINDOWS[: 1 + windows])
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:  # another torch: other arguments
        return PaddedAttention, f"padded: flash attention failed here ({str(error).strip().splitlines()[0]})"
    if not difference < TOLERANCE:
        return PaddedAttention, f"padded: flash attention gave different results here (by {difference:.2g})"
    return flash, "flash over cumulative lengths"


def _difference(
    candidate: MakeAttention,
    other: MakeAttention,
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    hidden: int,
    window: int = 0,
) -> float:
    """Return the largest difference of results and gradients of two attentions on sequences of 19, 8 and 1 tokens."""
    offsets = torch.tensor([0, 19, 27, 28], dtype=torch.int32)
    generator = torch.Generator().manual_seed(0)  # does not advance the job's own generators
    inputs = [torch.randn(28, hidden, generator=generator).to(device, dtype) for _ in range(4)]
    results = []
    for make in (candidate, other):
        leaves = [x.clone().requires_grad_() for x in inputs[:3]]
        context = make(offsets.to(device), 19)(leaves[0], leaves[1], leaves[2], heads, 0.0, window)
        context.backward(inputs[3])
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        results.append(torch.cat([x.float() for x in (context.detach(), *gradients)]))
    return float((results[0] - results[1]).abs().max())
