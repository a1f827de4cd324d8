"""Everything `ipu_model` raises on purpose.

    DeviceJobError
    |-- ConfigError        the job cannot be run as stated: what was found, what is required, which knob
    |-- RowsError          the row folder is damaged, of another schema, or of another tokenizer
    |-- CheckpointError    a checkpoint or model folder cannot be used
    |-- NonFiniteLoss      the loss became NaN or infinite; nothing was saved
    |-- NonFiniteWeights   the weights did, after a finite loss; they were not saved
    |-- InstanceLost       another process of this training ended, or does not answer
    |-- RowWorkerLost      the process that makes rows ready for the IPUs ended
    |-- OutOfMemory        a job that was measured takes more memory than there is
    `-- IpuFailure         PopTorch or the IPUs failed: what happened, which knob, where the full text is

`python -m ipu_model` turns the first three into exit code 2 and the others into exit code 1.
"""

from __future__ import annotations

import math
from typing import List, Optional

from ipu_model.units import shorten


class DeviceJobError(ValueError):
    """Base of the errors a person can act on; the message says how."""


ROWS, LAUNCHER = "rows", "launcher"


class ConfigError(DeviceJobError):
    """The job cannot be run as stated."""

    def __init__(self, message: str, depends_on: str = "") -> None:
        """`depends_on`: ROWS or LAUNCHER, where other rows, or another number of processes, might run it."""
        super().__init__(message)
        self.depends_on = depends_on


class RowsError(DeviceJobError):
    """The rows cannot be read, or do not belong to this job."""


class CheckpointError(DeviceJobError):
    """A checkpoint or a model folder cannot be used."""


ANEW = "changed, it is another training, and begins at its first update."


class NonFiniteLoss(DeviceJobError):
    """The loss, or the gradient norm, is NaN or infinite. Raised before anything is saved."""

    def __init__(
        self,
        step: int,
        loss: float,
        learning_rate: float,
        rows: List[int],
        loss_scaling: Optional[float] = None,
        gradient_norm: Optional[float] = None,
        last_step: Optional[int] = None,
    ) -> None:
        """`last_step`: of a host call of several updates, of which the device tells only the mean."""
        self.step, self.loss, self.learning_rate, self.rows = step, loss, learning_rate, rows
        shown = ", ".join(str(row) for row in rows[:8]) + (", ..." if len(rows) > 8 else "")
        scaling = "" if loss_scaling is None else f", loss scaling {loss_scaling:g}"
        update = f"update {step}" if last_step in (None, step) else f"updates {step} to {last_step}"
        found = f"the loss of {update} is {loss}"
        if gradient_norm is not None and math.isfinite(loss):
            found = f"the gradient norm of {update} is {gradient_norm} (loss {loss:g})"
        lower = "the learning rate" if loss_scaling is None else "the learning rate or loss_scaling"
        super().__init__(
            f"{found} (learning rate {learning_rate:g}{scaling}, rows {shown}). "
            f"Nothing was saved after the update before. Lower {lower}, lengthen the warm-up "
            "(warmup_fraction), set max_grad_norm where the optimizer has it, or use precision fp32; "
            f"then run again: {ANEW}"
        )


class IpuFailure(DeviceJobError):
    """PopTorch, Poplar or the IPUs failed while compiling or running; ipu/failures.py words it."""


class OutOfMemory(DeviceJobError):
    """A job that was measured takes more memory than there is."""


class InstanceLost(DeviceJobError):
    """One of several processes that train together has ended, or does not answer."""

    def __init__(self, found: str) -> None:
        first = found.strip().splitlines()[0] if found.strip() else "no reason given"
        super().__init__(
            f"another process of this training ended or does not answer ({first}). Its own error is in the log, "
            "before this one. Nothing was saved after the last checkpoint; run the job again: it continues from there."
        )


class RowWorkerLost(DeviceJobError):
    """The process that makes rows ready while the IPUs work has ended, without a word of its own."""

    def __init__(self, how: str) -> None:
        super().__init__(
            f"the process that makes rows ready for the IPUs {how}. Nothing was saved after the last checkpoint; run "
            "the job again: it continues from there."
        )


class NonFiniteWeights(DeviceJobError):
    """Weights are NaN or infinite although the loss was not: the update that made them so came after it."""

    def __init__(self, step: int, names: List[str]) -> None:
        super().__init__(
            f"after update {step} there are NaN or infinite values in {shorten(names, 4)}. They were not saved. Lower "
            "the learning rate or loss_scaling, lengthen the warm-up (warmup_fraction), set max_grad_norm, or use "
            f"precision fp32; then run again: {ANEW}"
        )
