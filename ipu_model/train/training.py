"""The training loop, for every runtime, and the learning rate of its updates."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Optional

from ipu_model.distributed.process import StopRequest, memory_now
from ipu_model.errors import ConfigError, NonFiniteLoss
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Plan
from ipu_model.progress import Emit
from ipu_model.rows.reading import NO_ROW, RowFolder, UpdateRows
from ipu_model.runtimes.runtime import Runtime, StepMetrics, UpdateGivenUp
from ipu_model.train.history import History
from ipu_model.train.saving import CheckpointWriter


@dataclass
class Totals:
    """What this process trained; updates before a resume are not counted, nor is the time of evaluations."""

    sequences: int = 0
    real_tokens: int = 0
    seconds: float = 0.0
    updates: int = 0
    """Behind the weights of the runtime, those before a resume included."""


def train(
    job: Job, plan: Plan, rows: RowFolder, runtime: Runtime, keep: CheckpointWriter, emit: Emit, stop: StopRequest
) -> Totals:
    """Run the updates from the one after `keep.done` to plan.updates, or until the evaluations stop it.

    Raises:
        NonFiniteLoss, NonFiniteWeights: before anything of that update is saved.
        OSError: a checkpoint cannot be written.
        Terminated: SIGTERM came, or the time of this host ends; a checkpoint holds everything up to here.
    """
    assert job.optimizer is not None  # job.py requires it
    meter, evaluations = Meter(plan.updates, keep.done, keep.history, emit), keep.evaluations
    keep.begin()
    per_call, last = plan.updates_per_call, keep.done if evaluations.stops else plan.updates
    steps, order = range(keep.done, last, per_call), update_rows(job, plan, rows, runtime)
    with closing(runtime.calls(rows, order, steps)) as calls:
        for step, batch in zip(steps, calls):
            rate = learning_rate(step, plan.updates, plan.warmup_updates, job.optimizer.learning_rate, plan.schedule)
            began = time.perf_counter()
            try:
                metrics = runtime.train_step(batch, rate)
            except UpdateGivenUp:
                keep.stop_here(step, plan.updates, stop)
            done = step + per_call
            if not math.isfinite(metrics.loss) or not math.isfinite(metrics.gradient_norm or 0.0):
                found = (metrics.loss, rate, [row for row in order.of_all(step, per_call).tolist() if row != NO_ROW])
                raise NonFiniteLoss(step + 1, *found, metrics.loss_scaling, metrics.gradient_norm, done)
            needed = meter.count(metrics, done) - began
            if evaluations.is_due(done, per_call):
                meter.leave_out(evaluations.look(done))
            if _due(done, per_call, job.log_every_updates) or done == plan.updates or evaluations.stops:
                meter.tell(done, rate, runtime.peak_device_memory_mb())
            needed += evaluations.slowest if evaluations.is_due(done + per_call, per_call) else 0.0
            keep.look()
            stopping, saving = stop.decide(needed + keep.save_seconds, keep.is_due)
            if stopping:
                keep.stop_here(done, plan.updates, stop)
            if saving or _due(done, per_call, job.checkpoint_every_updates):
                keep.save(done)
            if evaluations.stops:
                break
    keep.finish()
    return meter.totals


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


class Meter:
    """Counts what is trained, and tells of it window by window.

    Args:
        updates: Of the whole run.
        first: Updates made before this process.
    """

    def __init__(self, updates: int, first: int, history: History, emit: Emit) -> None:
        self.totals = Totals(updates=first)
        self._updates, self._first, self._history, self._emit = updates, first, history, emit
        self._started = self._window_started = self._now = time.perf_counter()
        self._window_tokens = 0

    def count(self, metrics: StepMetrics, done: int) -> float:
        """Enter the call that ended with update `done`; when that was, on time.perf_counter's clock."""
        self._now, totals = time.perf_counter(), self.totals
        totals.sequences += metrics.sequences
        totals.real_tokens += metrics.real_tokens
        totals.seconds, totals.updates = self._now - self._started, done
        self._window_tokens += metrics.real_tokens
        self._history.add(metrics.loss, metrics.parts)
        return self._now

    def leave_out(self, seconds: float) -> None:
        """Time that was no training."""
        self._started += seconds
        self._window_started += seconds
        self._now += seconds

    def tell(self, done: int, rate: float, on_device: Optional[float] = None) -> None:
        """Close the window that ended with update `done` and its learning rate; `on_device`: MB, its peak so far."""
        means = self._history.close_window(done, rate)
        eta = self.totals.seconds / (done - self._first) * (self._updates - done)
        speed = self._window_tokens / (self._now - self._window_started)
        speeds = {"eta_seconds": round(eta, 1), "real_tokens_per_second": round(speed, 1)}
        memory = {**memory_now(), **({} if on_device is None else {"device_memory_mb": round(on_device, 1)})}
        self._emit("step", step=done, steps=self._updates, learning_rate=rate, **speeds, **memory, **means)
        self._window_tokens, self._window_started = 0, self._now


def _due(done: int, per_call: int, every: int) -> bool:
    """Whether the call that ended with update `done` reached a multiple of `every`; never for 0."""
    return bool(every) and done // every > (done - per_call) // every
