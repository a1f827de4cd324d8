"""BERT on CPU or GPU with torch: padding dropped, every sequence at its exact length.

Predictions on a CPU are forward passes over cache-sized pieces of equal shapes, with attention by torch's fused kernel.
Measured on 1 thread of a CPU with avx512_bf16 (others at work), 256 rows of SQuAD features, real tokens per CPU
second, against the same passes with the attention of training: tiny (2 layers of 128) fp32 75,000 to 97,000, bf16
139,000 to 206,000; base bf16 2,900 to 3,700. Equal shapes matter in bf16: oneDNN builds a kernel for each new shape,
1.9 ms for a matrix product of 1.1 ms, and remembers only so many; without rounding the tokens of a pass up, tiny fell
by a quarter.

Legend: T tokens of all sequences one after the other, longest first; H hidden size, A heads, D = H / A.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from itertools import islice
from typing import Any, Callable, ContextManager, Dict, Generator, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from ipu_model import heads
from ipu_model.distributed.ranks import Instances
from ipu_model.errors import ConfigError
from ipu_model.jobs.job import OptimizerConfig
from ipu_model.models.encoder import LowPrecisionCopies, Tokens
from ipu_model.models.flat import FlatBatch, flatten
from ipu_model.models.head import Logits
from ipu_model.optim.optimizers import (
    BlockedAdamW,
    clip_gradients,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
)
from ipu_model.rows.reading import Batch, RowFolder, UpdateRows, prefetch
from ipu_model.runtimes.runtime import StepMetrics, UpdateAborted

TOKENS_PER_PASS = 4096
"""Tokens of one forward pass of a prediction at most (but one sequence at least): more leave the cache, fewer cost
calls."""
ROUND_TO = 256
"""Tokens of a pass are a multiple of this; what is added is computed for nothing, 3% on the average."""


class EqualLengthAttention:
    """Attention inside each sequence, sequences of equal length together; no dropout, for no backward pass.

    Args:
        lengths: Tokens of each sequence, equal ones side by side. Tokens after the last sequence come out as zeros.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._runs: List[Tuple[int, int, int]] = []  # first token, sequences, tokens of each
        first = 0
        for length in lengths:
            if self._runs and self._runs[-1][2] == length:
                start, count, _ = self._runs[-1]
                self._runs[-1] = (start, count + 1, length)
            else:
                self._runs.append((first, 1, length))
            first += length
        self._tokens = first

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        """query, key, value and the result: [T, H]. `dropout` is 0."""
        output = torch.empty_like(query)
        output[self._tokens :] = 0
        for first, count, length in self._runs:
            run = slice(first, first + count * length)
            split = (count, length, heads, query.shape[1] // heads)
            q, k, v = (x[run].view(split).transpose(1, 2) for x in (query, key, value))  # [count, A, length, D]
            output[run].view(split).copy_(scaled_dot_product_attention(q, k, v).transpose(1, 2))
        return output


def passes(flat: FlatBatch) -> Iterator[Tuple[int, Tokens, Tensor]]:
    """Cut a batch into forward passes.

    Yields:
        Real tokens of the pass, its tokens with what rounds them up at the end, and where its sequences start, [N].
    """
    lengths = flat.lengths.tolist()
    begin = first = 0
    while begin < len(lengths):
        end, tokens = begin + 1, lengths[begin]
        while end < len(lengths) and tokens + lengths[end] <= TOKENS_PER_PASS:
            tokens += lengths[end]
            end += 1
        rounding = (0, -tokens % ROUND_TO)
        ids, types, positions = (
            pad(x[first : first + tokens], rounding)
            for x in (flat.tokens.input_ids, flat.tokens.token_type_ids, flat.tokens.position_ids)
        )
        attention = EqualLengthAttention(lengths[begin:end])
        yield tokens, Tokens(ids, types, positions, attention), flat.starts[begin:end] - first
        begin, first = end, first + tokens


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


@dataclass(frozen=True)
class PreparedBatch(Batch):
    """A batch with its micro-batches on the device."""

    micro_batches: Tuple[FlatBatch, ...] = ()
    """In training the share of this process, cut up; in prediction all rows as one."""


class TorchRuntime:
    """The Runtime of `ipu_model.runtimes` with torch alone: on the CPU, or on one GPU.

    Args:
        model: From modeling.build_model, with its weights; moved to the device.
        head: Of heads.names.
        micro_batch_size: Rows in one forward pass.
        precision: fp32, or bf16 for products in bf16 with fp32 weights (encoder.LowPrecisionCopies).
        optimizer: None for a runtime that only predicts.
        seed: Of dropout; every process that trains along draws from a seed of its own.
        device: The CPU by default.
        instances: This process among those that train together, joined; alone by default.
        compiling: Puts compiled functions into the optimizer; None: it stays as it is.
        deadline_near: Whether an update under way should be aborted. Asked on a CPU only, where an update may take
            minutes; a GPU is faster than the answer, for which it would have to wait.
    """

    def __init__(
        self,
        model: nn.Module,
        head: str,
        micro_batch_size: int,
        precision: str,
        optimizer: Optional[OptimizerConfig],
        seed: int,
        device: Optional[Device] = None,
        instances: Optional[Instances] = None,
        compiling: Optional[Callable[[Optional[torch.optim.Optimizer]], None]] = None,
        deadline_near: Callable[[], bool] = bool,
    ) -> None:
        self._device, self._instances = device or Device(), instances or Instances()
        # Any: what forward takes and gives is between the model and its head.
        self._model: Any = model.to(self._device.place_of)
        self._head, self._micro_batch_size = heads.of(head), micro_batch_size
        self._copies = LowPrecisionCopies(model, torch.bfloat16 if precision == "bf16" else None)
        self._max_norm = optimizer.max_grad_norm if optimizer is not None else None
        self._optimizer = make_optimizer(optimizer, model, self._copies) if optimizer is not None else None
        self._deadline_near = deadline_near if self._device.place_of.type == "cpu" else None
        if compiling is not None:
            compiling(self._optimizer)
        torch.manual_seed(_seed_of(seed, self._instances.index))

    program: Optional[str] = None

    @property
    def reads_ahead(self) -> int:
        """Batches to prepare while one trains."""
        return self._device.reads_ahead

    def compile(self, example: Batch, held_out: Optional[Batch] = None) -> None:
        """The batch must cut into whole micro-batches.

        Raises:
            ConfigError: it does not.
        """
        share = self._instances.share(len(example.rows))
        if self._optimizer is not None and (share.stop - share.start) % self._micro_batch_size:
            raise ConfigError(
                f"{share.stop - share.start} rows do not cut into micro-batches of {self._micro_batch_size}: "
                "rows per update must be a multiple of micro_batch_size"
            )
        if isinstance(self._optimizer, BlockedAdamW):
            self._optimizer.rehearse()

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Drop the padding and bring to the device what a step reads."""
        flats = [self._flatten(batch)] if self._optimizer is None else list(self._share(batch))
        return PreparedBatch(batch.rows, batch.columns, tuple(self._device.place(flat) for flat in flats))

    def _share(self, batch: Batch) -> Iterator[FlatBatch]:
        share = self._instances.share(len(batch.rows))
        for start in range(share.start, share.stop, self._micro_batch_size):
            part = batch.part(start, min(start + self._micro_batch_size, share.stop))
            if part.sequences:  # the last update is filled up with empty rows
                yield self._flatten(part)

    def _flatten(self, batch: Batch) -> FlatBatch:
        return flatten(batch, self._head.flat_labels)

    def share(self, rows: int) -> slice:
        """All of them: every process counts the labels of the whole update, and trains on its part of it."""
        return slice(0, rows)

    def calls(self, rows: RowFolder, order: UpdateRows, steps: range) -> Generator[Batch, None, None]:
        """Batches, prepared in another thread where the device lets this process read ahead."""
        return prefetch(lambda step: self.prepare(rows.take(order(step, steps.step))), steps, self.reads_ahead)

    def train_step(self, batch: Batch, learning_rate: float) -> StepMetrics:
        """One update: forward and backward per micro-batch, clip, step.

        The host reads the figures once, at the end: until then a device never waits for it.
        """
        if self._optimizer is None:
            raise ConfigError("this runtime was made to predict: give the job an optimizer")
        prepared = batch if isinstance(batch, PreparedBatch) else self.prepare(batch)
        self._model.train()
        self._optimizer.zero_grad(set_to_none=True)
        self._copies.zero_grad()
        counts = self._head.label_counts(batch)  # of all processes: each one reads the whole batch
        with self._device.running():
            figures = self._accumulate(prepared.micro_batches, counts)
            norm = self._clip()
            self._update(learning_rate)
            loss, *means, norm_before = torch.cat([figures, norm.double().reshape(1)]).tolist()
        return StepMetrics(loss, dict(zip(self._head.parts, means)), batch.sequences, batch.real_tokens, norm_before)

    def _accumulate(self, micro_batches: Sequence[FlatBatch], counts: Dict[str, int]) -> Tensor:
        """Gradients of this process's share of an update; the update's loss and its parts, of all processes, fp64."""
        generators = self._device.rng_state() if self._deadline_near is not None else {}
        shares: List[Tensor] = []
        aborted = False
        one_is_all = len(micro_batches) == 1 and self._instances.count == 1
        for flat in micro_batches:
            aborted = self._deadline_near is not None and bool(shares) and self._deadline_near()
            if aborted:
                break
            share, parts = self._head.loss(self._model, flat, counts)
            share.backward()
            if not (one_is_all and isinstance(self._optimizer, BlockedAdamW)):  # sums are made in fp32
                self._copies.collect_gradients()
            shares.append(torch.stack([share, *parts.values()]).detach())
        if not shares:  # this process has no row of the last update, but takes part in the sum over all processes
            for weight in self._model.parameters():
                weight.grad = torch.zeros_like(weight)
            shares.append(torch.zeros(1 + len(self._head.parts), device=self._device.place_of))
        figures = torch.stack(shares).double().sum(0)
        votes = torch.tensor([aborted], dtype=torch.float64)
        self._instances.add([figures] if self._deadline_near is None else [figures, votes])
        if float(votes) > 0:  # in any process: then in all
            self._device.load_rng_state(generators)
            raise UpdateAborted
        return figures

    def _clip(self) -> Tensor:
        """Add up the gradients of all processes and clip them; their norm before."""
        gradients = self._copies.gradients(self._model.parameters())
        self._instances.add(gradients)
        if isinstance(self._optimizer, BlockedAdamW):
            return self._optimizer.clip(gradients, self._max_norm)
        return self._device.clip(gradients, self._max_norm)

    def _update(self, learning_rate: float) -> None:
        assert self._optimizer is not None
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        if not isinstance(self._optimizer, BlockedAdamW):
            self._copies.refresh()

    def predict(self, batch: Batch) -> Sequence[Logits]:
        """Logits of every sequence in the batch; dropout off."""
        self._model.eval()
        if isinstance(batch, PreparedBatch) and self._optimizer is None:
            (flat,) = batch.micro_batches
        else:
            flat = self._device.place(self._flatten(batch))
        with torch.inference_mode(), self._device.running():
            parts = [
                self._head.predict(self._model, tokens, starts, count)
                for count, tokens, starts in self._device.passes(flat)
            ]
            logits = torch.cat(parts).float().cpu().numpy()
        each = zip(flat.feature_ids, self._head.split(logits, flat.lengths))
        return [Logits(int(i), dict(zip(self._head.logits, own))) for i, own in each]

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Sums over the batches; of several processes each takes its share of them."""
        total = torch.zeros(len(self._head.sums), dtype=torch.float64, device=self._device.place_of)
        self._model.eval()
        with self._device.running():
            with torch.inference_mode():
                for batch in islice(batches, self._instances.index, None, self._instances.count):
                    total += self._head.add_up(self._model, self._device.place(self._flatten(batch)))
            self._instances.add([total])
        return dict(zip(self._head.sums, total.tolist()))

    def state_dict(self) -> Dict[str, Tensor]:
        """Weights by Hugging Face name, on the host."""
        return {name: x.detach().to("cpu", copy=True) for name, x in self._model.state_dict().items()}

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        """Set the weights; every name must be there."""
        self._model.load_state_dict(state)
        self._copies.refresh()

    def optimizer_state(self) -> Dict[str, Tensor]:
        """Moments and step counts, on the host: '<parameter>/exp_avg' and so on."""
        if self._optimizer is None:
            return {}
        return {name: x.cpu() for name, x in optimizer_tensors(self._optimizer, self._model).items()}

    def load_optimizer_state(self, state: Dict[str, Tensor]) -> None:
        """Set what optimizer_state gave."""
        if self._optimizer is None:
            return
        # As torch's own optimizers: the step count stays on the host unless the fused kernels read it.
        fused = any(group.get("fused") for group in self._optimizer.param_groups)
        there = {
            name: x if name.endswith("/step") and not fused else x.to(self._device.place_of)
            for name, x in state.items()
        }
        load_optimizer_tensors(self._optimizer, self._model, there)

    def rng_state(self) -> Dict[str, Tensor]:
        """The generators of all processes: dropout draws from them."""
        return self._instances.gather(self._device.rng_state())

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        """Set what rng_state gave."""
        self._device.load_rng_state(self._instances.own(state))

    def versions(self) -> Dict[str, str]:
        """CUDA and GPU; none but torch's on a CPU."""
        return self._device.versions()

    def peak_device_memory_mb(self) -> Optional[float]:
        """Peak memory of tensors on the GPU, MB of 2**20 bytes; None on a CPU."""
        return self._device.peak_memory_mb()

    def close(self) -> None:
        """Nothing to let go of: memory goes with the process."""


def _seed_of(seed: int, index: int) -> int:
    """Seed of dropout in one process: the seed of the job in the first, a hash of it and the index in the others."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest()[:4], "little")
