"""Errors that `ipu_model` raises on purpose.

`python -m ipu_model` turns ConfigError, RowsError and CheckpointError into exit code 2 and the others into 1.
"""

from __future__ import annotations

import math
from typing import List, Optional

from ipu_model.core.units import shorten


class DeviceJobError(ValueError):
    """Base of the errors that you can fix; the message says how."""


ROWS, VOCABULARY, LAUNCHER = "rows", "vocabulary", "launcher"


class ConfigError(DeviceJobError):
    """An invalid job."""

    def __init__(self, message: str, depends_on: str = "") -> None:
        """`depends_on`: ROWS, VOCABULARY or LAUNCHER, if the job could run with other rows, another vocabulary or
        another number of processes."""
        super().__init__(message)
        self.depends_on = depends_on


class RowsError(DeviceJobError):
    """Rows that cannot be read or do not match the job."""


class CheckpointError(DeviceJobError):
    """An unusable checkpoint or model folder."""


RESTART_HINT = "a changed job starts from its first update."


class NonFiniteLoss(DeviceJobError):
    """A loss or gradient norm that is NaN or infinite; raised before anything is saved."""

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
        """`last_step`: the last update of a host call, if the device reports only the mean of several updates."""
        self.step, self.loss, self.learning_rate, self.rows = step, loss, learning_rate, rows
        numbers = ", ".join(str(row) for row in rows[:8]) + (", ..." if len(rows) > 8 else "")
        scaling = "" if loss_scaling is None else f", loss scaling {loss_scaling:g}"
        update = f"update {step}" if last_step in (None, step) else f"updates {step} to {last_step}"
        problem = f"the loss of {update} is {loss}"
        if gradient_norm is not None and math.isfinite(loss):
            problem = f"the gradient norm of {update} is {gradient_norm} (loss {loss:g})"
        lower = "the learning rate" if loss_scaling is None else "the learning rate or loss_scaling"
        super().__init__(
            f"{problem} (learning rate {learning_rate:g}{scaling}, rows {numbers}). "
            f"Nothing was saved after the previous update. Lower {lower}, lengthen the warm-up "
            "(warmup_fraction), set max_grad_norm if the optimizer supports it, or use precision fp32; "
            f"then run the job again: {RESTART_HINT}"
        )


class IpuFailure(DeviceJobError):
    """A failure of PopTorch, Poplar or the IPUs during compilation or execution; ipu/failures.py writes the message."""


class LoadFailure(IpuFailure):
    """A program that was compiled, or found in the cache, and that the attached IPUs do not load."""

    def __init__(self, message: str, reason: str) -> None:
        """`reason`: PopTorch's own text."""
        super().__init__(message)
        self.reason = reason


class OutOfMemory(DeviceJobError):
    """A measured job that needs more memory than is available."""


class InstanceLost(DeviceJobError):
    """Another process of this training that has ended or does not answer."""

    def __init__(self, cause: str) -> None:
        first = cause.strip().splitlines()[0] if cause.strip() else "unknown reason"
        super().__init__(
            f"another process of this training ended or does not answer ({first}). Its own error is in the log, "
            "before this one. Nothing was saved after the last checkpoint; run the job again to continue from it."
        )


class RowWorkerLost(DeviceJobError):
    """A row worker (it prepares rows while the IPUs compute) that ended without an error of its own."""

    def __init__(self, how: str) -> None:
        super().__init__(
            f"the process that prepares rows for the IPUs {how}. Nothing was saved after the last checkpoint; run the "
            "job again to continue from it."
        )


class NonFiniteWeights(DeviceJobError):
    """Weights that are NaN or infinite after a finite loss: the loss is computed before the update that broke them."""

    def __init__(self, step: int, names: List[str]) -> None:
        super().__init__(
            f"after update {step} there are NaN or infinite values in {shorten(names, 4)}. They were not saved. Lower "
            "the learning rate or loss_scaling, lengthen the warm-up (warmup_fraction), set max_grad_norm, or use "
            f"precision fp32; then run the job again: {RESTART_HINT}"
        )
