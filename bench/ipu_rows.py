"""Time that IPUs wait for rows: `python -m bench.ipu_rows`, with simulated IPU calls that hold Python's GIL.

A simulated executor call holds the GIL for the seconds of an update at the published rate. The IPUs then wait as long
as the host needs until it can start the next call. This is measured with rows prepared in the training process, and
with rows prepared ahead by another process. With --instances, it measures the CPU seconds per update of that process
for each number of instances that share its rows, one instance after the other, because in a real training each has its
own cores. With --memory, it measures the memory of both processes over the calls.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.setup import SEED
from ipu_model import heads
from ipu_model.distributed.instances import Instances
from ipu_model.ipu.call_columns import ProgramInputs
from ipu_model.ipu.host_calls import SLOTS, RowPrefetcher, RowSource, TrainingFeed, read_calls, training_inputs
from ipu_model.models.config import ModelConfig
from ipu_model.rows.row_folder import RowFolder, UpdateRows
from tasks.rows.row_files import RowWriter

MODEL = ModelConfig(vocab_size=30522)
ROWS_PER_WRITE = 8192
MICRO_BATCH = 2
"""Rows; the minimum of the presets that pre-train on unpacked rows."""
MEMORY_CALL_SECONDS = 0.001
"""Call time for --memory, which needs many calls of any length."""
PROMISE = 0.005
"""Target: maximum wait of the IPUs as a share of an update."""


@dataclass(frozen=True)
class Case:
    """A published training."""

    name: str
    head: str
    rows: int
    """Rows per update."""
    row_length: int
    max_sequences: int
    max_predictions: int
    rows_per_second: float
    source: str

    @property
    def seconds(self) -> float:
        """Seconds per update."""
        return self.rows / self.rows_per_second

    @property
    def kind(self) -> str:
        """Kind of its rows."""
        return heads.get_head(self.head).row_kinds(0)[0]


GC, SDK = "Graphcore's performance results, ", ", SDK 3.3"
CASES = (
    Case("base, phase 1", "pretraining", 65536, 128, 1, 20, 15911, f"{GC}Bow Pod16, PyTorch{SDK}"),
    Case("base, phase 2", "pretraining", 16384, 512, 1, 76, 3656, f"{GC}Bow Pod16, PopART"),
    Case("large, phase 1", "pretraining", 56064, 128, 3, 23, 18494, f"{GC}Bow Pod64, packed, PyTorch{SDK}"),
    Case("large, phase 2", "pretraining", 8192, 512, 3, 79, 6543, f"{GC}Bow Pod64, packed, PyTorch{SDK}"),
    Case("base, SQuAD", "question_answering", 256, 384, 1, 0, 720.877, "Hugging Face's notebook, Mk2 POD16"),
    Case("large, SQuAD", "question_answering", 256, 384, 1, 0, 1183, f"{GC}Bow Pod16, PopART"),
)
"""The fastest published training of each kind, with the shortest updates."""


def write_folder(folder: Path, case: Case, rows: int) -> RowFolder:
    """Write full rows of random tokens, in sequences of equal length."""
    shape = (case.row_length, case.max_sequences, case.max_predictions, MODEL.vocab_size)
    folder.mkdir()
    with RowWriter(folder, case.kind, *shape) as writer:
        for first in range(0, rows, ROWS_PER_WRITE):
            writer.write(_columns(case, min(ROWS_PER_WRITE, rows - first), first))
        writer.finish("0" * 64, SEED)
    return RowFolder(folder, case.kind, MODEL)


def _columns(case: Case, rows: int, first: int) -> dict[str, np.ndarray]:
    length, sequences, masked = case.row_length, case.max_sequences, case.max_predictions
    rng = np.random.Generator(np.random.PCG64(first))
    own = length // sequences
    number = np.minimum(np.arange(length) // own, sequences - 1)
    starts = np.arange(sequences) * own

    def everywhere(values: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
        return np.broadcast_to(values, (rows, len(values))).astype(dtype)

    columns = {
        "input_ids": rng.integers(5, MODEL.vocab_size, (rows, length), dtype=np.uint16),
        "token_type_ids": everywhere((np.arange(length) - starts[number]) * 2 // own % 2, np.uint8),
        "position_ids": everywhere(np.arange(length) - starts[number], np.uint16),
        "sequence_ids": everywhere(number + 1, np.uint8),
        "cls_positions": everywhere(starts, np.int16),
    }
    if case.head == "pretraining":
        columns["masked_positions"] = everywhere(1 + np.arange(masked) * (length - 2) // masked, np.int16)
        columns["masked_labels"] = rng.integers(5, MODEL.vocab_size, (rows, masked), dtype=np.int32)
        columns["next_sentence_labels"] = rng.integers(0, 2, (rows, sequences), dtype=np.int8)
        return columns
    columns["feature_ids"] = np.arange(first, first + rows, dtype=np.int32)[:, None]
    columns["start_positions"] = rng.integers(1, length // 2, (rows, 1), dtype=np.int16)
    columns["end_positions"] = rng.integers(length // 2, length, (rows, 1), dtype=np.int16)
    return columns


@dataclass(frozen=True)
class Wait:
    """Time between two calls of an executor."""

    seconds: float
    cpu_seconds: float
    """CPU time of this thread: less than `seconds` if it waits for rows or, on a busy host, for a core."""


def measure_waits(source: RowSource, feed: TrainingFeed, seconds: float) -> Iterator[Wait]:
    """Yield the wait before the first call and between calls, each of which holds the GIL for `seconds`."""
    execute = ctypes.PyDLL(None).usleep
    with closing(source):
        began, used = time.perf_counter(), time.thread_time()
        for _ in feed:
            yield Wait(time.perf_counter() - began, time.thread_time() - used)
            execute(round(seconds * 1e6))
            began, used = time.perf_counter(), time.thread_time()


def measure(case: Case, updates: int, folder: Path) -> None:
    """Print the wait of the IPUs before an update, with rows prepared on demand and ahead."""
    rows = write_folder(folder / case.name, case, 2 * case.rows)
    order, steps = UpdateRows(len(rows), case.rows, SEED), range(updates + 1)
    inputs = training_inputs(heads.get_head(case.head), rows.take(np.arange(1)))
    print(f"{case.name}: {case.rows:,} rows, an update takes {case.seconds:.3f} s ({case.source})")
    print_waits("on demand", case, read_calls(rows, order, steps, inputs), inputs, updates)
    print_waits("ahead", case, RowPrefetcher(rows, order, steps, inputs), inputs, updates)


def print_waits(name: str, case: Case, source: RowSource, inputs: ProgramInputs, updates: int) -> None:
    """Print one line of `measure`."""
    feed = TrainingFeed(source, updates + 1, 1, case.rows // MICRO_BATCH, MICRO_BATCH, inputs, Instances())
    first, *further = measure_waits(source, feed, case.seconds)
    median = statistics.median(wait.seconds for wait in further)
    cpu = statistics.median(wait.cpu_seconds for wait in further)
    verdict = "met" if median < PROMISE * case.seconds else "NOT met"
    print(
        f"  {name:9} {median * 1e3:8.2f} ms, {median / case.seconds:8.3%} of an update (CPU {cpu * 1e3:.2f} ms, "
        f"{cpu / case.seconds:.3%}; before the first call {first.seconds:.2f} s); under {PROMISE:.1%}: {verdict}"
    )


def read_cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process so far (schedstat of proc(5), in nanoseconds)."""
    return int(Path(f"/proc/{process}/schedstat").read_text(encoding="utf-8").split()[0]) / 1e9


def measure_work(rows: RowFolder, case: Case, instances: int, updates: int) -> list[float]:
    """Return the CPU seconds of each instance's row worker for `updates` updates, including its start."""
    inputs = training_inputs(heads.get_head(case.head), rows.take(np.arange(1)))
    seconds = []
    for index in range(instances):
        order = UpdateRows(len(rows), case.rows, SEED, Instances(index, instances).share(case.rows))
        with closing(RowPrefetcher(rows, order, range(updates), inputs)) as source:
            for _ in range(updates):
                next(source)
            seconds.append(read_cpu_seconds(source.process.pid))
    return seconds


def main() -> None:
    """Parse the command line and print the measurements."""
    parser = argparse.ArgumentParser(description="Measure how long IPUs wait for rows, with simulated IPU calls.")
    parser.add_argument("--only", choices=[case.name for case in CASES], help="measure one training")
    parser.add_argument("--updates", type=int, default=5, help="updates to measure, after a first one")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--instances", type=int, nargs="+", help="measure CPU time for these numbers of instances")
    instead.add_argument("--memory", action="store_true", help="measure memory over the calls")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in (None, case.name)]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases if options.instances is None else cases[:1]:
            if options.memory:
                print_memory(case, options.updates, write_folder(Path(folder) / case.name, case, 2 * case.rows))
                continue
            if options.instances is None:
                measure(case, options.updates, Path(folder))
                continue
            print_shares(
                case, options.instances, options.updates, write_folder(Path(folder) / "rows", case, 2 * case.rows)
            )


def measure_private_mb(process: int | str) -> float:
    """Return the private anonymous memory of a process (proc(5)) in MB of 2**20 bytes."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def print_memory(case: Case, updates: int, rows: RowFolder) -> None:
    """Print the memory of the training process and its row worker over the calls."""
    inputs = training_inputs(heads.get_head(case.head), rows.take(np.arange(1)))
    source = RowPrefetcher(rows, UpdateRows(len(rows), case.rows, SEED), range(updates), inputs)
    feed = TrainingFeed(source, updates, 1, case.rows // MICRO_BATCH, MICRO_BATCH, inputs, Instances())
    sizes = [
        (measure_private_mb("self"), measure_private_mb(source.process.pid))
        for _ in measure_waits(source, feed, MEMORY_CALL_SECONDS)
    ]
    for call in sorted({min(SLOTS, updates - 1), updates // 4, updates // 2, updates - 1}):
        print(f"{case.name}, call {call + 1} of {updates}: {sizes[call][0]:.1f} MB, worker {sizes[call][1]:.1f} MB")


def print_shares(case: Case, numbers: list[int], updates: int, rows: RowFolder) -> None:
    """Print the cost of an update per instance, and its ideal share of the cost with the first number of instances."""
    alone = math.nan
    for count in numbers:
        start, whole = (statistics.mean(measure_work(rows, case, count, calls)) for calls in (1, updates + 1))
        each = (whole - start) / updates
        alone = each * count if math.isnan(alone) else alone
        print(
            f"{case.name}, instances: {count}, CPU seconds each: per update {each:.4f} "
            f"(1/{count}: {alone / count:.4f}), start {start - each:.2f}"
        )


if __name__ == "__main__":
    main()
