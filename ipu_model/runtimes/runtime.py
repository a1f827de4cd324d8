"""The seam between the loop and a device. One step is one optimizer update on every runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Generator, Iterable, Optional, Protocol, Sequence

from torch import Tensor

from ipu_model.models.head import Logits
from ipu_model.rows.reading import Batch, RowFolder, UpdateRows


@dataclass(frozen=True)
class StepMetrics:
    """What one update says of itself."""

    loss: float
    """Mean over the real labels of the update."""
    parts: Dict[str, float]
    """By part of the loss (Head.parts)."""
    sequences: int
    real_tokens: int
    gradient_norm: Optional[float]
    """Before clipping; None where the device does not tell."""
    loss_scaling: Optional[float] = None
    """Factor on the loss, for fp16 gradients; None where there is none."""


class Runtime(Protocol):
    """One model on one device (or several copies of it that train as one).

    Weights travel under Hugging Face names and in fp32, whatever the device keeps; nothing outside
    shows how the model was cut.
    """

    program: Optional[str]
    """After compile, how a program that is kept came to be (JobResult.program); None where none is."""

    @property
    def reads_ahead(self) -> int:
        """Batches to prepare in another thread while one is computed; 0: each when it is needed."""

    def prepare(self, batch: Batch) -> Batch:
        """What can be done to a batch before its turn, on any thread; train_step and predict take either."""

    def share(self, rows: int) -> slice:
        """Which of the rows of an update this process reads, of so many."""

    def calls(self, rows: RowFolder, order: UpdateRows, steps: range) -> Generator[Any, None, None]:
        """What train_step takes, for the calls that begin with these updates, made ready as far ahead as can be.

        What is yielded holds until the next is asked for. Close it (contextlib.closing) to stop early.

        Args:
            order: Made with `share`.
            steps: First updates, counted from 0, as far apart as a call has updates.

        Raises:
            RowsError: damaged rows, with the file and the row.
        """

    def compile(self, example: Batch, held_out: Optional[Batch] = None) -> None:
        """Make ready for batches of this shape; the weights stay as they are.

        Args:
            held_out: What evaluate will be given, in a job that evaluates.

        Raises:
            ConfigError: the batch does not fit the plan.
        """

    def train_step(self, batch: Any, learning_rate: float) -> StepMetrics:
        """One host call over what `calls` gave, or a Batch: one update, or on IPU `plan.updates_per_call` of them.

        The figures are those of the update, or means over the updates of the call.

        Raises:
            UpdateAborted: the job is to stop, and the update would have taken long; all is as before it.
        """

    def predict(self, batch: Batch) -> Sequence[Logits]:
        """Logits of every feature or sequence in the batch, of the kind that the head gives; dropout off."""

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Head.sums over labelled rows, dropout off; neither weights nor generators change.

        Every process of a training must call it with the same batches, and gets the same sums.
        """

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

    def versions(self) -> Dict[str, str]:
        """Versions of what the device adds to torch; for result.json."""

    def peak_device_memory_mb(self) -> Optional[float]:
        """Peak of the device's own memory, MB of 2**20 bytes; None where it does not tell."""

    def close(self) -> None:
        """Let go of the device."""


class UpdateAborted(Exception):
    """An update was aborted between two micro-batches; weights, moments and generators are as before it."""
