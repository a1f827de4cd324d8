"""Answers of an exported model: onnxruntime computes the logits of packed rows, one sequence per call as a client does.

A quantized model chooses the scale of its activations per call, so its logits depend on what else a batch contains.
One sequence a call, each on one thread, has one result. Several threads call the model at the same time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ipu_model.core.files import new_file
from tasks.rows.row_files import from_arrow
from tasks.stage.errors import InputError, require_packages
from tasks.stage.parallel import StageProgress
from tasks.stage.row_folders import read_manifest

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
ANSWERING, EXPORTING = ("onnxruntime",), ("onnx", "onnxruntime", "onnxscript", "transformers")
"""Packages that answering and exporting need."""
READ_AT_ONCE = 1024
"""Sequences per record batch."""
FEATURE_ID = "feature_id"
LOGITS = "tensor(float)"
"""Type of an encoder's outputs."""


@dataclass(frozen=True)
class EncodedSequence:
    """One sequence of packed rows, alone."""

    number: int
    """Its feature id."""
    input_ids: np.ndarray
    token_type_ids: np.ndarray


def count_threads() -> int:
    """Return the number of threads that this process may use."""
    return int(os.environ.get("PODIUM_THREADS") or len(os.sched_getaffinity(0)))


def read_sequences(rows: Path) -> Iterator[EncodedSequence]:
    """Yield every sequence of a folder of rows, in the order of the rows."""
    for name in read_manifest(rows).files:
        with pa.memory_map(str(rows / name)) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                columns = {
                    column: from_arrow(batch.column(column).flatten()).reshape(len(batch), -1)
                    for column in ("input_ids", "token_type_ids", "sequence_ids", "feature_ids")
                }
                for row, slot in np.argwhere(columns["feature_ids"] >= 0):
                    members = columns["sequence_ids"][row] == slot + 1
                    ids, types = (
                        columns[column][row][members].astype(np.int64) for column in ("input_ids", "token_type_ids")
                    )
                    yield EncodedSequence(int(columns["feature_ids"][row, slot]), ids, types)


def import_onnxruntime() -> ModuleType:
    """Import onnxruntime without its telemetry, which reports its use over the network."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read when it is loaded
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    return onnxruntime


def open_session(path: Path, threads: int = 1) -> InferenceSession:
    """Load an exported model.

    Raises:
        InputError: onnxruntime is not installed, or the file is not a model.
    """
    require_packages("export", ANSWERING)
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # its errors are raised as well
    with name_file(path):
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    if foreign := {tensor.name for tensor in session.get_inputs()} - {*INPUTS}:
        raise InputError(f"{path} is not an ONNX model of an encoder (it has the input {min(foreign)})")
    for output in session.get_outputs():
        if output.type != LOGITS:
            raise InputError(f"{path} is not an ONNX model of an encoder (its output {output.name} is {output.type})")
    return session


@contextlib.contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Turn errors of onnxruntime, which derive from Exception alone, into an InputError that names the file."""
    state = import_onnxruntime().capi.onnxruntime_pybind11_state
    errors = tuple(value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception))
    try:
        yield
    except errors as error:
        raise InputError(f"{path} is not an ONNX model of an encoder ({str(error).splitlines()[0]})") from None


def run_session(session: InferenceSession, input_ids: np.ndarray, token_type_ids: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of a model for sequences of equal length, [batch, length] each."""
    values = dict(zip(INPUTS, (input_ids, np.ones_like(input_ids), token_type_ids), strict=True))
    return session.run(None, {tensor.name: values[tensor.name] for tensor in session.get_inputs()})


def answer_rows(path: Path, rows: Path, output: Path) -> tuple[int, int, float]:
    """Write the logits of a folder of rows, as the stage predict writes them.

    Args:
        path: exported model.
        output: Arrow IPC file.

    Returns:
        The number of sequences and of tokens, and the seconds that it took.

    Raises:
        InputError: the file is not a model, or a sequence is missing.
    """
    session, threads, started_at = open_session(path), count_threads(), time.perf_counter()
    progress = StageProgress(f"{path.name}", "sequences", read_manifest(rows).sequences)
    names = [tensor.name for tensor in session.get_outputs()]
    lists = [pa.field(name, pa.list_(pa.float32()), nullable=False) for name in names]
    schema = pa.schema([pa.field(FEATURE_ID, pa.int32(), nullable=False), *lists])
    waiting: dict[int, list[np.ndarray]] = {}
    written = tokens = 0

    def answer(encoded: EncodedSequence) -> tuple[EncodedSequence, list[np.ndarray]]:
        return encoded, [
            x.reshape(-1) for x in run_session(session, encoded.input_ids[None], encoded.token_type_ids[None])
        ]

    with (
        name_file(path),
        new_file(output) as partial,
        pa.ipc.new_file(str(partial), schema) as file,
        ThreadPoolExecutor(threads) as pool,
    ):

        def write(count: int) -> None:
            nonlocal written
            ready = [waiting.pop(number) for number in range(written, written + count)]
            ids = pa.array(range(written, written + count), pa.int32())
            columns = [pa.array([row[index] for row in ready], pa.list_(pa.float32())) for index in range(len(names))]
            file.write_batch(pa.record_batch([ids, *columns], schema=schema))
            written += count

        sequences = read_sequences(rows)
        while group := list(itertools.islice(sequences, READ_AT_ONCE)):
            for sequence, logits in pool.map(answer, group):
                waiting[sequence.number] = logits
                tokens += len(sequence.input_ids)
                progress.add(1)
            while all(number in waiting for number in range(written, written + READ_AT_ONCE)):
                write(READ_AT_ONCE)
        if sorted(waiting) != list(range(written, written + len(waiting))):
            raise InputError(f"{rows} lacks sequences. Make the rows again")
        if waiting:
            write(len(waiting))
    return written, tokens, time.perf_counter() - started_at
