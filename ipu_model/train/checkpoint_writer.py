"""Checkpoint writer of a training: when to save, and how much time that needs.

If memory allows, checkpoints are written asynchronously: the state is copied to shared memory, and another process
writes it to the disk.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from pathlib import Path
from typing import Callable, Dict, Mapping, NoReturn, Optional

from torch import Tensor

from ipu_model.core.memory import free_memory
from ipu_model.core.progress import Emit
from ipu_model.core.units import format_bytes
from ipu_model.distributed.companion import Companion, CompanionLost, shared_memory
from ipu_model.distributed.process import StopRequest, Terminated
from ipu_model.jobs.job import Job
from ipu_model.models.tensors import lay_out, require_finite
from ipu_model.runtimes.runtime import Runtime
from ipu_model.train.checkpoint import STATE, Checkpoint, Checkpoints
from ipu_model.train.checkpoint_process import FileSpans, write_checkpoint, write_checkpoints
from ipu_model.train.evaluation import Evaluator
from ipu_model.train.history import History
from ipu_model.train.training import Hook, TrainingState

ASSUMED_SAVE_SECONDS = 60.0
"""Assumed time of the first checkpoint: more than BERT large needs on a slow disk."""
SAVE_MARGIN = 2.0
"""The next checkpoint may take this many times as long as the slowest before it."""
COPIES = 2
"""Required free memory in checkpoint sizes: one for the copy, one for its files until they are on disk."""
ALIGNMENT = mmap.PAGESIZE


class ProcessUnavailable(Exception):
    """Asynchronous writing is impossible; the message says why."""


class CheckpointProcess:
    """A process that writes one checkpoint at a time: that at `path`, which is None if there is none."""

    def __init__(self, emit: Emit) -> None:
        """Start the process.

        Raises:
            ProcessUnavailable: this system does not support it.
        """
        self.path: Optional[Path] = None
        self._size, self._emit = 0, emit
        self._spans: FileSpans = []
        self._mapped: Optional[mmap.mmap] = None
        try:
            self._memory = shared_memory("podium-checkpoint", 0)
            self._companion = Companion(write_checkpoints, self._memory, memory=self._memory)
        except OSError as error:
            raise ProcessUnavailable(f"the checkpoint process cannot start ({error.strerror or error})") from None

    def start(self, path: Path, tensors: Mapping[str, Dict[str, Tensor]], texts: Mapping[str, bytes]) -> None:
        """Copy a state (tensors by file and name, and the other files) and start writing it to a new folder; no other
        checkpoint may be in progress.

        Raises:
            ProcessUnavailable: not enough memory is free.
        """
        assert self.path is None
        layouts = {name: lay_out(inside) for name, inside in tensors.items()}
        sizes = {**{name: x.size for name, x in layouts.items()}, **{name: len(x) for name, x in texts.items()}}
        self._spans, end = [], 0
        for name, size in sizes.items():
            self._spans.append((name, end, size))
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self._reserve(end)
        assert self._mapped is not None
        for name, first, size in self._spans:
            if name in layouts:
                layouts[name].copy_to(self._mapped, first, tensors[name])
            else:
                self._mapped[first : first + size] = texts[name]
        self.path = path
        self._companion.send((str(path), self._spans))

    def _reserve(self, size: int) -> None:
        """Raises: ProcessUnavailable, if that many bytes are not free."""
        free, more, required = free_memory(), size - self._size, format_bytes(size)
        if more <= 0:
            return
        if free is not None and free < more + (COPIES - 1) * size:
            raise ProcessUnavailable(
                f"a copy of the state takes {required}, {COPIES} times that must be free, {format_bytes(free)} are"
            )
        try:
            os.posix_fallocate(self._memory, 0, size)
            self._mapped = mmap.mmap(self._memory, size)  # the old mapping is freed with its last tensor
        except OSError as error:
            raise ProcessUnavailable(
                f"{required} for a copy of the state cannot be allocated ({error.strerror})"
            ) from None
        if not self._size:
            text = f"checkpoints are written asynchronously, from a copy of the state of {required}"
            self._emit("message", text=text)
        self._size = size

    def has_answered(self) -> bool:
        """Return whether `take` would return without waiting; True if there is no checkpoint in progress."""
        return self.path is None or self._companion.has_answered()

    def take(self) -> float:
        """Wait until the current checkpoint is on disk; return the seconds that writing took.

        Raises:
            OSError: the checkpoint could not be written.
            ProcessUnavailable: the process has ended; this process wrote the checkpoint instead.
        """
        assert self.path is not None
        path, self.path = self.path, None
        try:
            return float(self._companion.receive())
        except CompanionLost as lost:  # its partial folder is removed by the next writer
            write_checkpoint(path, self._memory, self._spans)
            raise ProcessUnavailable(f"the checkpoint process {lost}") from None

    def close(self) -> None:
        """End the process after it has finished the current checkpoint."""
        self._companion.close()
        os.close(self._memory)
        self._mapped = None


class CheckpointWriter(Hook):
    """Hook that saves checkpoints, asynchronously if memory allows, and stops the training in time to save one.

    The state of the history, and of any evaluations, is part of every checkpoint.

    Attributes:
        done: Updates in the newest checkpoint, written or in progress; at first those before this process.
    """

    def __init__(
        self,
        job: Job,
        runtime: Runtime,
        checkpoints: Checkpoints,
        history: History,
        evaluations: Optional[Evaluator],
        stop: StopRequest,
        emit: Emit,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.done, self._history, self._evaluations, self._stop = done, history, evaluations, stop
        self._every_updates = job.checkpoint_every_updates
        self._runtime, self._checkpoints, self._emit, self._clock = runtime, checkpoints, emit, clock
        self._seconds_between, self._last, self._slowest = 60.0 * job.checkpoint_every_minutes, clock(), 0.0
        self._copying = 0.0  # seconds for copying the newest state
        self._process: Optional[CheckpointProcess] = None
        if checkpoints.is_writer and (job.checkpoint_every_minutes or job.checkpoint_every_updates):
            try:
                self._process = CheckpointProcess(emit)
            except ProcessUnavailable as reason:
                self._end_process(reason)

    def start(self, training: TrainingState) -> None:
        """Start the interval now: a kill does not lose earlier work, such as a compiled program."""
        self._last = self._clock()

    def after_step(self, training: TrainingState) -> None:
        """Stop the training if requested, and save a checkpoint if one is due.

        Raises:
            Terminated: SIGTERM came, or PODIUM_STOP_AT is near; all updates so far are in a checkpoint.
            NonFiniteWeights, OSError: as `save`.
        """
        self.collect()
        stopping, saving = self._stop.decide(training.seconds_needed + self.save_seconds, self.is_due)
        if stopping:
            self.save_and_stop(training.done, training.updates)
        if saving or training.has_reached(self._every_updates):
            self.save(training.done)

    def after_aborted_step(self, training: TrainingState) -> None:
        self.save_and_stop(training.done, training.updates)

    @property
    def is_due(self) -> bool:
        """True if this process requests a checkpoint because the interval in minutes has passed."""
        if not self._checkpoints.is_writer or not self._seconds_between:
            return False
        return self._is_free and self._clock() - self._last >= self._seconds_between

    @property
    def save_seconds(self) -> float:
        """Seconds that a checkpoint after the next update may take, including one still in progress."""
        if not self._slowest:
            return ASSUMED_SAVE_SECONDS
        return SAVE_MARGIN * self._slowest + (0.0 if self._is_free else self._slowest)

    @property
    def _is_free(self) -> bool:
        return self._process is None or self._process.path is None

    def save(self, done: int) -> None:
        """Save a checkpoint after update `done`; every process of the training must call this.

        Raises:
            NonFiniteWeights: the weights are not worth saving.
            OSError: this checkpoint or the previous one cannot be written; earlier ones stay.
        """
        self.finish()
        began, runtime, evaluations = time.perf_counter(), self._runtime, self._evaluations
        weights = require_finite(runtime.state_dict(), done)
        states = (runtime.optimizer_state(), runtime.rng_state(), self._history.state())
        evaluated = ({}, {}) if evaluations is None else (evaluations.state(), evaluations.best)
        checkpoint, self.done = Checkpoint(done, weights, *states, *evaluated), done
        if not self._checkpoints.is_writer:
            return
        if self._process is not None:
            text = self._checkpoints.state_text(checkpoint).encode()
            try:
                self._process.start(self._checkpoints.path_of(done), checkpoint.tensors, {STATE: text})
            except ProcessUnavailable as reason:
                self._end_process(reason)
        if self._is_free:
            self._note_saved(self._checkpoints.save(checkpoint), time.perf_counter() - began)
        self._copying, self._last = time.perf_counter() - began, self._clock()

    def collect(self) -> None:
        """Register a checkpoint that has been written meanwhile; raises as `finish`."""
        if self._process is not None and self._process.has_answered():
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint in progress, if there is one.

        Raises:
            OSError: it could not be written; earlier ones stay.
        """
        if self._process is None or self._process.path is None:
            return
        path, began = self._process.path, time.perf_counter()
        try:
            seconds = self._process.take()
        except ProcessUnavailable as reason:
            self._end_process(reason)
            seconds = time.perf_counter() - began
        self._checkpoints.remove()
        self._note_saved(path, self._copying + seconds)

    def _note_saved(self, path: Path, seconds: float) -> None:
        self._emit("saved", path=str(path))
        self._slowest = max(self._slowest, seconds)

    def _end_process(self, reason: ProcessUnavailable) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None
        self._emit("message", text=f"checkpoints are written synchronously, while the training waits: {reason}")

    def save_and_stop(self, done: int, updates: int) -> NoReturn:
        """Raises: Terminated, after saving the updates that the newest checkpoint lacks."""
        if done > self.done:
            self.save(done)
        self.finish()
        # A launcher ends all processes soon after the first one exits, so all wait until the checkpoint is written.
        self._stop.agree([True])
        raise Terminated(_stop_message(self._stop, done, updates))

    def close(self) -> None:
        """End the checkpoint process after it has finished the current checkpoint."""
        with contextlib.suppress(OSError):  # the training has already failed with an error that matters more
            self.finish()
        if self._process is not None:
            self._process.close()


def require_time(stop: StopRequest, done: int, updates: int) -> None:
    """Raises: Terminated, if PODIUM_STOP_AT of any process leaves no time for an update and a checkpoint."""
    if stop.time_is_up(ASSUMED_SAVE_SECONDS):
        raise Terminated(_stop_message(stop, done, updates))


def _stop_message(stop: StopRequest, done: int, updates: int) -> str:
    position = f"after update {done} of {updates} (checkpoint saved)" if done else "before the first update"
    return f"{stop.reason()}, {position}"
