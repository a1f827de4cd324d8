"""The training loop, for every runtime: next batch, step, then the hooks; and the learning rate of its updates."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Sequence

from ipu_model.errors import ConfigError, NonFiniteLoss
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Plan
from ipu_model.rows.reading import NO_ROW, RowFolder, UpdateRows
from ipu_model.runtimes.runtime import Runtime, StepMetrics, UpdateAborted


@dataclass
class Totals:
    """What this process trained; updates before a resume are not counted, nor is the time of evaluations."""

    sequences: int = 0
    real_tokens: int = 0
    seconds: float = 0.0
    updates: int = 0
    """Behind the weights of the runtime, those before a resume included."""


class Training:
    """Where a training is: the loop writes it, the hooks read it.

    Args:
        runtime: The model on its device.
        updates: Of the whole run.
        per_call: Updates of one call of the device.
        first: Updates made before this process.

    Attributes:
        done: Updates behind the weights.
        learning_rate: Of the last call.
        metrics: What the last call said of itself.
        seconds_needed: For one more call, and what hooks are to do before they may stop the training again. The loop
            sets it after each call, hooks add to it.
        ends_early: Set by a hook: the updates so far are all that are made.
    """

    metrics: StepMetrics
    learning_rate: float

    def __init__(self, runtime: Runtime, updates: int, per_call: int = 1, first: int = 0) -> None:
        self.runtime, self.updates, self.per_call, self.first = runtime, updates, per_call, first
        self.totals, self.seconds_needed, self.ends_early = Totals(updates=first), 0.0, False
        self._started = time.perf_counter()

    @property
    def done(self) -> int:
        return self.totals.updates

    @property
    def is_over(self) -> bool:
        """Whether the last update has been made."""
        return self.ends_early or self.done == self.updates

    def step(self, batch: Any, learning_rate: float) -> None:
        """Make one call of the device and count it.

        Raises:
            UpdateAborted: the job is to stop, and the update would have taken long; all is as before it.
        """
        began = time.perf_counter()
        self.metrics, self.learning_rate = self.runtime.train_step(batch, learning_rate), learning_rate
        now, totals = time.perf_counter(), self.totals
        totals.sequences += self.metrics.sequences
        totals.real_tokens += self.metrics.real_tokens
        totals.seconds, totals.updates = now - self._started, self.done + self.per_call
        self.seconds_needed = now - began

    def leave_out(self, seconds: float) -> None:
        """Do not count time that was no training."""
        self._started += seconds

    def reached(self, every: int) -> bool:
        """Whether the last call reached a multiple of `every` updates; never for 0."""
        return bool(every) and self.done // every > (self.done - self.per_call) // every


class Hook:
    """What a training does beside its updates. A hook overrides what it needs; hooks run in the order of their list."""

    def start(self, training: Training) -> None:
        """Run before the first update of this process."""

    def after_step(self, training: Training) -> None:
        """Run after every call of the device, whose loss is finite."""

    def after_aborted_step(self, training: Training) -> None:
        """Run where an update was aborted because the job is to stop: end the training."""

    def finish(self) -> None:
        """Run after the last update."""


def train(
    job: Job, plan: Plan, rows: RowFolder, runtime: Runtime, hooks: Sequence[Hook], first_step: int = 0
) -> Totals:
    """Run the updates after the first `first_step` to plan.updates, or until a hook ends the training early.

    Raises:
        NonFiniteLoss, NonFiniteWeights: before anything of that update is saved.
        OSError: a checkpoint cannot be written.
        Terminated: SIGTERM came, or the time of this host ends; a checkpoint holds everything up to here.
    """
    assert job.optimizer is not None  # job.py requires it
    training = Training(runtime, plan.updates, plan.updates_per_call, first_step)
    for hook in hooks:
        hook.start(training)
    steps = range(first_step, first_step if training.ends_early else plan.updates, plan.updates_per_call)
    order = update_rows(job, plan, rows, runtime)
    with closing(runtime.calls(rows, order, steps)) as batches:
        for step, batch in zip(steps, batches):
            rate = learning_rate(step, plan.updates, plan.warmup_updates, job.optimizer.learning_rate, plan.schedule)
            try:
                training.step(batch, rate)
            except UpdateAborted:
                for hook in hooks:
                    hook.after_aborted_step(training)
                raise
            _require_finite(training, order)
            for hook in hooks:
                hook.after_step(training)
            if training.ends_early:
                break
    for hook in hooks:
        hook.finish()
    return training.totals


def _require_finite(training: Training, order: UpdateRows) -> None:
    """Raises: NonFiniteLoss, if the loss or the gradient norm of the last call is NaN or infinite."""
    metrics, done, per_call = training.metrics, training.done, training.per_call
    if math.isfinite(metrics.loss) and math.isfinite(metrics.gradient_norm or 0.0):
        return
    rows = [row for row in order.of_all(done - per_call, per_call).tolist() if row != NO_ROW]
    raise NonFiniteLoss(
        done - per_call + 1,
        metrics.loss,
        training.learning_rate,
        rows,
        metrics.loss_scaling,
        metrics.gradient_norm,
        done,
    )


def update_rows(job: Job, plan: Plan, rows: RowFolder, runtime: Runtime) -> UpdateRows:
    """The rows of every update that this process reads."""
    share = runtime.share(plan.rows_per_update)
    return UpdateRows(len(rows), plan.rows_per_update, job.seed, share, plan.total_rows)


def learning_rate(step: int, steps: int, warmup_steps: int, peak: float, shape: str = "linear") -> float:
    """Linear warm-up, then decay.

    Args:
        step: The update, counted from 0.
        steps: Updates of the whole run.
        warmup_steps: Updates with rising rate: update 0 gets peak / warmup_steps, update
            warmup_steps - 1 gets the peak.
        peak: The highest rate.
        shape: Of the decay, one of job.SCHEDULES. linear: to zero, as in BERT (arXiv 1810.04805, appendix A.2).
            cosine: half a period to zero (transformers.get_cosine_schedule_with_warmup). square_root: the root of the
            share of all updates that is left, warm-up counted, so that it begins under the peak (PolyWarmUpScheduler
            of NVIDIA/DeepLearningExamples:PyTorch/LanguageModeling/BERT/schedulers.py, degree 0.5). constant: none.

    Returns:
        The rate of this update. None is wasted on rate 0: the update after the last would have it.

    Raises:
        ConfigError: the warm-up is longer than the run, or the step lies outside it.
    """
    if not 0 <= warmup_steps <= steps:
        raise ConfigError(f"warm-up of {warmup_steps} updates does not fit {steps} updates: lower warmup_fraction")
    if not 0 <= step < steps:
        raise ConfigError(f"update {step} lies outside a run of {steps} updates")
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if shape == "constant":
        return peak
    if shape == "square_root":
        return peak * math.sqrt((steps - step) / steps)
    if shape == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * (step - warmup_steps) / (steps - warmup_steps)))
    return peak * (steps - step) / (steps - warmup_steps)
