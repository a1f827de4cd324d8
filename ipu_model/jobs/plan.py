"""Plan of a job, resolved before compilation: rows per update, gradient accumulation, number of updates."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Protocol, Tuple

from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.core.schedules import BatchSizes, find_growth_problem
from ipu_model.jobs.job import BatchGeometry, Division, Job, ScheduleConfig
from ipu_model.rows.format import Manifest


@dataclass(frozen=True)
class Choice:
    """A resolved setting with its reason."""

    value: str
    reason: str


@dataclass(frozen=True)
class JobPlan:
    """Resolved plan of a job; printed, stored in result.json, and part of the fingerprint of checkpoints."""

    kind: str
    runtime: str
    runtime_reason: str
    precision: str
    precision_reason: str
    rows: int
    sequences: int
    packing_factor: float
    """Sequences per row, rounded to four digits."""
    packing_efficiency: float
    """Share of real tokens in the rows, 0 to 1, rounded to four digits."""
    global_batch_size: int
    """Requested sequences per update."""
    sequences_per_update: float
    """Average number of sequences in the rows of an update."""
    rows_per_update: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    replication_factor: int
    updates: int
    total_rows: int
    """Rows of all updates, counted once per visit; if epochs end within the last update, its other rows are empty."""
    warmup_updates: int
    schedule: str
    """Shape of the learning rate's decay after the warm-up (training.learning_rate)."""
    epochs: float
    """Passes over the rows, rounded to four digits."""
    rows_per_call: int = 0
    """Rows per device call of predict."""
    updates_per_call: int = 1
    """Updates per device call, all with one learning rate; 1 except on IPU."""
    compile: str = "none"
    """Part that inductor compiles: none, optimizer, or model; auto until it is measured."""
    compile_reason: str = ""
    batch_sizes: Optional[BatchSizes] = None
    """Rows of each update, if they grow."""
    decay_updates: Optional[int] = None
    """Updates of the decay at the end, for a shape of schedules.LATE_DECAYS."""
    device: Dict[str, Any] = field(default_factory=dict)
    """Device-specific part of the plan: on IPU placement, config and numbers of IPUs."""

    def with_precision(self, choice: Choice) -> JobPlan:
        """Return the plan with this precision and its reason."""
        return dataclasses.replace(self, precision=choice.value, precision_reason=choice.reason)

    def with_compilation(self, choice: Choice) -> JobPlan:
        """Return the plan with this compilation and its reason."""
        return dataclasses.replace(self, compile=choice.value, compile_reason=choice.reason)


MICRO_BATCHES_PER_CALL = 4
"""For predict on CPU and CUDA: without stored activations, four times the rows of training fit."""


def divide(geometry: BatchGeometry, packing_factor: float, *, exact: bool = False) -> Division:
    """Split `global_batch_size` sequences, packed `packing_factor` per row, into equal micro-batches.

    The micro-batch shrinks as far as needed to match the requested rows closely, and never grows:
    divide(BatchGeometry(64, micro_batch_size=32), 1.5) gives 43 / 2 -> 2 micro-batches of 22 rows. If `exact`, the rows
    are exactly those requested, micro-batches are as stated, and the first may be smaller.
    """
    replicas = geometry.replication_factor
    rows = max(1, round(geometry.global_batch_size / packing_factor))
    accumulation = -(-rows // (geometry.micro_batch_size * replicas))
    micro_batch = -(-rows // (accumulation * replicas))
    if exact:
        return Division(rows, min(geometry.micro_batch_size, micro_batch * accumulation), accumulation)
    return Division(accumulation * micro_batch * replicas, micro_batch, accumulation)


def set_replicas(geometry: BatchGeometry, processes: int) -> BatchGeometry:
    """Return the geometry with one replica per process: on CPUs and GPUs the launcher sets their number.

    Raises:
        ConfigError: the geometry has another number of replicas.
    """
    if geometry.replication_factor not in (1, processes):
        raise ConfigError(
            f"geometry.replication_factor={geometry.replication_factor}, but the number of processes is {processes}: "
            "on CPUs and GPUs each process holds one copy. Start that many processes (device.processes, or the "
            "launcher of this host, torchrun --nproc-per-node)"
        )
    return dataclasses.replace(geometry, replication_factor=processes)


def count_updates(schedule: ScheduleConfig, rows: int, rows_per_update: int, per_call: int = 1) -> Tuple[int, int]:
    """Return the updates of the whole run, and the number of rows they train on, counted once per visit.

    Epochs end with their last row: the last update has fewer rows than the others, so no row is dropped or repeated.
    If a call makes several updates, the last call is filled with updates from the next epoch.

    Raises:
        ConfigError: steps are negative or not a multiple of the updates per call, or epochs are not above 0.
    """
    if schedule.steps is not None:
        if schedule.steps < 0:
            raise ConfigError(f"schedule.steps={schedule.steps} must be at least 0")
        if schedule.steps % per_call:
            below = schedule.steps - schedule.steps % per_call
            raise ConfigError(
                f"schedule.steps={schedule.steps} is not a multiple of the device_iterations={per_call} updates per "
                f"call: set steps to {below} or {below + per_call}, or device_iterations to 1"
            )
        return schedule.steps, schedule.steps * rows_per_update
    epochs = schedule.epochs or 0.0
    if epochs <= 0:
        raise ConfigError(f"schedule.epochs={schedule.epochs} must be above 0; to save an untrained model use steps: 0")
    visits = max(1, round(epochs * rows))
    needed = -(-visits // rows_per_update)
    updates = -(-needed // per_call) * per_call
    return updates, visits if updates == needed else updates * rows_per_update


class DevicePlan(Protocol):
    """Decisions of a device, which a plan takes over (ipu/planning.py)."""

    @property
    def replicas(self) -> int:
        """Replicas over all processes."""

    @property
    def updates_per_call(self) -> int:
        """Updates in one host call."""

    @property
    def division(self) -> Division:
        """Division of the rows of one update."""

    @property
    def rows_per_call(self) -> int:
        """Rows of one call in predict."""

    def suggest_batch(self, rows: int, packing_factor: float) -> str:
        """Return advice on a global batch that `rows` rows can fill."""

    def as_dict(self) -> Dict[str, Any]:
        """Return the device's part as plain data."""


def make_plan(
    job: Job, manifest: Manifest, runtime: Choice, precision: Choice, device: Optional[DevicePlan] = None
) -> JobPlan:
    """Resolve a job against its rows; `device` is the plan of IPUs.

    Raises:
        RowsError: there are no rows, or fewer than one update needs.
        ConfigError: an impossible size or schedule.
    """
    if manifest.rows < 1 or manifest.sequences < 1:
        raise RowsError(f"{job.rows} has no rows to {job.kind} on: check the step that made them")
    factor = manifest.batch_factor
    division = divide(job.geometry, factor, exact=manifest.unit > 1) if device is None else device.division
    updates, total_rows = 0, 0
    if job.schedule is not None and job.kind != "predict":
        per_call = 1 if device is None else device.updates_per_call
        updates, total_rows = count_updates(job.schedule, manifest.rows, division.rows_per_update, per_call)
    sizes = _find_sizes(job, division.rows_per_update, factor, updates, on_ipus=device is not None)
    total_rows = total_rows if sizes is None else sizes.count_before(updates)
    rows = manifest.rows
    if division.rows_per_update > rows and updates:
        remedy = _smaller_batch(job.geometry, rows, factor) if device is None else device.suggest_batch(rows, factor)
        raise RowsError(
            f"{job.rows} has {rows} rows of {factor:.2f} sequences, but one update needs global_batch_size "
            f"{job.geometry.global_batch_size} / {factor:.2f} = {division.rows_per_update} rows: use more data, or "
            f"{remedy}"
        )
    return JobPlan(
        kind=job.kind,
        runtime=runtime.value,
        runtime_reason=runtime.reason,
        precision=precision.value,
        precision_reason=precision.reason,
        rows=manifest.rows,
        sequences=manifest.sequences,
        packing_factor=round(manifest.packing_factor, 4),
        packing_efficiency=round(manifest.packing_efficiency, 4),
        global_batch_size=job.geometry.global_batch_size,
        sequences_per_update=round(division.rows_per_update * manifest.packing_factor, 1),
        rows_per_update=division.rows_per_update,
        micro_batch_size=division.micro_batch_size,
        gradient_accumulation_steps=division.gradient_accumulation_steps,
        replication_factor=job.geometry.replication_factor if device is None else device.replicas,
        updates=updates,
        total_rows=total_rows,
        warmup_updates=0 if job.schedule is None else round(updates * job.schedule.warmup_fraction),
        schedule="linear" if job.schedule is None else job.schedule.shape,
        batch_sizes=sizes,
        decay_updates=_count_decay(job.schedule, updates),
        epochs=round(total_rows / manifest.rows, 4),
        updates_per_call=1 if device is None else device.updates_per_call,
        rows_per_call=division.micro_batch_size * MICRO_BATCHES_PER_CALL if device is None else device.rows_per_call,
        device={} if device is None else device.as_dict(),
    )


def _find_sizes(job: Job, rows: int, packing_factor: float, updates: int, on_ipus: bool) -> Optional[BatchSizes]:
    """Return the rows of each update; None if all have as many."""
    first = job.geometry.first_batch_size
    fraction = None if job.schedule is None else job.schedule.batch_warmup_fraction
    if (problem := find_growth_problem(first, job.geometry.global_batch_size, fraction)) is not None:
        raise ConfigError(problem)
    if job.schedule is None or first is None or fraction is None:
        return None
    if on_ipus or job.schedule.steps is None:
        raise ConfigError(f"first_batch_size={first} needs schedule.steps, and cpu or cuda: set it to null")
    return BatchSizes(rows, max(1, round(first / packing_factor)), round(updates * fraction))


def _count_decay(schedule: Optional[ScheduleConfig], updates: int) -> Optional[int]:
    """Return the updates of a decay at the end, which leaves those of the warm-up."""
    if schedule is None or schedule.decay_fraction is None:
        return None
    return min(round(updates * schedule.decay_fraction), updates - round(updates * schedule.warmup_fraction))


def _smaller_batch(geometry: BatchGeometry, rows: int, factor: float) -> str:
    size = int(rows * factor)
    while size > 1 and divide(dataclasses.replace(geometry, global_batch_size=size), factor).rows_per_update > rows:
        size -= 1
    return f"set global_batch_size to at most {size}"
