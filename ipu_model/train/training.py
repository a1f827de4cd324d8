"""Training loop of every runtime (batch, step, hooks), and the learning rate schedule."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from ipu_model.core.errors import ConfigError, NonFiniteLoss
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import JobPlan
from ipu_model.rows.row_folder import NO_ROW, RowFolder, UpdateRows
from ipu_model.runtimes.runtime import Runtime, StepMetrics, UpdateAborted


@dataclass
class Totals:
    """Totals of this process; updates before a resume and the time of evaluations are excluded."""

    sequences: int = 0
    real_tokens: int = 0
    seconds: float = 0.0
    updates: int = 0
    """Updates that the current weights have had, including those before a resume."""


class TrainingState:
    """State of the training loop, which hooks read.

    Attributes:
        updates, per_call, first: Updates of the whole run, per device call, and made before this process.
        metrics, learning_rate: Of the last call.
        seconds_needed: Time until hooks can stop the training again: one more call, and the work of the hooks after it.
            The loop sets it after each call, and hooks add to it.
        ends_early: Set by a hook to stop after the updates so far.
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
        """True once the last update has been made."""
        return self.ends_early or self.done == self.updates

    def step(self, batch: Any, learning_rate: float) -> None:
        """Make one device call and add it to the totals; raises as Runtime.train_step."""
        began = time.perf_counter()
        self.metrics, self.learning_rate = self.runtime.train_step(batch, learning_rate), learning_rate
        now, totals = time.perf_counter(), self.totals
        totals.sequences += self.metrics.sequences
        totals.real_tokens += self.metrics.real_tokens
        totals.seconds, totals.updates = now - self._started, self.done + self.per_call
        self.seconds_needed = now - began

    def exclude_time(self, seconds: float) -> None:
        """Exclude time that was not spent on training."""
        self._started += seconds

    def has_reached(self, every: int) -> bool:
        """Return whether the last call reached a multiple of `every` updates; False for 0."""
        return bool(every) and self.done // every > (self.done - self.per_call) // every


class Hook:
    """Callbacks of the training loop. A subclass overrides those it needs; hooks run in the order of their list."""

    def start(self, training: TrainingState) -> None:
        """Run before the first update of this process."""

    def after_step(self, training: TrainingState) -> None:
        """Run after every device call with a finite loss."""

    def after_aborted_step(self, training: TrainingState) -> None:
        """Run after an update that was aborted by a stop request: end the training."""

    def finish(self) -> None:
        """Run after the last update."""


def train(
    job: Job, plan: JobPlan, rows: RowFolder, runtime: Runtime, hooks: Sequence[Hook], first_step: int = 0
) -> Totals:
    """Run the updates from `first_step` to plan.updates, or until a hook ends the training early.

    Raises:
        NonFiniteLoss, NonFiniteWeights: before anything of that update is saved.
        OSError: a checkpoint cannot be written.
        Terminated: SIGTERM came, or PODIUM_STOP_AT is near; all updates so far are in a checkpoint.
    """
    assert job.optimizer is not None  # job.py requires it
    training = TrainingState(runtime, plan.updates, plan.updates_per_call, first_step)
    for hook in hooks:
        hook.start(training)
    steps = range(first_step, first_step if training.ends_early else plan.updates, plan.updates_per_call)
    order = make_update_rows(job, plan, rows, runtime)
    with closing(runtime.calls(rows, order, steps)) as batches:
        for step, batch in zip(steps, batches):
            peak, decay = job.optimizer.learning_rate, plan.decay_updates
            rate = learning_rate(step, plan.updates, plan.warmup_updates, peak, plan.schedule, decay)
            try:
                training.step(batch, rate)
            except UpdateAborted:
                for hook in hooks:
                    hook.after_aborted_step(training)
                raise
            metrics, done = training.metrics, training.done
            if not (math.isfinite(metrics.loss) and math.isfinite(metrics.gradient_norm or 0.0)):
                rows_of_call = order.all_rows(step, done - step).tolist()
                numbers = [row for row in rows_of_call if row != NO_ROW]
                scaling, norm = metrics.loss_scaling, metrics.gradient_norm
                raise NonFiniteLoss(step + 1, metrics.loss, rate, numbers, scaling, norm, done)
            for hook in hooks:
                hook.after_step(training)
            if training.ends_early:
                break
    for hook in hooks:
        hook.finish()
    return training.totals


def make_update_rows(job: Job, plan: JobPlan, rows: RowFolder, runtime: Runtime) -> UpdateRows:
    """Return the rows of every update that this process reads."""
    share = runtime.share(plan.rows_per_update)
    return UpdateRows(len(rows), plan.rows_per_update, job.seed, share, plan.total_rows, plan.batch_sizes)


def learning_rate(
    step: int, steps: int, warmup_steps: int, peak: float, shape: str = "linear", decay_steps: Optional[int] = None
) -> float:
    """Return the learning rate of an update, counted from 0: linear warm-up to `peak`, then decay.

    Update 0 gets peak / warmup_steps, update warmup_steps - 1 the peak. No update has rate 0: the decay would reach it
    one update after the last.

    Args:
        steps: Updates of the whole run.
        shape: Of the decay, one of schedules.SCHEDULES. linear: to zero, as in BERT (arXiv 1810.04805, appendix A.2).
            cosine: half a period to zero (transformers.get_cosine_schedule_with_warmup). square_root: the root of the
            remaining share of all updates, including the warm-up, so that it starts below the peak
            (PolyWarmUpScheduler of NVIDIA/DeepLearningExamples:PyTorch/LanguageModeling/BERT/schedulers.py, degree
            0.5). constant: none. trapezoid: constant, then linear to zero. 1-sqrt: constant, then 1 minus the root of
            the share of the decay that is over (arXiv 2405.18392, section 3).
        decay_steps: Updates of the decay at the end of the last two shapes; None for the others.

    Raises:
        ConfigError: the warm-up is longer than the run, or the step is outside it.
    """
    if not 0 <= warmup_steps <= steps:
        raise ConfigError(f"warm-up of {warmup_steps} updates does not fit {steps} updates: lower warmup_fraction")
    if not 0 <= step < steps:
        raise ConfigError(f"update {step} is outside a run of {steps} updates")
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if shape == "constant":
        return peak
    if decay_steps is not None:
        left = min(1.0, (steps - step) / decay_steps) if decay_steps else 1.0
        return peak * (left if shape == "trapezoid" else 1.0 - math.sqrt(1.0 - left))
    if shape == "square_root":
        return peak * math.sqrt((steps - step) / steps)
    if shape == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * (step - warmup_steps) / (steps - warmup_steps)))
    return peak * (steps - step) / (steps - warmup_steps)
