"""The training loop, for every runtime."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Generator, Tuple

from ipu_model.ahead import ahead
from ipu_model.checkpoint import Checkpoint, Checkpoints
from ipu_model.data import Batch, RowFolder, UpdateRows
from ipu_model.errors import NonFiniteLoss
from ipu_model.history import History
from ipu_model.plan import Plan
from ipu_model.process import StopRequest, Terminated
from ipu_model.progress import Emit
from ipu_model.runtime import Runtime
from ipu_model.schedule import learning_rate
from ipu_model.tensors import require_finite


@dataclass
class Totals:
    """What this process trained; updates before a resume are not counted."""

    sequences: int = 0
    real_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Pace:
    """How often things happen, in updates; changes no weights."""

    log_every: int
    checkpoint_every: int
    """0: never, unless SIGTERM asks for one."""


def train(
    runtime: Runtime, rows: RowFolder, plan: Plan, seed: int, peak_learning_rate: float, pace: Pace,
    first_step: int, checkpoints: Checkpoints, history: History, emit: Emit, stop: StopRequest,
) -> Totals:  # fmt: skip
    """Run updates first_step .. plan.updates - 1.

    Raises:
        NonFiniteLoss, NonFiniteWeights: before anything of that update is saved.
        Terminated: SIGTERM came; a checkpoint holds everything up to here.
    """
    totals = Totals()
    started, window_tokens, window_started = time.perf_counter(), 0, time.perf_counter()
    per_call = plan.updates_per_call
    with closing(_batches(runtime, rows, plan, seed, first_step)) as batches:
        for step, batch in batches:
            rate = learning_rate(step, plan.updates, plan.warmup_updates, peak_learning_rate)
            metrics = runtime.train_step(batch, rate)
            done, now = step + per_call, time.perf_counter()
            if not math.isfinite(metrics.loss) or not math.isfinite(metrics.gradient_norm or 0.0):
                raise NonFiniteLoss(step + 1, metrics.loss, rate, batch.rows.tolist(), metrics.loss_scaling,
                                    metrics.gradient_norm, done)  # fmt: skip
            totals.sequences += metrics.sequences
            totals.real_tokens += metrics.real_tokens
            window_tokens += metrics.real_tokens
            totals.seconds = now - started
            history.add(metrics.loss, metrics.parts)
            if _due(done, per_call, pace.log_every) or done == plan.updates:
                means = history.close_window(done, rate)
                eta = totals.seconds / (done - first_step) * (plan.updates - done)
                emit("step", step=done, steps=plan.updates, learning_rate=rate, eta_seconds=round(eta, 1),
                     real_tokens_per_second=round(window_tokens / (now - window_started), 1), **means)  # fmt: skip
                window_tokens, window_started = 0, now
            stopping = stop.decide()
            if stopping or _due(done, per_call, pace.checkpoint_every):
                _save(runtime, checkpoints, done, history, emit)
            if stopping:
                raise Terminated
    return totals


def _batches(
    runtime: Runtime, rows: RowFolder, plan: Plan, seed: int, first_step: int
) -> Generator[Tuple[int, Batch], None, None]:
    """Every call of the device: its first update, counted from 0, and its rows, made ready as far as can be."""
    order, per_call = UpdateRows(len(rows), plan.rows_per_update, seed), plan.updates_per_call
    steps = range(first_step, plan.updates, per_call)

    def read(step: int) -> Batch:
        return runtime.prepare(rows.take(order(step, per_call)))

    with closing(ahead(read, steps, runtime.reads_ahead)) as made:
        yield from zip(steps, made)


def _save(runtime: Runtime, checkpoints: Checkpoints, done: int, history: History, emit: Emit) -> None:
    weights = require_finite(runtime.state_dict(), done)
    path = checkpoints.save(Checkpoint(done, weights, runtime.optimizer_state(), runtime.rng_state(), history.state()))
    emit("saved", path=str(path))


def _due(done: int, per_call: int, every: int) -> bool:
    """Whether the call that ended with update `done` reached a multiple of `every`; never for 0."""
    return bool(every) and done // every > (done - per_call) // every
