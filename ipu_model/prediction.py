"""Start and end logits of every feature, in the order of their ids."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Dict, Generator

import numpy as np
import pyarrow as pa

from ipu_model.ahead import ahead
from ipu_model.data import Batch, RowFolder
from ipu_model.errors import RowsError
from ipu_model.files import new_file
from ipu_model.process import StopRequest
from ipu_model.progress import Emit
from ipu_model.runtime import AnswerLogits, Runtime
from ipu_model.training import Totals

LOGITS_SCHEMA = pa.schema(
    [
        pa.field("feature_id", pa.int32(), nullable=False),
        pa.field("start_logits", pa.list_(pa.float32()), nullable=False),
        pa.field("end_logits", pa.list_(pa.float32()), nullable=False),
    ]
)
FEATURES_PER_RECORD_BATCH = 1024


def predict(runtime: Runtime, rows: RowFolder, size: int, output: Path, emit: Emit, stop: StopRequest) -> Totals:
    """Write the logits of all features to the Arrow IPC file `output`, which appears whole.

    Args:
        size: Rows of one call.

    Raises:
        RowsError: a feature is missing or there twice.
        Terminated: SIGTERM came; nothing was written.
    """
    totals, started = Totals(), time.perf_counter()
    found: Dict[int, AnswerLogits] = {}
    told = started
    done = 0
    with closing(_batches(runtime, rows, size)) as batches:
        for batch in batches:
            stop.check()
            for answer in runtime.predict(batch):
                if answer.feature_id in found:
                    raise RowsError(f"{rows.folder} holds feature {answer.feature_id} twice; make the rows again")
                found[answer.feature_id] = answer
            totals.sequences += batch.sequences
            totals.real_tokens += batch.real_tokens
            done, now = done + len(batch.rows), time.perf_counter()
            if done == len(rows) or now - told > 2:
                emit("predicted", rows=done, of=len(rows))
                told = now
    missing = [i for i in range(len(found)) if i not in found]
    if missing:
        raise RowsError(f"{rows.folder} lacks feature {missing[0]} of 0..{len(found) - 1}; make the rows again")
    totals.seconds = time.perf_counter() - started
    _write(output, found)
    return totals


def _batches(runtime: Runtime, rows: RowFolder, size: int) -> Generator[Batch, None, None]:
    def read(start: int) -> Batch:
        return runtime.prepare(rows.take(np.arange(start, min(start + size, len(rows)))))

    return ahead(read, range(0, len(rows), size), runtime.reads_ahead)


def _write(output: Path, found: Dict[int, AnswerLogits]) -> None:
    with new_file(output) as partial, pa.ipc.new_file(str(partial), LOGITS_SCHEMA) as writer:
        for start in range(0, len(found), FEATURES_PER_RECORD_BATCH):
            ids = range(start, min(start + FEATURES_PER_RECORD_BATCH, len(found)))
            columns = [
                pa.array(ids, pa.int32()),
                pa.array([found[i].start for i in ids], pa.list_(pa.float32())),
                pa.array([found[i].end for i in ids], pa.list_(pa.float32())),
            ]
            writer.write_batch(pa.record_batch(columns, schema=LOGITS_SCHEMA))
