"""A few updates of a job on its own rows, timed in their parts: `python -m ipu_model --probe job.json`.

Nothing is written where the job writes, and nothing that was trained is kept: the rate is 0, and the process ends.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from statistics import median
from typing import List, Optional, Tuple

import numpy as np
import torch

from ipu_model.distributed.process import peak_memory_mb
from ipu_model.errors import ConfigError
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Plan, make_plan
from ipu_model.jobs.probed import Probed
from ipu_model.progress import Emit
from ipu_model.rows.reading import Batch, RowFolder, UpdateRows
from ipu_model.runtimes.auto_precision import choose_faster
from ipu_model.runtimes.choosing import choose_precision, choose_runtime, make_runtime
from ipu_model.runtimes.runtime import Runtime
from ipu_model.train.expectation import sampled_shapes
from ipu_model.train.preparation import make_model, read_inputs

BUDGET_SECONDS = 10.0
"""For what is timed; an update that takes longer than that is timed once."""
MOST, FEWEST = 40, 3
"""Updates that are timed."""
AT_ONCE = 2
"""Micro-batches of a timed update: the second one tells them from what an update takes beside them."""
CLOCKS = (time.process_time, time.perf_counter)
Seconds = Tuple[float, float]
"""Of CPU time and of the clock."""


@dataclass(frozen=True)
class _Timed:
    """One update, or one call of predict."""

    tokens: Tuple[int, ...]
    """Real tokens of each micro-batch."""
    reading: Seconds
    passes: Optional[Seconds]
    """Of the first micro-batch, where there are several and the device tells when it was done."""
    whole: Seconds
    """Without reading."""


class _Marks:
    """When the micro-batches of an update were done: a CPU asks between them whether to give up."""

    def __init__(self) -> None:
        self.made: List[Seconds] = []

    def __call__(self) -> bool:
        self.made.append(_now())
        return False


def probe(job: Job, emit: Emit) -> Probed:
    """Run a few updates of the job, or calls of predict, and say how long their parts take, in one process.

    Raises:
        ConfigError, RowsError, CheckpointError: the job cannot be run as stated, or is one for IPUs.
    """
    chosen = choose_runtime(job.runtime)
    if chosen.value == "ipu":
        raise ConfigError("a probe runs on CPU or CUDA: an IPU would compile for minutes first; leave --probe out")
    job, base, config, rows = read_inputs(job)
    plan = make_plan(job, rows.manifest, chosen, choose_precision(job.precision, chosen.value))
    if plan.precision == "auto":
        plan = plan.with_precision(choose_faster(plan, rows))
    marks = _Marks()
    runtime = make_runtime(plan, job, make_model(job, config, base, emit), config, None, emit, None, marks)
    try:
        timed = _run(runtime, _Rows(job, plan, rows), marks)
        shapes = dataclasses.asdict(sampled_shapes(plan, rows))
        return dataclasses.replace(_summary(plan, timed, runtime), shapes=shapes)
    finally:
        runtime.close()


class _Rows:
    """What is run, update by update."""

    def __init__(self, job: Job, plan: Plan, rows: RowFolder) -> None:
        self.trains = job.kind != "predict"
        self._rows, self._plan = rows, plan
        self._order = UpdateRows(len(rows), plan.rows_per_update, job.seed)
        self.at_once = min(AT_ONCE, plan.gradient_accumulation_steps) if self.trains else 1

    def take(self, number: int) -> Batch:
        """Those of timed update `number`."""
        if self.trains:
            return self._rows.take(self._order(number)[: self.at_once * self._plan.micro_batch_size])
        call = min(self._plan.rows_per_call, len(self._rows))
        calls = len(self._rows) // call
        return self._rows.take(np.arange(call) + (number % calls) * call)

    def tokens(self, batch: Batch) -> Tuple[int, ...]:
        """Real tokens of each micro-batch."""
        size = self._plan.micro_batch_size if self.trains else len(batch.rows)
        return tuple(batch.part(at, at + size).real_tokens for at in range(0, len(batch.rows), size))


def _run(runtime: Runtime, rows: _Rows, marks: _Marks) -> List[_Timed]:
    """Timed updates after one that builds kernels and moments."""
    runtime.compile(rows.take(0))
    _update(runtime, rows, marks, 0)
    timed: List[_Timed] = []
    began = time.perf_counter()
    while len(timed) < MOST:
        timed.append(_update(runtime, rows, marks, len(timed) + 1))
        if time.perf_counter() - began > BUDGET_SECONDS and (
            len(timed) >= FEWEST or timed[0].whole[1] > BUDGET_SECONDS
        ):
            break
    return timed


def _update(runtime: Runtime, rows: _Rows, marks: _Marks, number: int) -> _Timed:
    began = _now()
    batch = rows.take(number)
    prepared = runtime.prepare(batch)
    marks.made = []
    ready = _now()
    if rows.trains:
        runtime.train_step(prepared, 0.0)
    else:
        runtime.predict(prepared)
    ended = _now()
    passes = _between(ready, marks.made[0]) if marks.made else None
    return _Timed(rows.tokens(batch), _between(began, ready), passes, _between(ready, ended))


def _summary(plan: Plan, timed: List[_Timed], runtime: Runtime) -> Probed:
    cpu, clock = (_parts(timed, which) for which in range(len(CLOCKS)))
    sizes = [tokens for one in timed for tokens in one.tokens]
    of_gpu = torch.cuda.get_device_properties(0).total_memory / 2**20 if plan.runtime == "cuda" else None
    return Probed(
        runtime=plan.runtime,
        precision=plan.precision,
        precision_reason=plan.precision_reason,
        threads=torch.get_num_threads(),
        micro_batches=len(sizes),
        tokens=round(sum(sizes) / len(sizes), 1),
        cpu_seconds_of_micro_batch=cpu[0],
        cpu_seconds_of_update=cpu[1],
        seconds_of_micro_batch=clock[0],
        seconds_of_update=clock[1],
        peak_memory_mb=round(peak_memory_mb(), 1),
        peak_device_memory_mb=runtime.peak_device_memory_mb(),
        device_memory_mb=of_gpu,
    )


def _parts(timed: List[_Timed], which: int) -> Tuple[float, float]:
    """Seconds on one clock of a micro-batch with the mean number of tokens, and of an update beside them.

    Medians over the updates: in some of them kernels are built for a shape that is new, which a long run forgets. Where
    the device does not tell its micro-batches apart, all is theirs.
    """
    count, tokens = sum(len(one.tokens) for one in timed), sum(sum(one.tokens) for one in timed)
    reading = median(one.reading[which] / sum(one.tokens) for one in timed)
    told = [one.passes[which] / one.tokens[0] for one in timed if one.passes is not None]
    if not told:
        whole = median(one.whole[which] / sum(one.tokens) for one in timed)
        return (whole + reading) * tokens / count, 0.0
    of_token = median(told)
    beside = median(one.whole[which] - of_token * sum(one.tokens) for one in timed)
    return (of_token + reading) * tokens / count, max(0.0, beside)


def _now() -> Seconds:
    cpu, clock = (read() for read in CLOCKS)
    return cpu, clock


def _between(start: Seconds, end: Seconds) -> Seconds:
    return end[0] - start[0], end[1] - start[1]
