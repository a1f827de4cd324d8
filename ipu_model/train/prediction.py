"""Prediction: write the logits of all features or sequences in the order of their IDs."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Dict, Generator, List

import numpy as np
import pyarrow as pa

from ipu_model import heads
from ipu_model.distributed.process import StopRequest
from ipu_model.errors import RowsError
from ipu_model.files import new_file
from ipu_model.models.head import Logits
from ipu_model.progress import Emit
from ipu_model.rows.format import to_arrow
from ipu_model.rows.row_folder import Batch, RowFolder, prefetch
from ipu_model.runtimes.runtime import Runtime
from ipu_model.train.training import Totals

FEATURES_PER_RECORD_BATCH = 1024


def logits_schema(head: str) -> pa.Schema:
    """Return the schema of a logits file: feature_id, and a list of numbers for each of Head.logits."""
    lists = [pa.field(name, pa.list_(pa.float32()), nullable=False) for name in heads.get_head(head).logits]
    return pa.schema([pa.field("feature_id", pa.int32(), nullable=False), *lists])


def predict(
    runtime: Runtime, rows: RowFolder, head: str, size: int, output: Path, emit: Emit, stop: StopRequest
) -> Totals:
    """Write the logits of all features atomically to the Arrow IPC file `output`.

    Args:
        head: Name of the model's head, which defines the logits.
        size: Rows per call.

    Raises:
        RowsError: a feature is missing or occurs twice.
        Terminated: SIGTERM came; nothing was written.
    """
    totals, started = Totals(), time.perf_counter()
    emitted, done = started, 0
    with new_file(output) as partial, pa.ipc.new_file(str(partial), logits_schema(head)) as arrow:
        writer = _OrderedWriter(arrow, rows.folder, head)
        with closing(_batches(runtime, rows, size)) as batches:
            for batch in batches:
                stop.check()
                for answer in runtime.predict(batch):
                    writer.add(answer)
                totals.sequences += batch.sequences
                totals.real_tokens += batch.real_tokens
                done, now = done + len(batch.rows), time.perf_counter()
                if done == len(rows) or now - emitted > 2:
                    eta = (now - started) / done * (len(rows) - done)
                    emit("predicted", rows=done, of=len(rows), eta_seconds=round(eta, 1))
                    emitted = now
        writer.finish()
    totals.seconds = time.perf_counter() - started
    return totals


def _batches(runtime: Runtime, rows: RowFolder, size: int) -> Generator[Batch, None, None]:
    def read(start: int) -> Batch:
        return runtime.prepare(rows.take(np.arange(start, min(start + size, len(rows)))))

    return prefetch(read, range(0, len(rows), size), runtime.reads_ahead)


class _OrderedWriter:
    """Writer of features in the order of their IDs, each as soon as all before it have arrived.

    Rows are packed from one chunk of questions at a time, so a feature waits at most for those of its chunk:
    memory does not grow with the number of questions.
    """

    def __init__(self, arrow: pa.RecordBatchFileWriter, folder: Path, head: str) -> None:
        self._arrow, self._folder, self._head = arrow, folder, head
        self._waiting: Dict[int, Logits] = {}
        self._ready: List[Logits] = []
        self._written = 0

    def add(self, answer: Logits) -> None:
        """Add the logits of a feature.

        Raises:
            RowsError: the feature was added before.
        """
        following = self._written + len(self._ready)
        if answer.feature_id < following or answer.feature_id in self._waiting:
            raise RowsError(f"{self._folder} contains feature {answer.feature_id} twice; make the rows again")
        self._waiting[answer.feature_id] = answer
        while following in self._waiting:
            self._ready.append(self._waiting.pop(following))
            following += 1
            if len(self._ready) == FEATURES_PER_RECORD_BATCH:
                self._write()

    def finish(self) -> None:
        """Write the remaining features.

        Raises:
            RowsError: a feature is missing.
        """
        self._write()
        if self._waiting:
            last = max(self._waiting)
            raise RowsError(f"{self._folder} lacks feature {self._written} of 0..{last}; make the rows again")

    def _write(self) -> None:
        if not self._ready:
            return
        ids = np.arange(self._written, self._written + len(self._ready), dtype=np.int32)
        lists = [_lists([x.columns[name] for x in self._ready]) for name in heads.get_head(self._head).logits]
        self._arrow.write_batch(pa.record_batch([to_arrow(ids), *lists], schema=logits_schema(self._head)))
        self._written += len(self._ready)
        self._ready = []


def _lists(logits: List[np.ndarray]) -> pa.ListArray:
    """Return one list per array, without a Python object per number."""
    borders = np.concatenate([[0], np.cumsum([len(x) for x in logits])]).astype(np.int32)
    return pa.ListArray.from_arrays(to_arrow(borders), to_arrow(np.concatenate(logits)))
