"""Torch runtime for CPU and GPU: padding is dropped, and every sequence has its exact length.

Predictions on a CPU are forward passes over cache-sized pieces of equal shapes, with torch's fused attention kernel.
Compared with passes that use the attention of training, on 1 thread of a busy CPU with avx512_bf16 and 256 rows of
SQuAD features, real tokens per CPU second rose from 75,000 to 97,000 (tiny, 2 layers of 128, fp32), from 139,000 to
206,000 (tiny, bf16) and from 2,900 to 3,700 (base, bf16). Equal shapes matter in bf16: oneDNN builds a kernel for each
new shape, 1.9 ms for a matrix product of 1.1 ms, and caches a limited number. Without rounding the tokens of a pass up,
tiny was a quarter slower.

Legend: T tokens of all sequences concatenated, longest first; H hidden size, A heads, D = H / A.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from itertools import islice
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Generator,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from ipu_model import heads
from ipu_model.core.errors import ConfigError
from ipu_model.distributed.instances import Instances
from ipu_model.jobs.job import OptimizerConfig
from ipu_model.models.config import Distillation
from ipu_model.models.flat import FlatBatch, SequenceAttention, flatten
from ipu_model.models.head import JointHead, Logits
from ipu_model.models.layers import LowPrecisionCopies, Tokens
from ipu_model.optim.optimizers import (
    BlockedAdamW,
    clip_gradients,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
)
from ipu_model.rows.row_folder import Batch, RowFolder, UpdateRows, prefetch
from ipu_model.runtimes.runtime import Runtime, StepMetrics, UpdateAborted

TOKENS_PER_PASS = 4096
"""Maximum tokens of a forward pass in prediction (at least one sequence): more exceed the cache, fewer cost calls."""
ROUND_TO = 256
"""The tokens of a pass are padded to a multiple of this, which adds 3% on average."""


class EqualLengthAttention:
    """Attention within each sequence, batched over sequences of equal length; inference only, without dropout.

    Equal `lengths` (tokens of each sequence) are adjacent. Tokens after the last sequence give zeros.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._runs: List[Tuple[int, int, int]] = []  # first token, sequences, tokens of each
        self._lengths, self._windows = lengths, SequenceAttention(lengths)
        first = 0
        for length in lengths:
            if self._runs and self._runs[-1][2] == length:
                start, count, _ = self._runs[-1]
                self._runs[-1] = (start, count + 1, length)
            else:
                self._runs.append((first, 1, length))
            first += length
        self._tokens = first

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int = 0
    ) -> Tensor:
        """query, key, value and the result: [T, H]. `dropout` is 0."""
        output = torch.empty_like(query)
        if 0 < window < max(self._lengths) - 1:
            q, k, v = (x[: self._tokens] for x in (query, key, value))
            output[: self._tokens] = self._windows(q, k, v, heads, dropout, window)
            output[self._tokens :] = 0
            return output
        output[self._tokens :] = 0
        for first, count, length in self._runs:
            run = slice(first, first + count * length)
            split = (count, length, heads, query.shape[1] // heads)
            q, k, v = (x[run].view(split).transpose(1, 2) for x in (query, key, value))  # [count, A, length, D]
            output[run].view(split).copy_(scaled_dot_product_attention(q, k, v).transpose(1, 2))
        return output


class Device:
    """Device of a TorchRuntime; this class is the CPU, and cuda.py has the GPU.

    On the CPU there is nothing to copy, and no thread reads ahead: reading and flattening 4,000 tokens took 0.7 ms of
    an update of 282 ms (2 layers of 128, bf16, CPU time of one thread), and a second thread would occupy a core.
    """

    device = torch.device("cpu")
    reads_ahead = 0

    def move_batch(self, flat: FlatBatch) -> FlatBatch:
        """Move a micro-batch to the device; may run in another thread."""
        return flat

    def split_passes(self, flat: FlatBatch) -> Iterator[Tuple[int, Tokens, Tensor]]:
        """Split a batch on the device into forward passes of prediction.

        Yield the number of real tokens of a pass, its tokens, padded at the end, and the starts [N] of its sequences.
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
            passed = Tokens(ids, types, positions, attention, lengths[begin:end])
            yield tokens, passed, flat.starts[begin:end] - first
            begin, first = end, first + tokens

    def explain_errors(self) -> ContextManager[None]:
        """Turn errors of the device inside the body into errors with advice."""
        return contextlib.nullcontext()

    def clip(self, gradients: List[Tensor], max_norm: Optional[float]) -> Tensor:
        """Scale gradients to a global L2 norm of at most `max_norm`; return the norm before, possibly on the device."""
        return torch.tensor(clip_gradients(gradients, max_norm))

    def rng_state(self) -> Dict[str, Tensor]:
        """Return the states of all generators that dropout may use, on the host."""
        return {"torch": torch.get_rng_state()}

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        torch.set_rng_state(state["torch"])

    def versions(self) -> Dict[str, str]:
        """Return the versions of device software beyond torch."""
        return {}

    def peak_memory_mb(self) -> Optional[float]:
        """Return the peak memory of the device in MB of 2**20 bytes; None for the CPU."""
        return None


@dataclass(frozen=True)
class PreparedBatch(Batch):
    """A batch with its micro-batches on the device."""

    micro_batches: Tuple[FlatBatch, ...] = ()
    """In training the micro-batches of this process's share; in prediction one with all rows."""


class TorchRuntime(Runtime):
    """Runtime on the CPU or one GPU, with torch alone.

    Args:
        model: From modeling.build_model, with its weights; moved to the device.
        micro_batch_size: Rows in one forward pass.
        precision: fp32, or bf16 for matrix products in bf16 with fp32 weights (layers.LowPrecisionCopies).
        optimizer: None for a runtime that only predicts.
        seed: Of dropout; every process of a training derives its own.
        instances: Rank of this process, already joined.
        compiling: Installs compiled functions in the optimizer.
        deadline_near: Whether to abort the current update. Used on a CPU only, where an update may take minutes. An
            update on a GPU is shorter than the synchronisation that the check would need.
        distillation: Of a teacher, whose logits are in the rows.
        settings: Of the head.
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
        distillation: Optional[Distillation] = None,
        settings: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self._device, self._instances = device or Device(), instances or Instances()
        self.reads_ahead = self._device.reads_ahead
        # Any: arguments and results of forward depend on the head.
        self._model: Any = model.to(self._device.device)
        self._head, self._micro_batch_size = heads.get_head(head).configure(settings or {}), micro_batch_size
        self._copies = LowPrecisionCopies(model, torch.bfloat16 if precision == "bf16" else None)
        self._distillation, self._parts = distillation, self._head.parts_of(distillation)
        self._max_norm = optimizer.max_grad_norm if optimizer is not None else None
        self._optimizer = make_optimizer(optimizer, model, self._copies) if optimizer is not None else None
        self._deadline_near = deadline_near if self._device.device.type == "cpu" else None
        if compiling is not None:
            compiling(self._optimizer)
        torch.manual_seed(_seed_of(seed, self._instances.index))

    def compile(self, example: Batch, held_out: Optional[Batch] = None) -> None:
        """Check that the batch splits into whole micro-batches, and build compiled functions.

        Raises:
            ConfigError: it does not.
        """
        share = self._instances.share(len(example.rows))
        divides = isinstance(self._head, JointHead) or not (share.stop - share.start) % self._micro_batch_size
        if self._optimizer is not None and not divides:
            raise ConfigError(
                f"{share.stop - share.start} rows do not split into micro-batches of {self._micro_batch_size}: "
                "rows per update must be a multiple of micro_batch_size"
            )
        if isinstance(self._optimizer, BlockedAdamW):
            self._optimizer.rehearse()

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Drop the padding and move the inputs of a step to the device."""
        if self._optimizer is None:
            flats = [self._flatten(batch)]
        else:
            share = self._instances.share(len(batch.rows))
            parts = self._split(batch.part(share.start, share.stop).drop_empty())
            flats = [self._flatten(part) for part in parts if part.sequences]
        return PreparedBatch(batch.rows, batch.columns, batch.class_weights, tuple(map(self._device.move_batch, flats)))

    def _split(self, batch: Batch) -> Iterator[Batch]:
        """Split rows into micro-batches.

        For a joint head the last is whole, as only its graph is kept (`_accumulate_jointly`).

        For a model that pads, they are sorted by length and filled with as many rows as have no more tokens than
        micro_batch_size full rows: that takes no more memory, and fewer passes over the weights and less padding.
        """
        is_joint = isinstance(self._head, JointHead)
        if is_joint or not getattr(self._model, "pads", False):
            return batch.split(self._micro_batch_size, short_first=is_joint)
        return batch.split_by_tokens(self._micro_batch_size * batch.columns["sequence_ids"].shape[1])

    def _flatten(self, batch: Batch) -> FlatBatch:
        return flatten(batch, self._head.flat_labels)

    def share(self, rows: int) -> slice:
        """Return all rows: every process counts the labels of the whole update, and trains on its part of it."""
        return slice(0, rows)

    def calls(self, rows: RowFolder, order: UpdateRows, steps: range) -> Generator[Batch, None, None]:
        """Yield batches, prepared in another thread if the device reads ahead."""

        def read(step: int) -> Batch:
            return self.prepare(rows.take(order(step, steps.step), order.epochs(step, steps.step)))

        return prefetch(read, steps, self.reads_ahead)

    def train_step(self, batch: Batch, learning_rate: float) -> StepMetrics:
        """Make one update: forward and backward per micro-batch, clip, step.

        The host reads the metrics once, at the end, so the device never waits for it before.
        """
        if self._optimizer is None:
            raise ConfigError("this runtime only predicts: set an optimizer in the job to train")
        prepared = batch if isinstance(batch, PreparedBatch) else self.prepare(batch)
        self._model.train()
        self._optimizer.zero_grad(set_to_none=True)
        self._copies.zero_grad()
        counts = self._head.label_counts(batch)  # of all processes, because each reads the whole batch
        with self._device.explain_errors():
            if isinstance(self._head, JointHead):
                figures = self._accumulate_jointly(self._head, prepared)
            else:
                figures = self._accumulate(prepared.micro_batches, counts)
            gradients = self._copies.gradients(self._model.parameters())
            self._instances.all_reduce(gradients)
            blocked = self._optimizer if isinstance(self._optimizer, BlockedAdamW) else None
            norm = (blocked or self._device).clip(gradients, self._max_norm)
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
            if blocked is None:
                self._copies.refresh()
            loss, *means, norm_before = torch.cat([figures, norm.double().reshape(1)]).tolist()
        return StepMetrics(loss, dict(zip(self._parts, means)), batch.sequences, batch.real_tokens, norm_before)

    def _accumulate(self, micro_batches: Sequence[FlatBatch], counts: Dict[str, float]) -> Tensor:
        """Compute the gradients of this process's share; return the loss and its parts over all processes, in fp64."""
        generators = self._device.rng_state() if self._deadline_near is not None else {}
        shares: List[Tensor] = []
        aborted = False
        one_is_all = len(micro_batches) == 1 and self._instances.count == 1
        for flat in micro_batches:
            aborted = self._deadline_near is not None and bool(shares) and self._deadline_near()
            if aborted:
                break
            share, parts = self._head.loss(self._model, flat, counts, self._distillation)
            share.backward()
            if not (one_is_all and isinstance(self._optimizer, BlockedAdamW)):  # sum gradients in fp32
                self._copies.collect_gradients()
            shares.append(torch.stack([share, *parts.values()]).detach())
        if not shares:  # this process has no row of the last update, but must take part in the all-reduce
            for weight in self._model.parameters():
                weight.grad = torch.zeros_like(weight)
            shares.append(torch.zeros(1 + len(self._parts), device=self._device.device))
        figures = torch.stack(shares).double().sum(0)
        votes = torch.tensor([aborted], dtype=torch.float64)
        self._instances.all_reduce([figures] if self._deadline_near is None else [figures, votes])
        if float(votes) > 0:  # if one process aborts, all do
            self._device.load_rng_state(generators)
            raise UpdateAborted
        return figures

    def _accumulate_jointly(self, head: JointHead, batch: PreparedBatch) -> Tensor:
        """Compute the gradients of this process's share in two passes; return the loss and its parts, in fp64.

        The graph of the last micro-batch is kept, so that only the others are embedded twice.
        """
        flats = batch.micro_batches
        vectors: List[Tensor] = []
        states: List[Dict[str, Tensor]] = []
        for number, flat in enumerate(flats, 1):
            states.append(self._device.rng_state())
            with torch.set_grad_enabled(number == len(flats)):
                vectors.append(head.embed(self._model, flat))
        after, aborted = self._device.rng_state(), False
        every, first = self._gather(head, batch, [x.detach() for x in vectors])
        every.requires_grad_()
        labels = {name: x.to(self._device.device) for name, x in head.joint_labels(batch.columns).items()}
        parts = head.joint_loss(every, labels)
        (gradients,) = torch.autograd.grad(parts[self._parts[0]], [every])
        slices = gradients[first : first + sum(map(len, vectors))].split([len(x) for x in vectors])
        for number in reversed(range(len(flats))):
            if number < len(flats) - 1:
                aborted = self._deadline_near is not None and self._deadline_near()
                if aborted:
                    break
                self._device.load_rng_state(states[number])
                vectors[number] = head.embed(self._model, flats[number])
            vectors[number].backward(slices[number])
            vectors[number] = slices[number]  # frees the graph
            self._copies.collect_gradients()
        if not flats:  # this process has no row of the last update, but must take part in the all-reduce
            for weight in self._model.parameters():
                weight.grad = torch.zeros_like(weight)
        if self._deadline_near is not None:
            votes = torch.tensor([aborted], dtype=torch.float64)
            self._instances.all_reduce([votes])
            if float(votes) > 0:  # if one process aborts, all do
                self._device.load_rng_state(states[0] if states else after)
                raise UpdateAborted
        self._device.load_rng_state(after)
        return torch.stack([parts[self._parts[0]], *(parts[name] for name in self._parts)]).detach().double()

    def _gather(self, head: JointHead, batch: Batch, vectors: Sequence[Tensor]) -> Tuple[Tensor, int]:
        """Return the vectors of the whole update, and the number of the first of this process's own."""
        if self._instances.count == 1:
            return torch.cat(list(vectors)), 0
        first = batch.part(0, self._instances.share(len(batch.rows)).start).sequences
        every = torch.zeros((batch.sequences, head.width(self._model)), device=self._device.device)
        if vectors:
            joined = torch.cat(list(vectors))
            every[first : first + len(joined)] = joined
        self._instances.all_reduce([every])
        return every, first

    def predict(self, batch: Batch) -> Sequence[Logits]:
        self._model.eval()
        if isinstance(batch, PreparedBatch) and self._optimizer is None:
            (flat,) = batch.micro_batches
        else:
            flat = self._device.move_batch(self._flatten(batch))
        with torch.inference_mode(), self._device.explain_errors():
            parts = [
                self._head.predict(self._model, tokens, starts, count)
                for count, tokens, starts in self._device.split_passes(flat)
            ]
            logits = torch.cat(parts).float().cpu().numpy()
        return self._head.name_logits(logits, flat.lengths, flat.feature_ids)

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Return the sums over the batches; several processes split the batches between them."""
        total = torch.zeros(len(self._head.sums), dtype=torch.float64, device=self._device.device)
        self._model.eval()
        with self._device.explain_errors():
            with torch.inference_mode():
                for batch in islice(batches, self._instances.index, None, self._instances.count):
                    total += self._head.add_up(self._model, self._device.move_batch(self._flatten(batch)))
            self._instances.all_reduce([total])
        return dict(zip(self._head.sums, total.tolist()))

    def state_dict(self) -> Dict[str, Tensor]:
        return {name: x.detach().to("cpu", copy=True) for name, x in self._model.state_dict().items()}

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        """Set the weights; every name must be present."""
        self._model.load_state_dict(state)
        self._copies.refresh()

    def optimizer_state(self) -> Dict[str, Tensor]:
        """Return moments and step counts on the host: '<parameter>/exp_avg' and so on."""
        if self._optimizer is None:
            return {}
        return {name: x.cpu() for name, x in optimizer_tensors(self._optimizer, self._model).items()}

    def load_optimizer_state(self, state: Dict[str, Tensor]) -> None:
        if self._optimizer is None:
            return
        # As in torch's optimizers, the step count stays on the host unless fused kernels read it.
        fused = any(group.get("fused") for group in self._optimizer.param_groups)
        tensors = {
            name: x if name.endswith("/step") and not fused else x.to(self._device.device) for name, x in state.items()
        }
        load_optimizer_tensors(self._optimizer, self._model, tensors)

    def rng_state(self) -> Dict[str, Tensor]:
        """Return the generator states of all processes, used by dropout."""
        return self._instances.gather(self._device.rng_state())

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        self._device.load_rng_state(self._instances.select_own(state))

    def versions(self) -> Dict[str, str]:
        """Return the versions of CUDA and GPU, and of the library that computes the model if it is not this one."""
        return {**self._device.versions(), **getattr(self._model, "versions", {})}

    def peak_device_memory_mb(self) -> Optional[float]:
        """Return the peak memory of tensors on the GPU in MB of 2**20 bytes; None on a CPU."""
        return self._device.peak_memory_mb()

    def close(self) -> None:
        """Do nothing: memory is freed with the process."""


def _seed_of(seed: int, index: int) -> int:
    """Return the dropout seed of a process: the job's seed in the first, a hash of it and the index in the others."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest()[:4], "little") if index else seed
