"""BERT on CPU with torch: padding dropped, every sequence at its exact length."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, List, Optional, Set, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from ipu_model.data import Batch
from ipu_model.errors import ConfigError
from ipu_model.flat import FlatBatch, flatten, split_sequences
from ipu_model.job import OptimizerConfig
from ipu_model.losses import LOSS_PARTS, answer_loss, label_counts, pretraining_loss
from ipu_model.optimizers import clip_gradients, load_optimizer_tensors, make_optimizer, optimizer_tensors
from ipu_model.plan import Choice
from ipu_model.runtime import AnswerLogits, StepMetrics

FAST_BF16 = ("avx512_bf16", "amx_bf16")
"""CPU flags that make bf16 matrix products about twice as fast as fp32; without them they are slower."""


class TorchRuntime:
    """The Runtime of `ipu_model.runtime` on the host's CPU.

    Args:
        model: From modeling.build_model, with its weights.
        head: pretraining or question_answering.
        micro_batch_size: Rows in one forward pass.
        precision: fp32, or bf16 for autocast with fp32 weights.
        optimizer: None for a runtime that only predicts.
        seed: Of dropout.
    """

    def __init__(
        self,
        model: nn.Module,
        head: str,
        micro_batch_size: int,
        precision: str,
        optimizer: Optional[OptimizerConfig],
        seed: int,
    ) -> None:
        self._model, self._head, self._micro_batch_size = model, head, micro_batch_size
        self._bf16 = precision == "bf16"
        self._max_norm = optimizer.max_grad_norm if optimizer is not None else None
        self._optimizer = make_optimizer(optimizer, model) if optimizer is not None else None
        torch.manual_seed(seed)

    def compile(self, example: Batch) -> None:
        """Nothing to build on a CPU; the batch must cut into whole micro-batches.

        Raises:
            ConfigError: it does not.
        """
        if self._optimizer is not None and len(example.rows) % self._micro_batch_size:
            raise ConfigError(
                f"{len(example.rows)} rows do not cut into micro-batches of {self._micro_batch_size}: "
                "rows per update must be a multiple of micro_batch_size"
            )

    def train_step(self, batch: Batch, learning_rate: float) -> StepMetrics:
        """One update: forward and backward per micro-batch, clip, step.

        The host reads the figures once, at the end: until then a device never waits for it.
        """
        if self._optimizer is None:
            raise ConfigError("this runtime was made to predict: give the job an optimizer")
        self._model.train()
        self._optimizer.zero_grad(set_to_none=True)
        counts = label_counts(batch, self._head)
        shares: List[Tensor] = []
        for flat in self._micro_batches(batch):
            share, parts = self._loss(flat, counts)
            share.backward()
            shares.append(torch.stack([share, *parts.values()]).detach())
        norm = self._clip()
        self._update(learning_rate)
        loss, *means = torch.stack(shares).double().sum(0).tolist()
        parts_by_name = dict(zip(LOSS_PARTS[self._head], means))
        return StepMetrics(loss, parts_by_name, batch.sequences, batch.real_tokens, float(norm))

    def _micro_batches(self, batch: Batch) -> Iterator[FlatBatch]:
        for start in range(0, len(batch.rows), self._micro_batch_size):
            yield flatten(batch.part(start, start + self._micro_batch_size))

    def _loss(self, flat: FlatBatch, counts: Dict[str, int]) -> Tuple[Tensor, Dict[str, Tensor]]:
        """Share of a micro-batch in the loss of the update, and in its parts, in the order of LOSS_PARTS."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16):
            if self._head == "pretraining":
                outputs = self._model(flat.tokens, flat.labels["masked_index"], flat.starts)
            else:
                logits = self._model(flat.tokens)
        if self._head == "pretraining":
            return pretraining_loss(outputs, flat, counts)
        return answer_loss(logits, flat, counts)

    def _clip(self) -> Tensor:
        """Norm of all gradients before clipping, which it does."""
        return torch.tensor(clip_gradients(list(self._model.parameters()), self._max_norm))

    def _update(self, learning_rate: float) -> None:
        assert self._optimizer is not None
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()

    def predict(self, batch: Batch) -> List[AnswerLogits]:
        """Start and end logits of every feature in the batch, dropout off."""
        self._model.eval()
        flat = flatten(batch)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16):
            logits = self._model(flat.tokens).float().numpy()
        starts = split_sequences(np.ascontiguousarray(logits[:, 0]), flat.lengths)
        ends = split_sequences(np.ascontiguousarray(logits[:, 1]), flat.lengths)
        return [AnswerLogits(int(i), start, end) for i, start, end in zip(flat.feature_ids, starts, ends)]

    def state_dict(self) -> Dict[str, Tensor]:
        """Weights by Hugging Face name."""
        return {name: x.detach().clone() for name, x in self._model.state_dict().items()}

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        """Set the weights; every name must be there."""
        self._model.load_state_dict(state)

    def optimizer_state(self) -> Dict[str, Tensor]:
        """Moments and step counts: '<parameter>/exp_avg' and so on."""
        return {} if self._optimizer is None else optimizer_tensors(self._optimizer, self._model)

    def load_optimizer_state(self, state: Dict[str, Tensor]) -> None:
        """Set what optimizer_state gave."""
        if self._optimizer is not None:
            load_optimizer_tensors(self._optimizer, self._model, state)

    def rng_state(self) -> Dict[str, Tensor]:
        """torch's CPU generator: dropout draws from it."""
        return {"torch": torch.get_rng_state()}

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        """Set what rng_state gave."""
        torch.set_rng_state(state["torch"])

    def versions(self) -> Dict[str, str]:
        """None but torch's."""
        return {}

    def close(self) -> None:
        """Nothing to let go of on a CPU."""


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> Set[str]:
    """Instruction sets of the CPU as Linux names them; empty elsewhere."""
    if not cpuinfo.is_file():
        return set()
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def choose_precision(requested: str, runtime: str) -> Choice:
    """fp32 and bf16 as asked; auto takes bf16 where the CPU is fast at it.

    Raises:
        ConfigError: fp16, which CPUs do not compute at speed.
    """
    if requested == "fp16":
        raise ConfigError(f"the {runtime} runtime has no fp16: set device.precision to fp32, bf16 or auto")
    if requested != "auto":
        return Choice(requested, "as asked")
    fast = [flag for flag in FAST_BF16 if flag in cpu_flags()]
    if fast:
        return Choice("bf16", f"auto: this CPU has {' and '.join(fast)}")
    return Choice("fp32", f"auto: this CPU has none of {', '.join(FAST_BF16)}, bf16 would be slower")
