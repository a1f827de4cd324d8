"""When a training makes checkpoints, and how long that takes it.

Where memory allows they are written beside it: the state is copied to memory that another process writes to the disk.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from pathlib import Path
from typing import Callable, Dict, Mapping, NoReturn, Optional

from torch import Tensor

from ipu_model.distributed.companion import Companion, CompanionLost, reserve, shared_memory
from ipu_model.distributed.process import StopRequest, Terminated
from ipu_model.jobs.job import Job
from ipu_model.memory import free_memory
from ipu_model.models.tensors import lay_out, require_finite
from ipu_model.progress import Emit
from ipu_model.runtimes.runtime import Runtime
from ipu_model.train.checkpoint import STATE, Checkpoint, Checkpoints
from ipu_model.train.checkpoint_process import Places, write_checkpoint, write_checkpoints
from ipu_model.train.evaluation import Evaluations
from ipu_model.train.history import History
from ipu_model.train.training import Hook, Training

GUESSED_SAVE_SECONDS = 60.0
"""What a checkpoint is taken to need until one was made: more than that of BERT large on a slow disk."""
SAVE_MARGIN = 2.0
"""The next checkpoint may take this many times as long as the slowest before it."""
ROOM = 2
"""Times the size of a checkpoint that memory must have free: for the copy, and for its files until they are on disk."""
ALIGNMENT = mmap.PAGESIZE


class NoProcess(Exception):
    """Checkpoints cannot be written beside the training; the message says why."""


class CheckpointProcess:
    """One process that writes one checkpoint at a time.

    Attributes:
        path: Of the checkpoint under way; None while there is none.
        bytes: That the copy takes.
    """

    def __init__(self) -> None:
        """Start the process.

        Raises:
            NoProcess: this system cannot do that.
        """
        self.path: Optional[Path] = None
        self.bytes = 0
        self._places: Places = []
        self._mapped: Optional[mmap.mmap] = None
        try:
            self._memory = shared_memory("podium-checkpoint", 0)
            self._companion = Companion(write_checkpoints, self._memory, memory=self._memory)
        except OSError as error:
            raise NoProcess(f"a process beside the training cannot be had ({error.strerror or error})") from None

    def start(self, path: Path, tensors: Mapping[str, Dict[str, Tensor]], texts: Mapping[str, bytes]) -> None:
        """Copy a state and have it written; none may be under way.

        Args:
            path: the folder that appears.
            tensors: by file and name.
            texts: the other files.

        Raises:
            NoProcess: the memory for it is not free.
        """
        assert self.path is None
        layouts = {name: lay_out(inside) for name, inside in tensors.items()}
        sizes = {**{name: x.size for name, x in layouts.items()}, **{name: len(x) for name, x in texts.items()}}
        self._places, end = [], 0
        for name, size in sizes.items():
            self._places.append((name, end, size))
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self._make_room(end)
        assert self._mapped is not None
        for name, first, size in self._places:
            if name in layouts:
                layouts[name].copy_to(self._mapped, first, tensors[name])
            else:
                self._mapped[first : first + size] = texts[name]
        self.path = path
        self._companion.ask((str(path), self._places))

    def _make_room(self, size: int) -> None:
        """Raises: NoProcess, if the memory for that many bytes is not free."""
        free, more = free_memory(), size - self.bytes
        if more > 0 and free is not None and free < more + (ROOM - 1) * size:
            raise NoProcess(
                f"a copy of the state takes {mb(size)}, {ROOM} times that is needed and {mb(free)} are free"
            )
        if more > 0:
            try:
                reserve(self._memory, size)
                self._mapped = mmap.mmap(self._memory, size)  # the one before goes with its last tensor
            except OSError as error:
                raise NoProcess(
                    f"{mb(size)} of memory for a copy of the state cannot be had ({error.strerror})"
                ) from None
            self.bytes = size

    def has_answered(self) -> bool:
        """Whether `take` need not wait for the checkpoint under way; True where there is none."""
        return self.path is None or self._companion.has_answered()

    def take(self) -> float:
        """Wait for the checkpoint under way, which is on disk then; the seconds that writing took.

        Raises:
            OSError: it could not be written.
            NoProcess: the process has ended; this one wrote the checkpoint in its place.
        """
        assert self.path is not None
        path, self.path = self.path, None
        try:
            return float(self._companion.answer())
        except CompanionLost as lost:  # what it left half is removed once it is gone
            write_checkpoint(path, self._memory, self._places)
            raise NoProcess(f"the process that wrote checkpoints {lost}") from None

    def close(self) -> None:
        """End the process; a checkpoint under way is written to its end."""
        self._companion.close()
        os.close(self._memory)
        self._mapped = None


class CheckpointWriter(Hook):
    """Makes checkpoints of a training, beside it where memory allows, and stops it while there is time for one.

    Args:
        job: How often (checkpoint_every_minutes, checkpoint_every_updates).
        history: Its state, and that of the evaluations if there are any, goes into every checkpoint.
        stop: Whether the job is to stop.
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
        evaluations: Optional[Evaluations],
        stop: StopRequest,
        emit: Emit,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.done, self._history, self._evaluations, self._stop = done, history, evaluations, stop
        self._every_updates = job.checkpoint_every_updates
        self._runtime, self._checkpoints, self._emit, self._clock = runtime, checkpoints, emit, clock
        self._seconds_between, self._last, self._slowest = 60.0 * job.checkpoint_every_minutes, clock(), 0.0
        self._copying = 0.0  # seconds, of the state of the newest one
        self._process: Optional[CheckpointProcess] = None
        if checkpoints.is_writer and (job.checkpoint_every_minutes or job.checkpoint_every_updates):
            try:
                self._process = CheckpointProcess()
            except NoProcess as reason:
                self._say_in_turn(reason)

    def start(self, training: Training) -> None:
        """Count the minutes from now on: what is computed before, such as a program, a kill does not cost."""
        self._last = self._clock()

    def after_step(self, training: Training) -> None:
        """Stop the training where it must, and make a checkpoint where one is due.

        Raises:
            Terminated: SIGTERM came, or the time of this host ends; a checkpoint holds everything up to here.
            NonFiniteWeights, OSError: as `save`.
        """
        self.collect()
        stopping, saving = self._stop.decide(training.seconds_needed + self.save_seconds, self.is_due)
        if stopping:
            self.save_and_stop(training.done, training.updates)
        if saving or training.reached(self._every_updates):
            self.save(training.done)

    def after_aborted_step(self, training: Training) -> None:
        self.save_and_stop(training.done, training.updates)

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
        return self._process is None or self._process.path is None

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
        if self._process is not None:
            try:
                self._start(self._process, made)
            except NoProcess as reason:
                self._write_in_turn_from_now(reason)
        if self._is_free:
            self._note_saved(self._checkpoints.save(made), time.perf_counter() - began)
        self._copying, self._last = time.perf_counter() - began, self._clock()

    def _start(self, process: CheckpointProcess, made: Checkpoint) -> None:
        before, texts = process.bytes, {STATE: self._checkpoints.state_text(made).encode()}
        process.start(self._checkpoints.path_of(made.step), made.tensors, texts)
        if not before:
            what = f"checkpoints are written beside the training, from a copy of its state of {mb(process.bytes)}"
            self._emit("message", text=what)

    def _state_after(self, done: int) -> Checkpoint:
        runtime, evaluations = self._runtime, self._evaluations
        weights = require_finite(runtime.state_dict(), done)
        states = (runtime.optimizer_state(), runtime.rng_state(), self._history.state())
        evaluated = ({}, {}) if evaluations is None else (evaluations.state(), evaluations.best)
        self.done = done
        return Checkpoint(done, weights, *states, *evaluated)

    def collect(self) -> None:
        """Take note of a checkpoint that was written meanwhile.

        Raises:
            OSError: it could not be; those before it stay.
        """
        if self._process is not None and self._process.has_answered():
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint under way, if there is one.

        Raises:
            OSError: it could not be written; those before it stay.
        """
        if self._process is None or self._process.path is None:
            return
        path, began = self._process.path, time.perf_counter()
        try:
            seconds = self._process.take()
        except NoProcess as reason:
            self._write_in_turn_from_now(reason)
            seconds = time.perf_counter() - began
        self._checkpoints.remove_old()
        self._note_saved(path, self._copying + seconds)

    def _note_saved(self, path: Path, seconds: float) -> None:
        self._emit("saved", path=str(path))
        self._slowest = max(self._slowest, seconds)

    def _write_in_turn_from_now(self, reason: NoProcess) -> None:
        assert self._process is not None
        self._process.close()
        self._process = None
        self._say_in_turn(reason)

    def _say_in_turn(self, reason: NoProcess) -> None:
        self._emit("message", text=f"checkpoints are written in turn with the training, which waits: {reason}")

    def save_and_stop(self, done: int, updates: int) -> NoReturn:
        """Raises: Terminated, after a checkpoint of what the newest one lacks."""
        if done > self.done:
            self.save(done)
        self.finish()
        # A launcher ends all processes soon after the first one: nobody leaves before the checkpoint is written.
        self._stop.agree([True])
        raise Terminated(_stopped(self._stop, done, updates))

    def close(self) -> None:
        """End what writes beside; what is under way is written to its end first."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):  # the training has failed otherwise: that error matters more
            self.finish()
        if self._process is not None:
            self._process.close()
            self._process = None


def require_time(stop: StopRequest, done: int, updates: int) -> None:
    """Raises: Terminated, if the time of any process's host ends before an update and a checkpoint can be made."""
    if stop.time_is_up(GUESSED_SAVE_SECONDS):
        raise Terminated(_stopped(stop, done, updates))


def _stopped(stop: StopRequest, done: int, updates: int) -> str:
    where = f"after update {done} of {updates}, which a checkpoint holds" if done else "before the first update"
    return f"{stop.reason()}, {where}"


def mb(size: int) -> str:
    """A number of bytes in words; MB of 2**20."""
    return f"{size / 2**20:,.0f} MB"
