"""Where the rows of the next host calls come from: a process that makes them ready while the IPUs work.

`execute` of PopTorch keeps Python's lock from its start to its end (graphcore/poptorch, python/poptorch.cpp: only
compiling lets go of it), so that no thread can prepare anything meanwhile. PopTorch's own answer is
AsynchronousDataAccessor: a process that copies what a data set yields into a ring of tensors in shared memory. Ours
does the same, as a program of its own, because that one sends the data set with pickle, begins at its first item
always, polls with sleeps where a pipe wakes at once, takes shared memory of /dev/shm, which Docker bounds to 64 MB,
and tells any error as "An error occurred in the data fetcher".

An executor reads its inputs where they lie (PoplarExecutable::run gives PopART their addresses, and requires nothing
but that they are contiguous), and has read them when it returns: no copy is needed between the shared memory and
the IPUs, and a slot is free when its call has ended.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Tuple, Union

import numpy as np

from ipu_model.distributed.companion import end_in_words, shared_memory, start_companion
from ipu_model.errors import ConfigError, RowsError, RowWorkerLost
from ipu_model.ipu.laying import Counts, Inputs, Piece, Shape, Slots, lay, shapes_of
from ipu_model.ipu.row_worker import Work
from ipu_model.rows.reading import RowFolder, UpdateRows

SLOTS = 3
"""One that the IPUs read, one that is ready, one that is being filled."""
ERRORS = {"RowsError": RowsError, "ConfigError": ConfigError, "OSError": OSError}
"""What a worker tells, by the name that it gives."""


@dataclass(frozen=True)
class Made:
    """The rows of one host call of this process."""

    columns: Tuple[np.ndarray, ...]
    """[rows, width] int32, fp32 for values; valid until the source gets it back."""
    counts: Counts
    slot: int = 0


class InTurn:
    """Makes each call when it is taken, in this process.

    Args:
        pieces: Gives the rows of each call (laying.Piece).
        shapes: Of its columns.
    """

    def __init__(self, pieces: Iterator[Piece], shapes: List[Shape], updates: int, inputs: Inputs) -> None:
        self._pieces, self._shapes, self._updates, self._inputs = pieces, shapes, updates, inputs

    def take(self) -> Made:
        """The next call, in memory of its own.

        Raises:
            RowsError: damaged rows, with the file and the row.
        """
        columns = tuple(np.empty((x.rows, x.width), x.dtype) for x in self._shapes)
        counts = lay(next(self._pieces), self._shapes[0].rows, self._updates, self._inputs, columns)
        return Made(columns, counts)

    def give_back(self, made: Made) -> None:
        """Nothing is used twice."""

    def close(self) -> None:
        """There is nothing to end."""


class Ahead:
    """Makes the next calls ready in a process of its own, `process`, while this one cannot run.

    Args:
        steps: First update of every call.

    Raises:
        OSError: no such memory, or no process.
    """

    def __init__(self, rows: RowFolder, order: UpdateRows, steps: range, inputs: Inputs) -> None:
        first, stop, _ = order.share.indices(order.rows_per_update)
        slots = Slots(shapes_of(rows.manifest, inputs, (stop - first) * steps.step), SLOTS)
        descriptor = shared_memory("podium-rows", slots.bytes)
        try:
            self._memory = mmap.mmap(descriptor, slots.bytes)
            self.process = start_companion("ipu_model.ipu.row_worker", memory=descriptor)
        finally:
            os.close(descriptor)  # the worker has its own, and both have the memory
        work = Work(
            folder=str(rows.folder),
            manifest_sha256=rows.sha256,
            kind=rows.manifest.kind,
            labels=rows.manifest.num_labels,
            model=rows.model,
            seed=order.seed,
            rows_per_update=order.rows_per_update,
            share=(first, stop),
            total=order.total,
            updates=steps.step,
            columns=inputs.columns,
            label_columns=inputs.labels,
            slots=SLOTS,
            memory=descriptor,
        )
        self._send(work.to_json() + "\n")
        self._columns = [tuple(slots.columns(self._memory, slot)) for slot in range(SLOTS)]
        self._steps = iter(steps)
        for slot in range(SLOTS):
            self._ask(slot)

    def take(self) -> Made:
        """The next call, when it is ready. Waiting lets other threads run, and signals be noticed.

        Raises:
            RowsError: damaged rows, with the file and the row.
            RowWorkerLost: the process that makes rows ready has ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RowWorkerLost(end_in_words(self.process.wait()))
        reply: Dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ERRORS[reply["error"]](*reply["arguments"])
        return Made(self._columns[reply["slot"]], reply["counts"], reply["slot"])

    def give_back(self, made: Made) -> None:
        """Its call has ended: let the worker fill the slot with the call that nobody has asked for yet."""
        self._ask(made.slot)

    def _ask(self, slot: int) -> None:
        step = next(self._steps, None)
        if step is not None:
            self._send(f"{step} {slot}\n")

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `take` says why nobody reads it
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()

    def close(self) -> None:
        """End the worker, at once: nothing that it does is of use to anybody else."""
        self.process.kill()
        self.process.communicate()


RowSource = Union[InTurn, Ahead]
"""Gives the calls of a training in order."""
