"""Evaluations while a model trains: their curve, the best weights so far, and when to stop.

Losses and accuracies on rows that the model was not trained on, without dropout, without gradients. Nothing here draws
random numbers or changes a weight, so that a training with evaluations ends as one without. Sums are made in fp64 over
all labels, so that it does not matter how the rows are cut into batches.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
from torch import Tensor

from ipu_model import heads
from ipu_model.errors import NonFiniteWeights
from ipu_model.files import write_text
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Plan
from ipu_model.models.tensors import require_finite
from ipu_model.progress import Emit
from ipu_model.rows.reading import Batch, RowFolder
from ipu_model.runtimes.runtime import Runtime
from ipu_model.train.checkpoint import Checkpoint
from ipu_model.train.training import Hook, Training

EVALUATIONS = "evaluations.csv"


class Evaluations(Hook):
    """Looks at the model on held-out rows every so many updates.

    Args:
        job: With an evaluation: how often, and what follows; its run folder gets `evaluations.csv`, step and
            Head.figures of every evaluation.
        plan: A micro-batch of rows is one forward pass.
        rows: Held out from training.
        saved: With `state()` and `best` of an earlier run.

    Attributes:
        best: Weights of the best evaluation so far, where they may be the result.
    """

    def __init__(
        self, job: Job, plan: Plan, rows: RowFolder, runtime: Runtime, emit: Emit, saved: Optional[Checkpoint] = None
    ) -> None:
        assert job.evaluation is not None
        self._head, self._config, self._rows, self._runtime = heads.of(job.head), job.evaluation, rows, runtime
        # A device that programs are compiled for cuts what it is given into calls; on others a batch is one pass.
        self._batch_rows = plan.rows_per_update if plan.device else plan.micro_batch_size
        self._updates, self._emit = plan.updates, emit
        state, best = (saved.evaluations, saved.best) if saved is not None else ({}, {})
        self._path = Path(job.run_folder) / EVALUATIONS
        self._lines: List[Dict[str, float]] = list(state.get("lines", []))
        self._best_step = int(state.get("best_step", 0))  # 0: nothing was evaluated yet
        self.best, self._slowest, self._seconds = dict(best), 0.0, 0.0
        self._write()

    def start(self, training: Training) -> None:
        """End the training at once where an earlier process found that it was to stop."""
        training.ends_early = self.stops

    def after_step(self, training: Training) -> None:
        """Evaluate where it is due, which is no training time; end the training where it gets no better.

        Raises:
            NonFiniteWeights: the weights, or what they compute, are not finite.
        """
        done, per_call = training.done, training.per_call
        if self.is_due(done, per_call):
            training.leave_out(self.evaluate(done))
            training.ends_early = self.stops
        if self.is_due(done + per_call, per_call):
            training.seconds_needed += self._slowest

    def is_due(self, done: int, per_call: int) -> bool:
        """Whether the model is to be looked at after update `done`, the last of a call of `per_call` updates."""
        every = self._config.every_updates
        return done == self._updates or done // every > (done - per_call) // every

    def evaluate(self, done: int) -> float:
        """Evaluate the weights after update `done`; the seconds it took.

        Raises:
            NonFiniteWeights: the weights, or what they compute, are not finite.
        """
        began = time.perf_counter()
        found = self._head.figures(self._runtime.evaluate(self._batches()))
        if not math.isfinite(found["loss"]):
            require_finite(self._runtime.state_dict(), done)
            raise NonFiniteWeights(done, ["the logits of the held-out rows"])
        better = not self._best_step or self._goodness(found) > self._goodness(self._of_step(self._best_step))
        self._lines.append({"step": done, **found})
        if better:
            self._best_step = done
            if self._config.keep == "best":
                self.best = require_finite(self._runtime.state_dict(), done)
        self._write()
        self._emit("evaluated", after=done, updates=self._updates, best_after=self._best_step, **found)
        seconds = time.perf_counter() - began
        self._seconds, self._slowest = self._seconds + seconds, max(self._slowest, seconds)
        return seconds

    def _goodness(self, found: Mapping[str, float]) -> Tuple[float, float]:
        """What `keep: best` and `patience` compare, larger is better: the figure that the head names, then the loss."""
        best = self._head.best
        return 0.0 if best is None else found.get(best, 0.0), -found["loss"]

    @property
    def stops(self) -> bool:
        """Whether the last `patience` evaluations were all no better than the best before them."""
        since = sum(line["step"] > self._best_step for line in self._lines)
        return self._config.patience is not None and since >= self._config.patience

    def result(self, done: int) -> Tuple[int, Optional[Dict[str, Tensor]]]:
        """Update whose weights are the result, and the weights where they are not the runtime's own."""
        if self._config.keep == "best" and self._best_step not in (0, done):
            return self._best_step, self.best
        return done, None

    def summary(self) -> Optional[Dict[str, Any]]:
        """For result.json: figures of the weights that are the result, and how they came to be chosen."""
        if not self._lines:
            return None
        last = int(self._lines[-1]["step"])
        kept = self._best_step if self._config.keep == "best" else last
        counts = {"rows": len(self._chosen()), "evaluations": len(self._lines), "best_step": self._best_step}
        seconds = round(self._seconds, 3)  # in this process
        ended = {"stopped_early": last < self._updates, "seconds": seconds, "judged_by": self._head.best or "loss"}
        return {**self._of_step(kept), **counts, **ended}

    def state(self) -> Dict[str, Any]:
        """For a checkpoint; `best` goes beside it."""
        return {"lines": [dict(line) for line in self._lines], "best_step": self._best_step}

    def _of_step(self, step: int) -> Dict[str, float]:
        return next(line for line in self._lines if line["step"] == step)

    def _chosen(self) -> np.ndarray:
        count = self._config.rows_of(len(self._rows))
        return np.arange(count, dtype=np.int64) * len(self._rows) // count

    def _batches(self) -> Iterator[Batch]:
        chosen = self._chosen()
        for first in range(0, len(chosen), self._batch_rows):
            yield self._rows.take(chosen[first : first + self._batch_rows])

    def _write(self) -> None:
        known = self._head.figures(dict.fromkeys(self._head.sums, 1.0))
        names = ("step", *(name for name in known if not self._lines or name in self._lines[0]))
        lines = [
            ",".join([str(int(line["step"])), *(f"{line[name]:.8g}" for name in names[1:])]) for line in self._lines
        ]
        write_text(self._path, "".join(f"{line}\n" for line in (",".join(names), *lines)))
