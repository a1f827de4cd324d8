"""Tensors of host calls: rows of a training, weighted by the labels of all instances, and inputs of inference.

A separate process prepares the rows of the next calls while the IPUs work. PopTorch's `execute` holds the GIL from
start to end (graphcore/poptorch, python/poptorch.cpp: only compiling releases it), so that no thread can prepare rows
in that time. PopTorch's own solution is AsynchronousDataAccessor: a process that copies the items of a data set into a
ring of tensors in shared memory. Ours does the same as a separate program, because PopTorch's pickles the data set,
always begins at its first item, polls with sleeps instead of waiting on a pipe, uses shared memory from /dev/shm (which
Docker limits to 64 MB), and reports any error as "An error occurred in the data fetcher".

An executor reads its inputs in place (PoplarExecutable::run passes their addresses to PopART and only requires that
they are contiguous) and has read them when it returns. So nothing is copied between the shared memory and the IPUs, and
a slot is free when its call has ended.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Callable, Dict, Generator, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from ipu_model.core.errors import RowWorkerLost
from ipu_model.distributed.companion import Companion, CompanionLost, shared_memory
from ipu_model.distributed.instances import Instances
from ipu_model.ipu.call_columns import (
    TOKENS,
    WHOLE_COUNTS,
    CallLayout,
    Counts,
    ProgramInputs,
    RowReader,
    call_layout,
    fill_columns,
    fill_slots,
    input_type,
    label_count,
    row_reader,
)
from ipu_model.models.flat import count_tokens
from ipu_model.models.head import Head, Logits
from ipu_model.rows.format import ABSENT, IGNORED
from ipu_model.rows.row_folder import Batch, RowFolder, UpdateRows, weigh

SLOTS = 3
"""One slot that the IPUs read, one that is ready, one that is being filled."""


class PreparedCall(NamedTuple):
    """Rows of one host call of this process."""

    columns: Sequence[np.ndarray]
    """[rows, width] int32, fp32 for float columns; valid until the next call is taken."""
    counts: Counts


RowSource = Union[Generator[PreparedCall, None, None], "RowPrefetcher"]
"""Source of the calls of a training, in order. Close it to stop the process that prepares them."""


class RowPrefetcher:
    """Prepares the next calls, which begin with the updates `steps`, in a separate `process` while this one is blocked.

    Raises:
        OSError: the memory or the process cannot be created.
    """

    def __init__(self, rows: RowFolder, order: UpdateRows, steps: range, inputs: ProgramInputs) -> None:
        first, stop, _ = order.share.indices(order.rows_per_update)
        shape = call_layout(rows.manifest, inputs, (stop - first) * steps.step)
        size = SLOTS * shape.bytes
        descriptor = shared_memory("podium-rows", size)
        try:
            memory = mmap.mmap(descriptor, size)
            kind = (rows.manifest.kind, vars(rows.model), rows.manifest.num_labels)
            weights = None if rows.class_weights is None else rows.class_weights.tolist()
            folder = (str(rows.folder), *kind, rows.masking_seed, weights)
            numbers = (len(rows), order.rows_per_update, order.seed, (first, stop), order.total)
            work = (folder, rows.sha256, numbers, steps.step, inputs.columns, inputs.labels)
            self._companion = Companion(fill_slots, descriptor, SLOTS, *work, memory=descriptor)
        finally:
            os.close(descriptor)  # the companion has its own, and both have the memory
        self.process = self._companion.process
        self._columns = [shape.views(memory, slot) for slot in range(SLOTS)]
        self._steps, self._taken = iter(steps), -1
        for slot in range(SLOTS):
            self._request(slot)

    def __iter__(self) -> RowPrefetcher:
        return self

    def __next__(self) -> PreparedCall:
        """Wait for the next call, and request a new one into the slot of the call before.

        Raises:
            RowsError: rows are damaged (with the file and the row).
            RowWorkerLost: the process that prepares rows has ended.
        """
        if self._taken >= 0:
            self._request(self._taken)
        try:
            self._taken, counts = self._companion.receive()
        except CompanionLost as lost:
            raise RowWorkerLost(str(lost)) from None
        return PreparedCall(self._columns[self._taken], counts)

    def _request(self, slot: int) -> None:
        """Let the companion fill a slot with the next call that is not requested yet."""
        step = next(self._steps, None)
        if step is not None:
            self._companion.send((step, slot))

    def close(self) -> None:
        """Kill the companion: no one else uses its work."""
        self.process.kill()
        self._companion.close()


@dataclass(frozen=True)
class HostCall:
    """Inputs of one call of a training executor."""

    tensors: Tuple[Tensor, ...]
    """[rows, width] int32 for each column (fp32 for float columns; one row of positions for each micro-batch where rows
    are not packed), then [rows, parts] fp32, a weight per part of the loss, then a teacher's logits. Valid until `mean`
    or the next call is requested."""
    counts: Counts
    """Counts of the whole call, over all instances."""
    mean: Callable[[Dict[str, float]], Dict[str, float]]
    """Function that averages figures over the instances; call it once, after the call."""


def training_inputs(head: Head, example: Batch) -> ProgramInputs:
    """Return the columns that the training program of a head reads from rows like these."""
    one_sequence = example.columns["cls_positions"].shape[1] == 1
    taught = tuple(name for name in head.teacher_columns if name in example.columns)
    columns = TOKENS + head.inputs + head.label_inputs(example) + taught
    return ProgramInputs(columns, head.label_columns(example), one_sequence, example.class_weights, len(taught))


class TrainingFeed:
    """Host calls of a training, in order.

    The number of labels of an update must be known before it begins, and under poprun each instance counts only its own
    rows. The counts of the next call are reduced together with the figures of this one, which saves a reduction.
    `micro_batches` are those of one update: accumulation x replicas, over all instances.
    """

    def __init__(
        self,
        source: RowSource,
        calls: int,
        updates: int,
        micro_batches: int,
        micro_batch_size: int,
        inputs: ProgramInputs,
        instances: Instances,
    ) -> None:
        self._source, self._left, self._instances = source, calls, instances
        self._updates, self._micro_batches, self._parts = updates, micro_batches, tuple(inputs.labels)
        self._class_weights = inputs.class_weights
        self._size_to_share = micro_batch_size if inputs.one_sequence else 0
        self._own = len(inputs.columns) - inputs.taught
        self._next: Optional[PreparedCall] = None
        self._counts: Optional[Counts] = None

    def __iter__(self) -> Generator[HostCall, None, None]:
        """Yield each call when its rows are ready."""
        while self._left:
            call = self._wait()
            counts = self._counts or self._sums(self._instances.mean(call.counts, "counts"))
            self._next, self._counts = None, None
            self._left -= 1
            tensors = tuple(torch.from_numpy(column) for column in call.columns)
            if self._size_to_share:
                tensors = share_positions(tensors, self._size_to_share)
            weights, end = self._weights(call.columns, counts), self._own
            yield HostCall((*tensors[:end], weights, *tensors[end:]), counts, self._mean)

    def _wait(self) -> PreparedCall:
        if self._next is None:
            self._next = next(self._source)
        return self._next

    def _mean(self, figures: Dict[str, float]) -> Dict[str, float]:
        """Average figures over the instances. Every instance calls this after every call, with the same names."""
        if self._instances.count == 1:
            return figures
        counts = self._wait().counts if self._left else {}
        means = self._instances.mean({**figures, **counts})
        if counts:
            self._counts = self._sums({name: means.pop(name) for name in counts})
        return means

    def _sums(self, means: Mapping[str, float]) -> Counts:
        """Return sums over the instances: whole numbers, other than sums of class weights."""
        sums = {name: mean * self._instances.count for name, mean in means.items()}
        weighted = self._class_weights is not None
        return {name: x if weighted and name not in WHOLE_COUNTS else round(x) for name, x in sums.items()}

    def _weights(self, columns: Sequence[np.ndarray], counts: Counts) -> Tensor:
        """Return the weight of a label, [rows, parts] fp32; with class weights, of every label, [rows, S].

        PopTorch averages gradients over the micro-batches of an update. With a weight of micro_batches / labels of the
        update for each label, the average is the mean over all labels, as on every runtime.
        """
        labels = [[counts[label_count(x, update)] or 1 for x in self._parts] for update in range(self._updates)]
        weights = np.repeat(self._micro_batches / np.array(labels), len(columns[0]) // self._updates, axis=0)
        if self._class_weights is not None:
            weights = weights * weigh(columns[self._own - 1], self._class_weights)
        return torch.from_numpy(weights.astype(np.float32))


def prefetch_calls(
    rows: RowFolder, order: UpdateRows, steps: range, inputs: ProgramInputs, say: Callable[[str], None]
) -> RowSource:
    """Return the rows of calls that begin with these updates, prepared in another process where possible.

    Where memory or processes are limited, the training continues without it, but slower.
    """
    try:
        return RowPrefetcher(rows, order, steps, inputs)
    except OSError as error:
        say(
            f"rows are prepared between calls, while the IPUs wait: no process or memory for it ({error}). "
            "Raise the memory limit of this container or host, or its limit on processes"
        )
    return read_calls(rows, order, steps, inputs)


def read_calls(rows: RowFolder, order: UpdateRows, steps: range, inputs: ProgramInputs) -> RowSource:
    """Return the rows of calls that begin with these updates, prepared when each call is taken.

    Raises:
        RowsError: from the generator: rows are damaged (with the file and the row).
    """
    shape = call_layout(rows.manifest, inputs, len(order(0, steps.step)))
    return _make_in_turn((row_reader(rows, order, step, steps.step) for step in steps), shape, steps.step, inputs)


def single_call(batch: Batch, inputs: ProgramInputs, updates: int) -> RowSource:
    """Return a source of one call, with rows of this instance that are in memory already."""
    columns = [batch.columns[name] for name in inputs.columns]
    shape = CallLayout(len(batch.rows), [(x.shape[1], input_type(str(x.dtype))) for x in columns])
    return _make_in_turn([batch.part], shape, updates, inputs)


def _make_in_turn(
    pieces: Iterable[RowReader], shape: CallLayout, updates: int, inputs: ProgramInputs
) -> Generator[PreparedCall, None, None]:
    columns = shape.views(mmap.mmap(-1, shape.bytes))
    for piece in pieces:
        yield PreparedCall(columns, fill_columns(piece, updates, inputs, columns))


def inference_tensors(batch: Batch, head: Head, rows: int, with_labels: bool = False) -> Tuple[Tensor, ...]:
    """Return the inputs of an inference executor, with labels for a program that evaluates: the rows of `batch`, padded
    with empty rows to `rows`."""
    labels = head.label_inputs(batch) if with_labels else ()
    empty = {"cls_positions": ABSENT, **dict.fromkeys(labels, IGNORED)}
    tensors = []
    for name in TOKENS + head.inputs + labels:
        values = batch.columns[name]
        padded: np.ndarray = np.full((rows, values.shape[1]), empty.get(name, 0), dtype=input_type(str(values.dtype)))
        padded[: len(values)] = values
        tensors.append(torch.from_numpy(padded))
    return tuple(tensors)


def share_positions(tensors: Sequence[Tensor], micro_batch_size: int) -> Tuple[Tensor, ...]:
    """Replace the positions of rows with one sequence each by one row of positions for each micro-batch.

    Positions are then looked up once, and their gradient is a sum over the rows instead of a scatter-add over all
    tokens. Padding gets positions as well, which nothing reads. The rows have passed call_columns.require_positions. Of
    the tensors, TOKENS, [rows, L] each, and further inputs, only the positions change, to
    [rows / micro_batch_size, L]: PopTorch gives each micro-batch its part.
    """
    ids, types, positions, *rest = tensors
    along = torch.arange(positions.shape[1], dtype=positions.dtype)
    return (ids, types, along.repeat(len(positions) // micro_batch_size, 1), *rest)


def split_logits(batch: Batch, head: Head, logits: np.ndarray) -> List[Logits]:
    """Return the logits of every sequence, from the fp32 output of the program; rows beyond the batch are ignored."""
    firsts, sequence_ids = batch.columns["cls_positions"], batch.columns["sequence_ids"]
    present = firsts != ABSENT
    of_rows = logits[: len(firsts)]
    real_logits = of_rows[present] if "cls_positions" in head.inputs else of_rows[sequence_ids != 0]
    lengths = count_tokens(sequence_ids, firsts.shape[1])[present]
    return head.name_logits(real_logits, lengths, batch.columns["feature_ids"][present])
