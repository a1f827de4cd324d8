"""Loss curve of a run: progress events and history.csv, which has the same bytes even if the run was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from ipu_model.core.files import write_text
from ipu_model.core.progress import Emit
from ipu_model.distributed.process import measure_memory
from ipu_model.train.training import Hook, TrainingState

HISTORY = "history.csv"
SECONDS_BETWEEN_EVENTS = 5.0
"""Longest silence of a training between two updates of a window, each of which takes less."""


class History(Hook):
    """Mean losses over windows of `every` updates, appended to `history.csv` and emitted.

    Columns: step (the last update of the window, counted from 1), loss, its parts, learning_rate (of that
    update). The file does not depend on the clock. The lines of `state`, from `state()` of an earlier run, are written
    again, because that run may have continued after its checkpoint or run on another host.
    """

    def __init__(
        self, folder: Path, parts: Sequence[str], every: int, emit: Emit, state: Optional[Dict[str, Any]] = None
    ) -> None:
        self._path, self._every, self._emit = Path(folder) / HISTORY, every, emit
        self._columns = ["loss", *parts]
        saved = state or {}
        self._sums: Dict[str, float] = dict(saved.get("sums", dict.fromkeys(self._columns, 0.0)))
        self._updates = int(saved.get("updates", 0))
        self._lines: List[str] = list(saved.get("lines", []))
        self.last: Dict[str, float] = dict(saved.get("last", {}))
        header = ",".join(["step", *self._columns, "learning_rate"])
        write_text(self._path, "".join(f"{line}\n" for line in (header, *self._lines)))

    def start(self, training: TrainingState) -> None:
        self._tokens_before, self._seconds_before = training.totals.real_tokens, training.totals.seconds
        self._told_at = training.totals.seconds

    def after_step(self, training: TrainingState) -> None:
        """Add the call to the open window, and close the window once it is complete."""
        metrics = training.metrics
        self._updates += 1
        first = training.done == training.first + training.per_call
        if first:
            self._first_seconds = training.totals.seconds
        for name, value in {"loss": metrics.loss, **metrics.parts}.items():
            self._sums[name] += value
        if training.has_reached(self._every) or training.is_over:
            self._close_window(training)
        elif first or training.totals.seconds - self._told_at >= SECONDS_BETWEEN_EVENTS:
            self._told_at = training.totals.seconds
            loss, left = self._sums["loss"] / self._updates, self._seconds_left(training)
            self._emit("progress", update=training.done, of=training.updates, loss=loss, eta_seconds=left)

    def _seconds_left(self, training: TrainingState) -> float:
        """Return the time left; the first call, which takes longer, counts only while it is the only one."""
        calls, seconds = (training.done - training.first) // training.per_call, training.totals.seconds
        if calls > 1:
            calls, seconds = calls - 1, seconds - self._first_seconds
        return round(seconds / calls / training.per_call * (training.updates - training.done), 1)

    def _close_window(self, training: TrainingState) -> None:
        done, rate, totals = training.done, training.learning_rate, training.totals
        self.last = {name: self._sums[name] / self._updates for name in self._columns}
        values = [f"{x:.8g}" for x in (*self.last.values(), rate)]
        self._lines.append(",".join([str(done), *values]))
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(self._lines[-1] + "\n")
        self._sums = dict.fromkeys(self._columns, 0.0)
        self._updates = 0
        tokens, seconds = totals.real_tokens - self._tokens_before, totals.seconds - self._seconds_before
        speeds = {"eta_seconds": self._seconds_left(training), "real_tokens_per_second": round(tokens / seconds, 1)}
        on_device = training.runtime.peak_device_memory_mb()
        memory = {**measure_memory(), **({} if on_device is None else {"device_memory_mb": round(on_device, 1)})}
        self._emit("step", step=done, steps=training.updates, learning_rate=rate, **speeds, **memory, **self.last)
        self.start(training)

    def state(self) -> Dict[str, Any]:
        """Return the open window and the lines so far, for a checkpoint."""
        return {"sums": dict(self._sums), "updates": self._updates, "last": dict(self.last), "lines": [*self._lines]}
