"""The seam between the loop and a device. One step is one optimizer update on every runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Protocol

import numpy as np
from torch import Tensor, nn

from ipu_model.data import Batch
from ipu_model.errors import ConfigError
from ipu_model.job import Job, OptimizerConfig
from ipu_model.plan import Choice, Plan


@dataclass(frozen=True)
class StepMetrics:
    """What one update says of itself."""

    loss: float
    """Mean over the real labels of the update."""
    parts: Dict[str, float]
    """mlm_loss and nsp_loss, or start_loss and end_loss."""
    sequences: int
    real_tokens: int
    gradient_norm: Optional[float]
    """Before clipping; None where the device does not tell."""


@dataclass(frozen=True)
class AnswerLogits:
    """Logits of one feature, over its own tokens: [n_tokens] fp32 each."""

    feature_id: int
    start: np.ndarray
    end: np.ndarray


class Runtime(Protocol):
    """One model on one device (or several copies of it that train as one).

    Weights travel under Hugging Face names and in fp32, whatever the device keeps; nothing outside
    shows how the model was cut.
    """

    def compile(self, example: Batch) -> None:
        """Make ready for batches of this shape; the weights stay as they are.

        Raises:
            ConfigError: the batch does not fit the plan.
        """

    def train_step(self, batch: Batch, learning_rate: float) -> StepMetrics:
        """One optimizer update over all rows of the batch."""

    def predict(self, batch: Batch) -> List[AnswerLogits]:
        """Logits of every feature in the batch, dropout off."""

    def state_dict(self) -> Dict[str, Tensor]:
        """Weights by Hugging Face name, on the host."""

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        """Set the weights."""

    def optimizer_state(self) -> Dict[str, Tensor]:
        """Moments and step counts by name, on the host."""

    def load_optimizer_state(self, state: Dict[str, Tensor]) -> None:
        """Set what optimizer_state gave."""

    def rng_state(self) -> Dict[str, Tensor]:
        """Generators of the device, by name."""

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        """Set what rng_state gave."""

    def close(self) -> None:
        """Let go of the device."""


def choose_runtime(requested: str) -> Choice:
    """The runtime of a job and why.

    Raises:
        ConfigError: a runtime that this version does not have.
    """
    if requested in ("cuda", "ipu"):
        raise ConfigError(f"runtime {requested} comes with a later version: set device.runtime to cpu")
    if requested == "auto":
        return Choice("cpu", "auto: cpu is the only runtime of this version")
    return Choice(requested, "as asked")


def choose_precision(requested: str, runtime: str) -> Choice:
    """The precision of a job and why.

    Raises:
        ConfigError: a precision that the runtime does not compute.
    """
    from ipu_model.runtime import torch_device

    return torch_device.choose_precision(requested, runtime)


def make_runtime(plan: Plan, job: Job, model: nn.Module) -> Runtime:
    """Put a model with its weights on the device that the plan names.

    Args:
        job: Head, optimizer (None for predict) and seed.
        model: From modeling.build_model, initialised or loaded.
    """
    from ipu_model.runtime.torch_device import TorchRuntime

    optimizer: Optional[OptimizerConfig] = job.optimizer if job.kind != "predict" else None
    return TorchRuntime(model, job.head, plan.micro_batch_size, plan.precision, optimizer, job.seed)
