"""What a device job on CPU or CUDA will need, without torch: memory by formula, time from a probe.

The formulas are in host_memory.py, the constants in host_constants.py; docs/host-estimates.md holds how well they do.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import List, Optional, Tuple

import numpy as np

from ipu_model.estimates import host_constants as constants
from ipu_model.estimates.estimate import FITS, Interval, JobEstimate, MemoryEstimate, Term, TimeEstimate
from ipu_model.estimates.host_memory import Work, fullest
from ipu_model.estimates.host_shapes import Shapes, assumed_shapes
from ipu_model.jobs.job import BatchGeometry, Job
from ipu_model.jobs.plan import MICRO_BATCHES_PER_CALL, Division, count_updates, divide, spread
from ipu_model.jobs.probed import Probed
from ipu_model.memory import memory_limit
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import TOKENS, Manifest, columns_of

ERROR = constants.PROBE_ERROR


@dataclass(frozen=True)
class HostJob:
    """A job and what is known of where it runs."""

    job: Job
    config: ModelConfig
    """Its architecture: job.model, or that of init_checkpoint."""
    manifest: Manifest
    """Of its rows, or what is assumed of them."""
    runtime: str = "cpu"
    """cpu or cuda."""
    precision: str = "fp32"
    """fp32, bf16, or auto: then the one that needs more memory counts."""
    processes: int = 1
    """That train together on this host, each with its copy of the model."""
    shapes: Optional[Shapes] = None
    """From host_shapes.read_shapes, where there are rows; for the micro-batches of `division`."""
    limit: Optional[float] = None
    """Bytes: of memory on a CPU, of each GPU on CUDA. None on a CPU: what this host and its limits allow; on CUDA:
    without bound."""

    @property
    def division(self) -> Division:
        """The rows of one update."""
        return divide(spread(self.job.geometry, self.processes), self.manifest.packing_factor)

    @property
    def rows_at_once(self) -> int:
        """In one forward pass of training, or one call of predict."""
        return self.division.micro_batch_size * (MICRO_BATCHES_PER_CALL if self.job.kind == "predict" else 1)

    @property
    def updates(self) -> int:
        """Of the whole run; of a prediction its calls."""
        if self.job.kind == "predict" or self.job.schedule is None:
            return -(-self.manifest.rows // self.rows_at_once)
        return count_updates(self.job.schedule, self.manifest.rows, self.division.rows_per_update)[0]

    def with_micro_batch(self, rows: int) -> HostJob:
        """The same job in micro-batches of at most so many rows."""
        geometry = dataclasses.replace(self.job.geometry, micro_batch_size=rows)
        return dataclasses.replace(self, job=dataclasses.replace(self.job, geometry=geometry))


def estimate_host(asked: HostJob, probed: Optional[Probed] = None) -> JobEstimate:
    """Memory and time of a job on CPU or CUDA.

    Args:
        probed: From a probe of this job on its host; without, nothing is said of time.

    Raises:
        ConfigError: a geometry or a schedule that cannot be.
    """
    time = None if probed is None else estimate_time(asked, probed)
    return JobEstimate(_device_in_words(asked, probed), (_memory(asked),), time)


def largest_micro_batch(asked: HostJob) -> int:
    """The most rows in a micro-batch of this job that are sure to fit; 0 where not even one is.

    Memory grows with the micro-batch, so that the border is found by halving. No more than a whole update is looked at.
    """
    low, high = (
        0,
        divide(BatchGeometry(asked.job.geometry.global_batch_size, 1), asked.manifest.packing_factor).rows_per_update,
    )
    while low < high:
        middle = (low + high + 1) // 2
        found = _memory(asked.with_micro_batch(middle))
        low, high = (middle, high) if found.verdict == FITS else (low, middle - 1)
    return low


def _memory(asked: HostJob) -> MemoryEstimate:
    """The fuller one of the two precisions where none is chosen yet."""
    precisions = ("fp32", "bf16") if asked.precision == "auto" else (asked.precision,)
    found = [_of_precision(dataclasses.replace(asked, precision=one)) for one in precisions]
    fullest_one = max(found, key=lambda one: one.total.likely)
    return dataclasses.replace(
        fullest_one, total=dataclasses.replace(fullest_one.total, low=min(one.total.low for one in found))
    )


def _of_precision(asked: HostJob) -> MemoryEstimate:
    on_gpu = asked.runtime == "cuda"
    if on_gpu:
        name, terms = fullest(work_of(asked))
        terms.append(Term("CUDA and its libraries", constants.CUDA_CONTEXT_BYTES))
        low, high = constants.CUDA_LOWEST, constants.CUDA_HIGHEST
        limit = asked.limit
    else:
        name, terms = fullest(work_of(asked), _libraries(asked.job))
        low, high = constants.LOWEST_OVER_LIKELY, constants.HIGHEST_OVER_LIKELY
        limit = memory_limit() if asked.limit is None else asked.limit
        limit = None if limit is None else limit / asked.processes
    likely, limit = sum(term.amount for term in terms), math.inf if limit is None else limit
    where = f"{'each GPU' if on_gpu else 'the process' if asked.processes == 1 else 'each process'}, {name}"
    # Pages of files count as memory of a process and go when others need it: they take only what room there is.
    pages = 0.0 if on_gpu else min(_read_bytes(asked), max(0.0, limit - high * likely))
    if pages:
        terms.append(Term("rows that were read, mapped", pages))
    bounds = Interval(low * likely, likely + pages, high * likely + pages)
    return MemoryEstimate(where, tuple(terms), bounds, limit)


def _libraries(job: Job) -> List[Term]:
    """What a process on a CPU holds before it has a model; torch's own optimizers and its recomputation load more."""
    terms = [Term("Python, torch and its libraries", constants.PROCESS_BYTES)]
    if job.optimizer is not None and (job.recompute or job.compile != "none" or job.optimizer.name in ("adam", "sgd")):
        terms.append(Term("torch's compiler", constants.COMPILER_BYTES))
    return terms


def _read_bytes(asked: HostJob) -> float:
    """Of the row files, in the run: the columns with a number for each token."""
    manifest = asked.manifest
    columns = [x for x in columns_of(manifest.kind, manifest.vocab_size) if x.width == TOKENS]
    of_row = manifest.row_length * sum(np.dtype(x.type).itemsize for x in columns)
    at_once = asked.rows_at_once if asked.job.kind == "predict" else asked.division.rows_per_update
    return float(of_row * min(manifest.rows, asked.updates * at_once))


def work_of(asked: HostJob) -> Work:
    """The job as far as its memory goes: its fullest micro-batch, and what stays beside it."""
    job, manifest, division = asked.job, asked.manifest, asked.division
    training = job.kind != "predict"
    rows = asked.rows_at_once
    shapes = (asked.shapes or assumed_shapes(manifest, division.micro_batch_size)).of(rows)
    own_rows = division.rows_per_update / asked.processes if training else rows
    passes = max(1, asked.updates) * (division.gradient_accumulation_steps if training else 1)
    optimizer, evaluation = job.optimizer, job.evaluation if training else None
    return Work(
        config=asked.config,
        device=asked.runtime,
        precision=asked.precision,
        shape=shapes.fullest(passes, rows * manifest.row_length),
        training=training,
        head=job.head,
        labels=len(job.labels or ()) or 2,
        optimizer="" if optimizer is None else optimizer.name,
        bias_correction=optimizer is not None and optimizer.bias_correction,
        accumulation=division.gradient_accumulation_steps,
        update_tokens=shapes.mean.tokens * own_rows / rows,
        recompute=job.recompute,
        processes=asked.processes,
        evaluates=evaluation is not None,
        keeps_best=evaluation is not None and evaluation.keep == "best",
        makes_checkpoints=training and bool(job.checkpoint_every_minutes or job.checkpoint_every_updates),
        starts_from_model=job.init_checkpoint is not None,
    )


def estimate_time(asked: HostJob, probed: Probed) -> TimeEstimate:
    """Seconds on the clock of the host that was probed, with the tokens that a mean micro-batch of the run has.

    The exchange of gradients between processes is not in it: a probe is one process.
    """
    seconds = update_seconds(asked, probed.seconds_of_micro_batch, probed.seconds_of_update, probed)
    interval = Interval((1 - ERROR) * sum(seconds), sum(seconds), (1 + ERROR) * sum(seconds))
    terms = (
        Term("forward and backward", seconds[0], "device.precision, PODIUM_THREADS, a smaller model"),
        Term("clipping and optimizer", seconds[1], "a larger global_batch_size makes fewer updates"),
    )
    predicts = asked.job.kind == "predict"
    sequences = (asked.rows_at_once if predicts else asked.division.rows_per_update) * asked.manifest.packing_factor
    rates = Interval(*(sequences / bound for bound in (interval.high, interval.likely, interval.low)))
    return TimeEstimate(terms, asked.updates, interval, rates)


def update_seconds(asked: HostJob, of_micro_batch: float, of_update: float, probed: Probed) -> Tuple[float, float]:
    """Seconds of the micro-batches of an update in one process, and of the update itself.

    Args:
        of_micro_batch, of_update: As probed, in the clock that is asked for.
    """
    tokens = asked.rows_at_once * asked.manifest.real_tokens / asked.manifest.rows
    passes = 1 if asked.job.kind == "predict" else asked.division.gradient_accumulation_steps
    return passes * of_micro_batch * tokens / probed.tokens, of_update


def _device_in_words(asked: HostJob, probed: Optional[Probed]) -> str:
    count = asked.processes
    if asked.runtime == "cuda":
        return "1 GPU" if count == 1 else f"{count} GPUs"
    threads = "" if probed is None else f" with {probed.threads} thread{'s' if probed.threads > 1 else ''}"
    return ("CPU, 1 process" if count == 1 else f"CPU, {count} processes") + threads
