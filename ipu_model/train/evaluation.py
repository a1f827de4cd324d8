"""Evaluation on held-out rows during training: evaluations.csv, best weights, and early stopping.

The model computes losses and accuracies without dropout and without gradients. Evaluation draws no random numbers and
changes no weights, so training gives the same weights with and without it. Sums over all labels are in fp64, so they
do not depend on the batch size.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Tuple

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
GROUPS = 256
"""Largest number of groups of documents, or of held-out rows, whose losses before and after a training are compared in
pairs."""
COMPARED, LABELS = "mlm_loss", "mlm_labels"
"""Sums (Head.sums) of the loss that is compared, and of its labels."""


@dataclass(frozen=True)
class Original:
    """Model that a pre-training continues."""

    new_head: bool
    """True if it has no masked language modelling head, so that its loss is that of random weights."""
    state: Optional[Dict[str, Tensor]] = None
    """Its weights; None: the training starts from them."""
    rotation: Callable[[], ContextManager[None]] = contextlib.nullcontext
    """Context in which the model of the job rotates positions as the original."""


class Evaluator(Hook):
    """Evaluator of the model on held-out rows every `every_updates` updates.

    Args:
        job: Its `evaluation` says how often to evaluate and when to stop. Its run folder gets `evaluations.csv`: step
            and Head.figures of every evaluation.
        plan: One forward pass takes a micro-batch of rows.
        rows: Held out from training.
        saved: Checkpoint of an earlier run, with its `state()` and `best`.
        original: Model to compare with, evaluated before the first update and in groups of documents; so are the
            weights of the last update. Groups are of rows if their documents are unknown, and on IPUs, which would
            compute a row again for each of its documents. A pair of sentences counts for the document of its first.

    Attributes:
        best: Weights of the best evaluation so far, if they may become the result.
    """

    def __init__(
        self,
        job: Job,
        plan: JobPlan,
        rows: RowFolder,
        runtime: Runtime,
        emit: Emit,
        saved: Optional[Checkpoint] = None,
        original: Optional[Original] = None,
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
        self._original = original if saved is None else None
        self._before: Dict[str, Any] = dict(state.get("before", {}))
        self._after: List[Tuple[float, float]] = []
        by_document = "documents" in self._before if self._before else original is not None and plan.runtime != "ipu"
        self._documents = rows.read_documents() if by_document else None
        self._write()

    def start(self, training: TrainingState) -> None:
        """Evaluate the original; end the training immediately if an earlier process had reached early stopping."""
        if self._original is not None:
            training.exclude_time(self._evaluate_original(self._original))
            self._original = None
        training.ends_early = self.should_stop

    def _evaluate_original(self, original: Original) -> float:
        """Evaluate the original with its weights in the runtime for that time; return the seconds it took."""
        began, start = time.perf_counter(), None
        if original.state is not None:
            start = self._runtime.state_dict()
            self._runtime.load_state_dict(original.state)
        with original.rotation():
            groups, figures = self._evaluate_groups(0)
        if start is not None:
            self._runtime.load_state_dict(start)
        self._before = {"figures": figures, "groups": groups, "new_head": original.new_head}
        if self._documents is not None:
            self._before["documents"] = len(self._list_documents())
        self._lines.append({"step": 0, **figures})
        self._write()
        self._emit("evaluated", after=0, updates=self._updates, best_after=0, **figures)
        seconds = time.perf_counter() - began
        self._seconds += seconds
        return seconds

    def _evaluate_groups(self, done: int) -> Tuple[List[Tuple[float, float]], Dict[str, float]]:
        """Return the loss and the number of labels of each group of documents or rows, and the figures of all rows."""
        numbers = self._row_numbers if self._documents is None else self._list_documents()
        total = self._sum_rows if self._documents is None else self._sum_documents
        sums = [total(part) for part in np.array_split(numbers, min(GROUPS, len(numbers)))]
        figures = self._to_figures({name: math.fsum(group[name] for group in sums) for name in self._head.sums}, done)
        return [(group[COMPARED], group[LABELS]) for group in sums], figures

    def _sum_rows(self, numbers: np.ndarray) -> Dict[str, float]:
        """Return Head.sums over the rows with these numbers."""
        size = self._batch_rows
        return self._runtime.evaluate(
            self._rows.take(numbers[first : first + size]) for first in range(0, len(numbers), size)
        )

    def _list_documents(self) -> np.ndarray:
        """Return the numbers of the documents of the evaluated rows, in ascending order."""
        assert self._documents is not None
        numbers = np.unique(self._documents[self._row_numbers])
        return numbers[numbers >= 0]

    def _sum_documents(self, numbers: np.ndarray) -> Dict[str, float]:
        """Return Head.sums over the sequences of the documents with these numbers, which follow each other."""
        assert self._documents is not None
        documents = self._documents[self._row_numbers]
        kept = (documents >= numbers[0]) & (documents <= numbers[-1])
        places = np.flatnonzero(kept.any(1))
        size = self._batch_rows
        return self._runtime.evaluate(
            self._rows.take(self._row_numbers[part]).keep_sequences(kept[part])
            for part in (places[first : first + size] for first in range(0, len(places), size))
        )

    def _to_figures(self, sums: Mapping[str, float], done: int) -> Dict[str, float]:
        figures = self._head.figures(sums)
        if not math.isfinite(figures["loss"]):
            require_finite(self._runtime.state_dict(), done)
            raise NonFiniteWeights(done, ["the logits of the held-out rows"])
        return figures

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
        if self._before and done == self._updates:
            self._after, figures = self._evaluate_groups(done)
        else:
            figures = self._to_figures(self._sum_rows(self._row_numbers), done)
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
        compared = {}
        if self._before and self._after:
            pairs = [(old, new, labels) for (old, _), (new, labels) in zip(self._before["groups"], self._after)]
            compared = {"before": {**self._before, "groups": pairs}}
        return {**figures, **counts, **ended, "judged_by": best if best in figures else "loss", **compared}

    def state(self) -> Dict[str, Any]:
        """Return the state for a checkpoint, which stores `best` separately."""
        state: Dict[str, Any] = {"lines": [dict(line) for line in self._lines], "best_step": self._best_step}
        return {**state, "before": self._before} if self._before else state

    def _figures_at(self, step: int) -> Dict[str, float]:
        return next(line for line in self._lines if line["step"] == step)

    def _write(self) -> None:
        known = self._head.figures(dict.fromkeys(self._head.sums, 1.0))
        names = ("step", *(name for name in known if not self._lines or name in self._lines[0]))
        lines = [
            ",".join([str(int(line["step"])), *(f"{line[name]:.8g}" for name in names[1:])]) for line in self._lines
        ]
        write_text(self._path, "".join(f"{line}\n" for line in (",".join(names), *lines)))
