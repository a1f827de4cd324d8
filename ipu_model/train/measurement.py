"""Measurement of a job on generated rows: `python -m ipu_model --measure job.json`.

The `rows` folder of the job needs a manifest only. A few updates of at most two micro-batches are timed. Then held-out
rows are evaluated and the state is copied, as the job would do. Nothing is written and nothing is trained: the learning
rate is 0, and the process ends.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, Optional

import numpy as np
import torch
from torch import Tensor

from ipu_model import heads
from ipu_model.core.errors import ConfigError, OutOfMemory
from ipu_model.core.progress import Emit
from ipu_model.distributed.process import peak_memory_mb
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import JobPlan, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import FEATURE_IDS, PREDICTIONS, TOKENS, Manifest, read_manifest
from ipu_model.rows.row_folder import Batch, RowFolder
from ipu_model.runtimes.runtime import Runtime
from ipu_model.runtimes.selection import choose_precision, choose_runtime, make_runtime, plan_compilation
from ipu_model.train.auto_compile import choose_compilation
from ipu_model.train.auto_precision import choose_faster
from ipu_model.train.preparation import make_model

MIN_SEQUENCE_TOKENS = 3
DEVIATIONS = 3.0
"""Standard deviations by which the fullest of some hundred micro-batches exceeds the mean."""
COMMON = ("input_ids", "token_type_ids", "position_ids", "sequence_ids", "cls_positions")
BUDGET_SECONDS = 10.0
"""Compute time for the timed rounds; three times as long if MIN_ROUNDS rounds take more."""
WALL_SECONDS = 60.0
"""Wall time limit for the timed rounds; a round that takes longer is timed once."""
MAX_ROUNDS, MIN_ROUNDS = 40, 20
"""Timed rounds: fragmentation grows for about twenty updates, because micro-batches differ in size."""
MB = float(1 << 20)


class GeneratedRows(RowFolder):
    """Generator of any number of rows, used in place of a row folder; their manifest may be assumed.

    The token count of a row is uniform around the mean, within the limits of a row.
    """

    def __init__(self, manifest: Manifest, model: ModelConfig) -> None:
        self.manifest, self.model = manifest, model
        self._mean = manifest.real_tokens / manifest.rows
        self._spread = max(0.0, min(manifest.row_length - self._mean, self._mean - MIN_SEQUENCE_TOKENS))

    def take(self, rows: np.ndarray, epochs: Optional[np.ndarray] = None) -> Batch:
        """Generate the rows with these numbers; a number always gives the same row."""
        return self._batch(rows, None)

    def take_fullest(self, count: int) -> Batch:
        """Generate `count` rows with as many tokens as the fullest of some hundred micro-batches of that size."""
        above = min(1.0, DEVIATIONS / np.sqrt(3 * count))  # an even spread has a deviation of 1 / sqrt(3)
        return self._batch(np.arange(count), self._mean + above * self._spread)

    def _batch(self, rows: np.ndarray, tokens: Optional[float]) -> Batch:
        manifest = self.manifest
        kinds = manifest.columns
        shapes = {x.name: (len(rows), getattr(manifest, x.width)) for x in kinds}
        columns = {x.name: np.full(shapes[x.name], x.unused, dtype=x.type) for x in kinds}
        for index, number in enumerate(rows):
            rng = np.random.Generator(np.random.PCG64(int(number)))
            total = self._mean + self._spread * rng.uniform(-1, 1) if tokens is None else tokens
            self._fill({name: values[index] for name, values in columns.items()}, self._lengths(total, rng), rng)
        return Batch(np.asarray(rows, dtype=np.int64), columns)

    def _lengths(self, tokens: float, rng: np.random.Generator) -> List[int]:
        """Split the tokens of a row into about `packing_factor` sequences; fewer sequences take more memory."""
        manifest = self.manifest
        count = round(manifest.packing_factor * rng.uniform(0.6, 1.4))
        count = max(1, min(count, manifest.max_sequences, int(tokens) // MIN_SEQUENCE_TOKENS))
        if manifest.unit > 1:  # a row is an example, whole
            count = manifest.unit
        shares = rng.uniform(0.5, 1.5, count)
        lengths = np.maximum(MIN_SEQUENCE_TOKENS, tokens * shares / shares.sum()).astype(int)
        if manifest.unit > 1:
            return np.minimum(lengths, manifest.row_length // manifest.unit).tolist()
        return [int(length) for length in lengths[np.cumsum(lengths) <= manifest.row_length]]

    def _fill(self, row: Dict[str, np.ndarray], lengths: List[int], rng: np.random.Generator) -> None:
        manifest, at = self.manifest, 0
        columns = [x for x in manifest.columns if x.name not in COMMON]
        for slot, length in enumerate(lengths):
            span = slice(at, at + length)
            row["input_ids"][span] = rng.integers(1, manifest.vocab_size, length)
            row["position_ids"][span], row["sequence_ids"][span] = np.arange(length), slot + 1
            row["cls_positions"][slot] = at
            for column in columns:
                if column.width != PREDICTIONS:
                    each = getattr(manifest, column.width) // manifest.max_sequences
                    places = span if column.width == TOKENS else slice(slot * each, (slot + 1) * each)
                    any_number = column == FEATURE_IDS or column.below == float("inf")
                    end = max(1, int(column.end(self.sizes))) if not any_number else 1
                    value = slot % end if manifest.unit > 1 else rng.integers(0, end)
                    row[column.name][places] = at if column.below == "row_length" else value
            at += length
        masked = max(1, round(manifest.max_predictions * at / manifest.row_length))
        for column in columns:
            if column.width == PREDICTIONS:
                values = rng.choice(at, min(masked, at), replace=False)
                limit = at if column.below == "row_length" else manifest.vocab_size
                row[column.name][: len(values)] = np.sort(values) % limit


def measure(job: Job, emit: Emit) -> Dict[str, Any]:
    """Return the peak memory of one process of a job in bytes, and the seconds of an update or of a predict call.

    Raises:
        ConfigError, RowsError: the job is invalid, or runs on IPUs.
        OutOfMemory: the job needs more memory than is available.
    """
    try:
        return _measure(job, emit)
    except (MemoryError, RuntimeError) as error:  # on a CPU, torch raises a plain RuntimeError
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        raise OutOfMemory(f"a {job.kind} job of this shape ran out of memory while it was measured") from error


def _measure(job: Job, emit: Emit) -> Dict[str, Any]:
    chosen = choose_runtime(job.runtime)
    if chosen.value == "ipu":
        raise ConfigError("--measure supports CPU and CUDA only, as an IPU would compile for minutes: omit --measure")
    model = job.model
    if model is None:
        raise ConfigError("job.model is missing: --measure reads no init_checkpoint, so set the architecture")
    manifest = read_manifest(Path(job.rows))
    if job.labels is None and heads.get_head(job.head).labelled:  # only the data may have their names
        job = dataclasses.replace(job, labels=[str(number) for number in range(max(1, manifest.num_labels))])
    rows = GeneratedRows(manifest, model)
    plan = make_plan(job, manifest, chosen, choose_precision(job.precision, chosen.value))
    if plan.precision == "auto":
        plan = plan.with_precision(choose_faster(plan, rows))
    plan = plan.with_compilation(plan_compilation(job.compile, chosen.value))
    if plan.compile == "auto":
        plan = plan.with_compilation(choose_compilation(plan, model, rows, 0, emit, job.compile))
    on_gpu = plan.runtime == "cuda"
    free = torch.cuda.mem_get_info()[0] if on_gpu else None  # after CUDA has allocated its own memory
    with closing(make_runtime(plan, job, make_model(job, model, None, emit), model, None, emit)) as runtime:
        time_steps = _time_predictions if job.kind == "predict" else _time_updates
        seconds = time_steps(runtime, rows, plan)
        _reach_peak(runtime, rows, plan, job, seconds)
        gpu_peak = runtime.peak_device_memory_mb()
        units = plan.rows_per_call if job.kind == "predict" else plan.rows_per_update
        return {
            "runtime": plan.runtime,
            "precision": plan.precision,
            "memory": MB * (peak_memory_mb() if gpu_peak is None else gpu_peak),
            "free_memory": free,
            "update_seconds": seconds,
            "tokens_per_second": units * manifest.real_tokens / manifest.rows / seconds,
        }


def _time_updates(runtime: Runtime, rows: GeneratedRows, plan: JobPlan) -> float:
    """Return the seconds of an update: the time of one micro-batch plus the added time of each further one."""
    size = plan.micro_batch_size
    several = min(2, plan.gradient_accumulation_steps)
    runtime.compile(rows.take(np.arange(several * size)))
    for _ in range(2):  # warm-up: builds kernels and allocates moments
        _update(runtime, rows, several * size, 0)
    first: List[float] = []
    more: List[float] = []
    for number in _timed_rounds(plan):
        first.append(_update(runtime, rows, size, 2 * number + 1))
        if several > 1:
            more.append(_update(runtime, rows, several * size, 2 * number + 2))
    added = max(0.0, median(more) - median(first)) if more else 0.0
    return median(first) + (plan.gradient_accumulation_steps - 1) * added


def _timed_rounds(plan: JobPlan) -> Iterator[int]:
    """Yield the numbers of rounds while there is time for them. On a CPU this is the CPU time of the threads, so that a
    busy host runs as many rounds."""
    threads = torch.get_num_threads() if plan.runtime == "cpu" else 0
    began, computing_began = time.perf_counter(), time.process_time()
    for number in range(MAX_ROUNDS):
        seconds = computing = time.perf_counter() - began
        if threads:
            computing = (time.process_time() - computing_began) / threads
        if computing > (BUDGET_SECONDS if number >= MIN_ROUNDS else 3 * BUDGET_SECONDS) or seconds > WALL_SECONDS:
            return
        yield number


def _update(runtime: Runtime, rows: GeneratedRows, count: int, number: int) -> float:
    batch = rows.take(np.arange(count) + number * count)
    began = time.perf_counter()
    runtime.train_step(runtime.prepare(batch), 0.0)
    return time.perf_counter() - began


def _time_predictions(runtime: Runtime, rows: GeneratedRows, plan: JobPlan) -> float:
    count = min(plan.rows_per_call, rows.manifest.rows)
    runtime.compile(rows.take(np.arange(count)))
    loaded = runtime.state_dict()  # the job also holds a second copy of the weights while it loads the model
    timed: List[float] = []
    for number in _timed_rounds(plan):
        batch = rows.take(np.arange(count) + number * count)
        start = time.perf_counter()
        runtime.predict(runtime.prepare(batch))
        timed.append(time.perf_counter() - start)
    del loaded
    return median(timed[1:] or timed) * plan.rows_per_call / count


def _reach_peak(runtime: Runtime, rows: GeneratedRows, plan: JobPlan, job: Job, seconds: float) -> None:
    """Reach the memory peak of the job: run a full micro-batch, evaluate, and copy the state, once each."""
    if job.kind == "predict":
        runtime.predict(runtime.prepare(rows.take_fullest(min(plan.rows_per_call, rows.manifest.rows))))
        return
    copies: List[Dict[str, Tensor]] = []
    if job.evaluation is not None:
        runtime.evaluate([rows.take_fullest(plan.micro_batch_size)])
        copies.append(runtime.state_dict() if job.evaluation.keep == "best" else {})
    every = job.checkpoint_every_updates
    minutes = job.checkpoint_every_minutes
    if (0 < every <= plan.updates) or (0 < 60 * minutes < plan.updates * seconds):
        states = (runtime.state_dict(), runtime.optimizer_state(), *copies)
        copies += [{name: value.clone() for name, value in state.items()} for state in states]
        del states
    full = rows.take_fullest(min(2, plan.gradient_accumulation_steps) * plan.micro_batch_size)
    runtime.train_step(runtime.prepare(full), 0.0)
    copies.append(runtime.state_dict())  # as for saving the model
