"""When a training makes checkpoints, and how long that takes it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Callable, NoReturn, Optional

from ipu_model.distributed.process import StopRequest, Terminated
from ipu_model.jobs.job import Job
from ipu_model.models.tensors import require_finite
from ipu_model.progress import Emit
from ipu_model.runtimes.runtime import Runtime
from ipu_model.train.beside import Beside, InTurn, mb
from ipu_model.train.checkpoint import STATE, Checkpoint, Checkpoints
from ipu_model.train.evaluation import NoEvaluations
from ipu_model.train.history import History

GUESSED_SAVE_SECONDS = 60.0
"""What a checkpoint is taken to need until one was made: more than that of BERT large on a slow disk."""
SAVE_MARGIN = 2.0
"""The next checkpoint may take this many times as long as the slowest before it."""


class CheckpointWriter:
    """Makes checkpoints of a training, beside it where memory allows, and knows how long they take.

    Args:
        job: How often (checkpoint_every_minutes, checkpoint_every_updates).
        done: Updates before this process.
        clock: Seconds.

    Attributes:
        done: Updates that are in the newest checkpoint, written or under way.
    """

    def __init__(
        self,
        job: Job,
        runtime: Runtime,
        checkpoints: Checkpoints,
        history: History,
        evaluations: NoEvaluations,
        emit: Emit,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.history, self.evaluations, self.done = history, evaluations, done
        self._runtime, self._checkpoints, self._emit, self._clock = runtime, checkpoints, emit, clock
        self._seconds_between, self._last, self._slowest = 60.0 * job.checkpoint_every_minutes, clock(), 0.0
        self._copying = 0.0  # seconds, of the state of the newest one
        self._beside: Optional[Beside] = None
        if checkpoints.is_writer and (job.checkpoint_every_minutes or job.checkpoint_every_updates):
            try:
                self._beside = Beside()
            except InTurn as reason:
                self._say_in_turn(reason)

    def begin(self) -> None:
        """Count the minutes from now on: what is computed before, such as a program, a kill does not cost."""
        self._last = self._clock()

    @property
    def is_due(self) -> bool:
        """Whether so many minutes have passed since the last checkpoint that this process asks for one."""
        if not self._checkpoints.is_writer or not self._seconds_between:
            return False
        return self._is_free and self._clock() - self._last >= self._seconds_between

    @property
    def save_seconds(self) -> float:
        """What a checkpoint after the next update may need, one still under way before it included."""
        if not self._slowest:
            return GUESSED_SAVE_SECONDS
        return SAVE_MARGIN * self._slowest + (0.0 if self._is_free else self._slowest)

    @property
    def _is_free(self) -> bool:
        return self._beside is None or self._beside.path is None

    def save(self, done: int) -> None:
        """Make a checkpoint after update `done`; every process of the training must call it.

        Raises:
            NonFiniteWeights: there is nothing worth it.
            OSError: it, or the one before, cannot be written; those before it stay.
        """
        self.finish()
        began, made = time.perf_counter(), self._state_after(done)
        if not self._checkpoints.is_writer:
            return
        if self._beside is not None:
            try:
                self._start(self._beside, made)
            except InTurn as reason:
                self._write_in_turn_from_now(reason)
        if self._is_free:
            self._told(self._checkpoints.save(made), time.perf_counter() - began)
        self._copying, self._last = time.perf_counter() - began, self._clock()

    def _start(self, beside: Beside, made: Checkpoint) -> None:
        before, texts = beside.bytes, {STATE: self._checkpoints.state_text(made).encode()}
        beside.start(self._checkpoints.path_of(made.step), made.tensors, texts)
        if not before:
            what = f"checkpoints are written beside the training, from a copy of its state of {mb(beside.bytes)}"
            self._emit("message", text=what)

    def _state_after(self, done: int) -> Checkpoint:
        runtime, evaluations = self._runtime, self.evaluations
        weights = require_finite(runtime.state_dict(), done)
        states = (runtime.optimizer_state(), runtime.rng_state(), self.history.state(), evaluations.state())
        self.done = done
        return Checkpoint(done, weights, *states, evaluations.best)

    def look(self) -> None:
        """Take note of a checkpoint that was written meanwhile.

        Raises:
            OSError: it could not be; those before it stay.
        """
        if self._beside is not None and self._beside.has_answered():
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint under way, if there is one.

        Raises:
            OSError: it could not be written; those before it stay.
        """
        if self._beside is None or self._beside.path is None:
            return
        path, began = self._beside.path, time.perf_counter()
        try:
            seconds = self._beside.take()
        except InTurn as reason:
            self._write_in_turn_from_now(reason)
            seconds = time.perf_counter() - began
        self._checkpoints.remove_old()
        self._told(path, self._copying + seconds)

    def _told(self, path: Path, seconds: float) -> None:
        self._emit("saved", path=str(path))
        self._slowest = max(self._slowest, seconds)

    def _write_in_turn_from_now(self, reason: InTurn) -> None:
        assert self._beside is not None
        self._beside.close()
        self._beside = None
        self._say_in_turn(reason)

    def _say_in_turn(self, reason: InTurn) -> None:
        self._emit("message", text=f"checkpoints are written in turn with the training, which waits: {reason}")

    def stop_here(self, done: int, updates: int, stop: StopRequest) -> NoReturn:
        """Raises: Terminated, after a checkpoint of what the newest one lacks."""
        if done > self.done:
            self.save(done)
        self.finish()
        # A launcher ends all processes soon after the first one: nobody leaves before the checkpoint is written.
        stop.agree([True])
        raise Terminated(_stopped(stop, done, updates))

    def close(self) -> None:
        """End what writes beside; what is under way is written to its end first."""
        if self._beside is None:
            return
        with contextlib.suppress(OSError):  # the training has failed otherwise: that error matters more
            self.finish()
        if self._beside is not None:
            self._beside.close()
            self._beside = None


def require_time(stop: StopRequest, done: int, updates: int) -> None:
    """Raises: Terminated, if the time of any process's host ends before an update and a checkpoint can be made."""
    if stop.time_is_up(GUESSED_SAVE_SECONDS):
        raise Terminated(_stopped(stop, done, updates))


def _stopped(stop: StopRequest, done: int, updates: int) -> str:
    where = f"after update {done} of {updates}, which a checkpoint holds" if done else "before the first update"
    return f"{stop.reason()}, {where}"
