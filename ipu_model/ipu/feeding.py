"""The tensors of host calls: of a training, its rows weighted by the labels of all instances, and of inference.

The rows of the next calls come from a process that makes them ready while the IPUs work.
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

import mmap
import os
from dataclasses import dataclass
from typing import Callable, Dict, Generator, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from ipu_model.distributed.companion import Companion, CompanionLost, shared_memory
from ipu_model.distributed.ranks import Instances
from ipu_model.errors import RowWorkerLost
from ipu_model.ipu.call_columns import (
    TOKENS,
    CallShape,
    Counts,
    Inputs,
    Piece,
    fill_slots,
    input_type,
    label_count,
    lay,
    shape_of,
    taking,
)
from ipu_model.models.head import Head, Logits
from ipu_model.rows.format import ABSENT, IGNORED
from ipu_model.rows.reading import Batch, RowFolder, UpdateRows

SLOTS = 3
"""One that the IPUs read, one that is ready, one that is being filled."""


class Call(NamedTuple):
    """The rows of one host call of this process."""

    columns: Sequence[np.ndarray]
    """[rows, width] int32, fp32 for values; valid until the next call is taken."""
    counts: Counts


RowSource = Union[Generator[Call, None, None], "Ahead"]
"""Gives the calls of a training in order. Close it to end what makes them."""


class Ahead:
    """Makes the next calls ready in a process of its own, `process`, while this one cannot run.

    Args:
        steps: First update of every call.

    Raises:
        OSError: no such memory, or no process.
    """

    def __init__(self, rows: RowFolder, order: UpdateRows, steps: range, inputs: Inputs) -> None:
        first, stop, _ = order.share.indices(order.rows_per_update)
        shape = shape_of(rows.manifest, inputs, (stop - first) * steps.step)
        size = SLOTS * shape.bytes
        descriptor = shared_memory("podium-rows", size)
        try:
            memory = mmap.mmap(descriptor, size)
            folder = (str(rows.folder), rows.manifest.kind, vars(rows.model), rows.manifest.num_labels)
            numbers = (len(rows), order.rows_per_update, order.seed, (first, stop), order.total)
            work = (folder, rows.sha256, numbers, steps.step, inputs.columns, inputs.labels)
            self._companion = Companion(fill_slots, descriptor, SLOTS, *work, memory=descriptor)
        finally:
            os.close(descriptor)  # the companion has its own, and both have the memory
        self.process = self._companion.process
        self._columns = [shape.views(memory, slot) for slot in range(SLOTS)]
        self._steps, self._taken = iter(steps), -1
        for slot in range(SLOTS):
            self._ask(slot)

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Call:
        """The next call, when it is ready; the slot of the one before is filled again.

        Raises:
            RowsError: damaged rows, with the file and the row.
            RowWorkerLost: the process that makes rows ready has ended.
        """
        if self._taken >= 0:
            self._ask(self._taken)
        try:
            self._taken, counts = self._companion.answer()
        except CompanionLost as lost:
            raise RowWorkerLost(str(lost)) from None
        return Call(self._columns[self._taken], counts)

    def _ask(self, slot: int) -> None:
        """Let the companion fill a slot with the call that no one has asked for yet."""
        step = next(self._steps, None)
        if step is not None:
            self._companion.ask((step, slot))

    def close(self) -> None:
        """End the companion, at once: nothing that it does is of use to anyone else."""
        self.process.kill()
        self._companion.close()


@dataclass(frozen=True)
class HostCall:
    """What one call of a training executor is given."""

    tensors: Tuple[Tensor, ...]
    """[rows, width] int32 for each column, but fp32 for values, and a row of positions for each micro-batch where rows
    are not packed; then [rows, parts] fp32, a weight per part of the loss. Valid until `mean` or the next call is
    asked for."""
    counts: Counts
    """Of the whole call, over all instances."""
    mean: Callable[[Dict[str, float]], Dict[str, float]]
    """Mean of figures over the instances; once, after the call."""


def training_inputs(head: Head, example: Batch) -> Inputs:
    """What the training program of a head reads of rows like these."""
    one = example.columns["cls_positions"].shape[1] == 1
    return Inputs(TOKENS + head.inputs + head.label_inputs(example), head.label_columns(example), one)


class Feed:
    """Host calls in order.

    The labels of an update must be known before it begins, and under poprun each instance counts its own rows only. So
    that this costs no reduction of its own, the counts of the next call travel with the figures of this one.

    Args:
        calls: How many the source has.
        updates: Of one call.
        micro_batches: Of one update: accumulation x replicas, over all instances.
        micro_batch_size: Rows of one of them.
    """

    def __init__(
        self,
        source: RowSource,
        calls: int,
        updates: int,
        micro_batches: int,
        micro_batch_size: int,
        inputs: Inputs,
        instances: Instances,
    ) -> None:
        self._source, self._left, self._instances = source, calls, instances
        self._updates, self._micro_batches, self._parts = updates, micro_batches, tuple(inputs.labels)
        self._size_to_share = micro_batch_size if inputs.one_sequence else 0
        self._positions: Optional[Tensor] = None
        self._next: Optional[Call] = None
        self._counts: Optional[Counts] = None

    def __iter__(self) -> Generator[HostCall, None, None]:
        """Each call, when its rows are ready."""
        while self._left:
            call = self._wait()
            counts = self._counts or self._sums(self._instances.mean(call.counts, "counts"))
            self._next, self._counts = None, None
            self._left -= 1
            tensors = tuple(torch.from_numpy(column) for column in call.columns)
            if self._size_to_share:
                tensors = self._sharing(tensors)
            yield HostCall((*tensors, self._weights(len(tensors[0]), counts)), counts, self._mean)

    def _sharing(self, tensors: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
        """Positions that are the same in every call are made once."""
        at = TOKENS.index("position_ids")
        if self._positions is None:
            self._positions = with_shared_positions(tensors, self._size_to_share)[at]
        return (*tensors[:at], self._positions, *tensors[at + 1 :])

    def _wait(self) -> Call:
        if self._next is None:
            self._next = next(self._source)
        return self._next

    def _mean(self, figures: Dict[str, float]) -> Dict[str, float]:
        """Every instance comes here after every call, so what one has to add, all have."""
        if self._instances.count == 1:
            return figures
        own = self._wait().counts if self._left else {}
        found = self._instances.mean({**figures, **own})
        if own:
            self._counts = self._sums({name: found.pop(name) for name in own})
        return found

    def _sums(self, means: Mapping[str, float]) -> Counts:
        return {name: round(mean * self._instances.count) for name, mean in means.items()}

    def _weights(self, rows: int, counts: Counts) -> Tensor:
        """The weight of a label, [rows, parts] fp32.

        PopTorch averages gradients over the micro-batches of an update, so a label weighs micro_batches / labels of the
        update, and the average is the mean over all of them, as on every runtime.
        """
        labels = [[max(1, counts[label_count(x, update)]) for x in self._parts] for update in range(self._updates)]
        weights = (self._micro_batches / np.array(labels)).astype(np.float32)
        return torch.from_numpy(np.repeat(weights, rows // self._updates, axis=0))


def ahead_or_in_turn(
    rows: RowFolder, order: UpdateRows, steps: range, inputs: Inputs, say: Callable[[str], None]
) -> RowSource:
    """The rows of calls that begin with these updates, made ready in another process where this host can.

    It cannot where memory or processes are bounded; such a training goes on, only slower.
    """
    try:
        return Ahead(rows, order, steps, inputs)
    except OSError as error:
        say(
            f"rows are made ready in turn, while the IPUs wait: no process could be given memory for it ({error}). "
            "Raise the memory limit of this container or host, or the number of its processes"
        )
    return in_turn(rows, order, steps, inputs)


def in_turn(rows: RowFolder, order: UpdateRows, steps: range, inputs: Inputs) -> RowSource:
    """The rows of calls that begin with these updates, made when each is taken.

    Raises:
        RowsError: from the generator, damaged rows, with the file and the row.
    """
    shape = shape_of(rows.manifest, inputs, len(order(0, steps.step)))
    return _make_in_turn((taking(rows, order(step, steps.step)) for step in steps), shape, steps.step, inputs)


def in_memory(batch: Batch, inputs: Inputs, updates: int) -> RowSource:
    """One call, of rows that are there already: those of this instance."""
    columns = [batch.columns[name] for name in inputs.columns]
    shape = CallShape(len(batch.rows), [(x.shape[1], input_type(str(x.dtype))) for x in columns])
    return _make_in_turn([batch.part], shape, updates, inputs)


def _make_in_turn(
    pieces: Iterable[Piece], shape: CallShape, updates: int, inputs: Inputs
) -> Generator[Call, None, None]:
    columns = shape.views(mmap.mmap(-1, shape.bytes))
    for piece in pieces:
        yield Call(columns, lay(piece, updates, inputs, columns))


def inference_tensors(batch: Batch, head: Head, rows: int, judged: bool = False) -> Tuple[Tensor, ...]:
    """Inputs of an inference executor: the rows of `batch`, filled up with empty ones to `rows`.

    Args:
        judged: With the labels, for a program that evaluates.
    """
    labels = head.label_inputs(batch) if judged else ()
    nothing = {"cls_positions": ABSENT, **dict.fromkeys(labels, IGNORED)}
    tensors = []
    for name in TOKENS + head.inputs + labels:
        values = batch.columns[name]
        padded: np.ndarray = np.full((rows, values.shape[1]), nothing.get(name, 0), dtype=input_type(str(values.dtype)))
        padded[: len(values)] = values
        tensors.append(torch.from_numpy(padded))
    return tuple(tensors)


def with_shared_positions(tensors: Sequence[Tensor], micro_batch_size: int) -> Tuple[Tensor, ...]:
    """Inputs of a call whose rows hold one sequence each: a micro-batch has one row of positions for all its rows.

    So they are looked up once, and their gradient is a sum over the rows, where one position for each token would cost
    a scatter-add of all of them. Padding gets the positions that it stands at, which nothing reads.

    Args:
        tensors: TOKENS, [rows, L] each, and what follows them; of rows that call_columns.require_positions let pass.

    Returns:
        The same, but [rows / micro_batch_size, L] positions: PopTorch gives each micro-batch its part.
    """
    ids, types, positions, *rest = tensors
    along = torch.arange(positions.shape[1], dtype=positions.dtype)
    return (ids, types, along.repeat(len(positions) // micro_batch_size, 1), *rest)


def sequence_logits(batch: Batch, head: Head, logits: np.ndarray) -> List[Logits]:
    """Logits of every sequence.

    Args:
        logits: What the program gave, fp32, by row; rows beyond those of the batch are ignored.
    """
    found: List[Logits] = []
    columns: Dict[str, np.ndarray] = batch.columns
    for row, slot in np.argwhere(columns["cls_positions"] != ABSENT):
        feature = int(columns["feature_ids"][row, slot])
        own = head.of_slot(logits[row], int(slot), columns["sequence_ids"][row] == slot + 1)
        found.append(Logits(feature, dict(zip(head.logits, own))))
    return found
