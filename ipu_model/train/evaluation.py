"""Evaluation on held-out rows during training: evaluations.csv, best weights, and early stopping.

The model computes losses and accuracies without dropout and without gradients. Evaluation draws no random numbers and
changes no weights, so training gives the same weights with and without it. Sums over all labels are in fp64, so they
do not depend on the batch size.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
from torch import Tensor

from ipu_model import heads
from ipu_model.core.errors import NonFiniteWeights
from ipu_model.core.files import write_text
from ipu_model.core.progress import Emit
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import JobPlan
from ipu_model.models.tensors import require_finite
from ipu_model.rows.row_folder import RowFolder
from ipu_model.runtimes.runtime import Runtime
from ipu_model.train.checkpoint import Checkpoint
from ipu_model.train.training import Hook, TrainingState

EVALUATIONS = "evaluations.csv"


class Evaluator(Hook):
    """Evaluator of the model on held-out rows every `every_updates` updates.

    Args:
        job: Its `evaluation` says how often to evaluate and when to stop. Its run folder gets `evaluations.csv`: step
            and Head.figures of every evaluation.
        plan: One forward pass takes a micro-batch of rows.
        rows: Held out from training.
        saved: Checkpoint of an earlier run, with its `state()` and `best`.

    Attributes:
        best: Weights of the best evaluation so far, if they may become the result.
    """

    def __init__(
        self, job: Job, plan: JobPlan, rows: RowFolder, runtime: Runtime, emit: Emit, saved: Optional[Checkpoint] = None
    ) -> None:
        assert job.evaluation is not None
        self._head, self._config, self._rows, self._runtime = heads.get_head(job.head), job.evaluation, rows, runtime
        # IPUs split a batch into calls of fixed size; on CPU and CUDA a batch is one forward pass.
        self._batch_rows = plan.rows_per_update if plan.runtime == "ipu" else plan.micro_batch_size
        self._updates, self._emit = plan.updates, emit
        count = job.evaluation.count_rows(len(rows))
        self._row_numbers = np.arange(count, dtype=np.int64) * len(rows) // count
        state, best = (saved.evaluations, saved.best) if saved is not None else ({}, {})
        self._path = Path(job.run_folder) / EVALUATIONS
        self._lines: List[Dict[str, float]] = list(state.get("lines", []))
        self._best_step = int(state.get("best_step", 0))  # 0: no evaluation yet
        self.best, self._slowest, self._seconds = dict(best), 0.0, 0.0
        self._write()

    def start(self, training: TrainingState) -> None:
        """End the training immediately if an earlier process had reached early stopping."""
        training.ends_early = self.should_stop

    def after_step(self, training: TrainingState) -> None:
        """Evaluate if due, without counting the time as training; end the training if it no longer improves."""
        done, per_call = training.done, training.per_call
        if self.is_due(done, per_call):
            training.exclude_time(self.evaluate(done))
            training.ends_early = self.should_stop
        if self.is_due(done + per_call, per_call):
            training.seconds_needed += self._slowest

    def is_due(self, done: int, per_call: int) -> bool:
        """Return whether to evaluate after update `done`, the last of a call of `per_call` updates."""
        every = self._config.interval(self._updates)
        return done == self._updates or done // every > (done - per_call) // every

    def evaluate(self, done: int) -> float:
        """Evaluate the weights after update `done`; return the seconds it took.

        Raises:
            NonFiniteWeights: the weights or their logits are not finite.
        """
        began = time.perf_counter()
        numbers, size = self._row_numbers, self._batch_rows
        batches = (self._rows.take(numbers[first : first + size]) for first in range(0, len(numbers), size))
        figures = self._head.figures(self._runtime.evaluate(batches))
        if not math.isfinite(figures["loss"]):
            require_finite(self._runtime.state_dict(), done)
            raise NonFiniteWeights(done, ["the logits of the held-out rows"])
        better = not self._best_step or self._score(figures) > self._score(self._figures_at(self._best_step))
        self._lines.append({"step": done, **figures})
        if better:
            self._best_step = done
            if self._config.keep == "best":
                self.best = require_finite(self._runtime.state_dict(), done)
        self._write()
        self._emit("evaluated", after=done, updates=self._updates, best_after=self._best_step, **figures)
        seconds = time.perf_counter() - began
        self._seconds, self._slowest = self._seconds + seconds, max(self._slowest, seconds)
        return seconds

    def _score(self, figures: Mapping[str, float]) -> Tuple[float, float]:
        """Return the value that `keep: best` and `patience` compare (larger is better): Head.best, then the loss."""
        best = self._head.best
        return 0.0 if best is None else figures.get(best, 0.0), -figures["loss"]

    @property
    def should_stop(self) -> bool:
        """True if none of the last `patience` evaluations improved on the best before them."""
        since = sum(line["step"] > self._best_step for line in self._lines)
        return self._config.patience is not None and since >= self._config.patience

    def result(self, done: int) -> Tuple[int, Optional[Dict[str, Tensor]]]:
        """Return the update whose weights are the result, and those weights; None if the runtime holds them."""
        if self._config.keep == "best" and self._best_step not in (0, done):
            return self._best_step, self.best
        return done, None

    def summary(self) -> Optional[Dict[str, Any]]:
        """Return the evaluation for result.json: figures of the resulting weights, and how they were selected."""
        if not self._lines:
            return None
        last = int(self._lines[-1]["step"])
        selected = self._best_step if self._config.keep == "best" else last
        counts = {"rows": len(self._row_numbers), "evaluations": len(self._lines), "best_step": self._best_step}
        seconds = round(self._seconds, 3)  # in this process
        ended = {"stopped_early": last < self._updates, "seconds": seconds}
        figures, best = self._figures_at(selected), self._head.best
        return {**figures, **counts, **ended, "judged_by": best if best in figures else "loss"}

    def state(self) -> Dict[str, Any]:
        """Return the state for a checkpoint, which stores `best` separately."""
        return {"lines": [dict(line) for line in self._lines], "best_step": self._best_step}

    def _figures_at(self, step: int) -> Dict[str, float]:
        return next(line for line in self._lines if line["step"] == step)

    def _write(self) -> None:
        known = self._head.figures(dict.fromkeys(self._head.sums, 1.0))
        names = ("step", *(name for name in known if not self._lines or name in self._lines[0]))
        lines = [
            ",".join([str(int(line["step"])), *(f"{line[name]:.8g}" for name in names[1:])]) for line in self._lines
        ]
        write_text(self._path, "".join(f"{line}\n" for line in (",".join(names), *lines)))
