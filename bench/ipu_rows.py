"""How long IPUs wait for rows: `python -m bench.ipu_rows`, with a stand-in for their work that keeps Python's lock.

A call of an executor keeps that lock for the seconds that an update takes at the published rate. The seconds that the
host then needs until it could begin the next call are what the IPUs wait: with rows made in turn, in the process of the
training, and with rows made ahead by another one. With --instances: the CPU seconds of that process for an update, for
each number of instances that share its rows; one after the other, as each has cores of its own where they train. With
--memory: what both processes hold as calls go by.
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
from ipu_model.distributed.ranks import Instances
from ipu_model.ipu.call_columns import Inputs
from ipu_model.ipu.feeding import SLOTS, Ahead, Feed, RowSource, in_turn, training_inputs
from ipu_model.models.config import ModelConfig
from ipu_model.rows.reading import RowFolder, UpdateRows
from tasks.rows.row_files import RowWriter

MODEL = ModelConfig(vocab_size=30522)
WRITTEN_AT_ONCE = 8192
MICRO_BATCH = 2
"""Rows; the fewest of a preset that pre-trains on rows which are not packed."""
MEMORY_CALL_SECONDS = 0.001
"""For --memory, which asks for many calls and not for how long they take."""
PROMISE = 0.005
"""Of an update: what the host may let the IPUs wait."""


@dataclass(frozen=True)
class Case:
    """A published training."""

    name: str
    head: str
    rows: int
    """Of one update."""
    row_length: int
    max_sequences: int
    max_predictions: int
    rows_per_second: float
    source: str

    @property
    def seconds(self) -> float:
        """Of one update."""
        return self.rows / self.rows_per_second

    @property
    def kind(self) -> str:
        """Of its rows."""
        return heads.get_head(self.head).row_kind(0)


GC, SDK = "Graphcore's performance results, ", ", SDK 3.3"
CASES = (
    Case("base, phase 1", "pretraining", 65536, 128, 1, 20, 15911, f"{GC}Bow Pod16, PyTorch{SDK}"),
    Case("base, phase 2", "pretraining", 16384, 512, 1, 76, 3656, f"{GC}Bow Pod16, PopART"),
    Case("large, phase 1", "pretraining", 56064, 128, 3, 23, 18494, f"{GC}Bow Pod64, packed, PyTorch{SDK}"),
    Case("large, phase 2", "pretraining", 8192, 512, 3, 79, 6543, f"{GC}Bow Pod64, packed, PyTorch{SDK}"),
    Case("base, SQuAD", "question_answering", 256, 384, 1, 0, 720.877, "Hugging Face's notebook, Mk2 POD16"),
    Case("large, SQuAD", "question_answering", 256, 384, 1, 0, 1183, f"{GC}Bow Pod16, PopART"),
)
"""The fastest that was published of each: the shortest updates."""


def write_folder(folder: Path, case: Case, rows: int) -> RowFolder:
    """Full rows of random tokens, in sequences of equal length."""
    shape = (case.row_length, case.max_sequences, case.max_predictions, MODEL.vocab_size)
    folder.mkdir()
    with RowWriter(folder, case.kind, *shape) as writer:
        for first in range(0, rows, WRITTEN_AT_ONCE):
            writer.write(_columns(case, min(WRITTEN_AT_ONCE, rows - first), first))
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
    """What stands between two calls of an executor."""

    seconds: float
    cpu_seconds: float
    """Of this thread: less than `seconds` where it waits, for rows or, on a busy host, for a core."""


def waits(source: RowSource, feed: Feed, seconds: float) -> Iterator[Wait]:
    """From now to the first of the calls, which keep Python's lock for `seconds`, then between every two."""
    execute = ctypes.PyDLL(None).usleep
    with closing(source):
        began, used = time.perf_counter(), time.thread_time()
        for _ in feed:
            yield Wait(time.perf_counter() - began, time.thread_time() - used)
            execute(round(seconds * 1e6))
            began, used = time.perf_counter(), time.thread_time()


def measure(case: Case, updates: int, folder: Path) -> None:
    """Print what the IPUs wait before an update, with rows made in turn and ahead."""
    rows = write_folder(folder / case.name, case, 2 * case.rows)
    order, steps = UpdateRows(len(rows), case.rows, SEED), range(updates + 1)
    inputs = training_inputs(heads.get_head(case.head), rows.take(np.arange(1)))
    print(f"{case.name}: {case.rows:,} rows, an update takes {case.seconds:.3f} s ({case.source})")
    print_waits("in turn", case, in_turn(rows, order, steps, inputs), inputs, updates)
    print_waits("ahead", case, Ahead(rows, order, steps, inputs), inputs, updates)


def print_waits(name: str, case: Case, source: RowSource, inputs: Inputs, updates: int) -> None:
    """One line of `measure`."""
    feed = Feed(source, updates + 1, 1, case.rows // MICRO_BATCH, MICRO_BATCH, inputs, Instances())
    first, *found = waits(source, feed, case.seconds)
    median = statistics.median(wait.seconds for wait in found)
    cpu = statistics.median(wait.cpu_seconds for wait in found)
    verdict = "met" if median < PROMISE * case.seconds else "NOT met"
    print(
        f"  {name:8} {median * 1e3:8.2f} ms, {median / case.seconds:8.3%} of an update (at work {cpu * 1e3:.2f} ms, "
        f"{cpu / case.seconds:.3%}; before the first call {first.seconds:.2f} s); under {PROMISE:.1%}: {verdict}"
    )


def cpu_seconds(process: int) -> float:
    """Of a process so far (schedstat of proc(5), in nanoseconds)."""
    return int(Path(f"/proc/{process}/schedstat").read_text(encoding="utf-8").split()[0]) / 1e9


def work(rows: RowFolder, case: Case, instances: int, updates: int) -> list[float]:
    """CPU seconds that the worker of each instance took for so many updates, its start included."""
    inputs = training_inputs(heads.get_head(case.head), rows.take(np.arange(1)))
    found = []
    for index in range(instances):
        order = UpdateRows(len(rows), case.rows, SEED, Instances(index, instances).share(case.rows))
        with closing(Ahead(rows, order, range(updates), inputs)) as source:
            for _ in range(updates):
                next(source)
            found.append(cpu_seconds(source.process.pid))
    return found


def main() -> None:
    """Read the command line and print what was measured."""
    parser = argparse.ArgumentParser(description="How long IPUs wait for rows, with a stand-in for their work.")
    parser.add_argument("--only", choices=[case.name for case in CASES], help="one training")
    parser.add_argument("--updates", type=int, default=5, help="measured of each, after a first one")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--instances", type=int, nargs="+", help="work of each instance instead, for these numbers")
    instead.add_argument("--memory", action="store_true", help="memory instead, at the first of the calls and after it")
    asked = parser.parse_args()
    cases = [case for case in CASES if asked.only in (None, case.name)]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases if asked.instances is None else cases[:1]:
            if asked.memory:
                remember(case, asked.updates, write_folder(Path(folder) / case.name, case, 2 * case.rows))
                continue
            if asked.instances is None:
                measure(case, asked.updates, Path(folder))
                continue
            share(case, asked.instances, asked.updates, write_folder(Path(folder) / "rows", case, 2 * case.rows))


def own_megabytes(process: int | str) -> float:
    """Memory of a process that no file stands behind and none shares (proc(5)), MB of 2**20."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def remember(case: Case, updates: int, rows: RowFolder) -> None:
    """Print what the training's process and its worker hold as calls go by."""
    inputs = training_inputs(heads.get_head(case.head), rows.take(np.arange(1)))
    source = Ahead(rows, UpdateRows(len(rows), case.rows, SEED), range(updates), inputs)
    feed = Feed(source, updates, 1, case.rows // MICRO_BATCH, MICRO_BATCH, inputs, Instances())
    seen = [
        (own_megabytes("self"), own_megabytes(source.process.pid)) for _ in waits(source, feed, MEMORY_CALL_SECONDS)
    ]
    for call in sorted({min(SLOTS, updates - 1), updates // 4, updates // 2, updates - 1}):
        print(f"{case.name}, call {call + 1} of {updates}: {seen[call][0]:.1f} MB, its worker {seen[call][1]:.1f} MB")


def share(case: Case, numbers: list[int], updates: int, rows: RowFolder) -> None:
    """Print what an update costs each of so many instances, beside its part of what it costs the first number."""
    alone = math.nan
    for count in numbers:
        start, whole = (statistics.mean(work(rows, case, count, calls)) for calls in (1, updates + 1))
        each = (whole - start) / updates
        alone = each * count if math.isnan(alone) else alone
        print(
            f"{case.name}, instances: {count}, CPU seconds of each: an update {each:.4f} "
            f"(1/{count}: {alone / count:.4f}), the start {start - each:.2f}"
        )


if __name__ == "__main__":
    main()
