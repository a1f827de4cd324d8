"""Interface between the training loop and a device. One step is one optimizer update on every runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Generator, Iterable, Optional, Protocol, Sequence

from torch import Tensor

from ipu_model.models.head import Logits
from ipu_model.rows.row_folder import Batch, RowFolder, UpdateRows


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of one update."""

    loss: float
    """Mean over the real labels of the update."""
    parts: Dict[str, float]
    """Mean of each part of the loss (Head.parts)."""
    sequences: int
    real_tokens: int
    gradient_norm: Optional[float]
    """Norm before clipping; None if the device does not report it."""
    loss_scaling: Optional[float] = None
    """Factor on the loss for fp16 gradients; None without loss scaling."""


class Runtime(Protocol):
    """A model on one device, or replicas of it that train together.

    Weights are exchanged under Hugging Face names and in fp32, whatever the device stores; callers never see how the
    model is split.
    """

    program: Optional[str] = None
    """Origin of the compiled program, set by compile (JobResult.program); None if there is no program."""

    reads_ahead: int = 0
    """Batches to prepare in another thread while one is computed; 0: prepare each when needed."""

    def prepare(self, batch: Batch) -> Batch:
        """Prepare a batch ahead of its step, on any thread; train_step and predict also accept unprepared batches."""

    def share(self, rows: int) -> slice:
        """Return the rows that this process reads, for an update of `rows` rows."""

    def calls(self, rows: RowFolder, order: UpdateRows, steps: range) -> Generator[Any, None, None]:
        """Yield the inputs of train_step, prepared ahead if possible.

        A yielded value is valid until the next one is requested. Close the generator (contextlib.closing) to stop
        early. `order` is made with `share`; `steps` has the first update of each call, counted from 0, and its step is
        the updates per call.

        Raises:
            RowsError: damaged rows, with the file and the row.
        """

    def compile(self, example: Batch, held_out: Optional[Batch] = None) -> None:
        """Compile for batches of this shape, and of `held_out` for evaluate; the weights do not change.

        Raises:
            ConfigError: the batch does not fit the plan.
        """

    def train_step(self, batch: Any, learning_rate: float) -> StepMetrics:
        """Make one host call on a value of `calls` or a Batch: one update, on IPU `plan.updates_per_call` updates.

        The metrics are those of the update, or means over the updates of the call.

        Raises:
            UpdateAborted: a stop was requested and the update was slow; the state is that before the update.
        """

    def predict(self, batch: Batch) -> Sequence[Logits]:
        """Return the logits of every feature or sequence in the batch, as the head defines them; dropout is off."""

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Return Head.sums over labelled rows with dropout off; neither weights nor generators change.

        Every process of a training must call this with the same batches, and gets the same sums.
        """

    def state_dict(self) -> Dict[str, Tensor]:
        """Return the weights by Hugging Face name, on the host."""

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        """Set the weights."""

    def optimizer_state(self) -> Dict[str, Tensor]:
        """Return moments and step counts by name, on the host."""

    def load_optimizer_state(self, state: Dict[str, Tensor]) -> None:
        """Set a result of optimizer_state."""

    def rng_state(self) -> Dict[str, Tensor]:
        """Return the generator states of the device, by name."""

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        """Set a result of rng_state."""

    def versions(self) -> Dict[str, str]:
        """Return the versions of device software beyond torch, for result.json."""

    def peak_device_memory_mb(self) -> Optional[float]:
        """Return the peak memory of the device in MB of 2**20 bytes; None if it does not report it."""

    def close(self) -> None:
        """Release the device."""


class UpdateAborted(Exception):
    """An update aborted between two micro-batches; weights, moments and generators are those before the update."""
