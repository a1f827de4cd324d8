"""Estimate a whole run: its device jobs, its other stages, disk space, and the cost of device hours.

For a stage without a device, the estimate is its time in the last run of this checkout. Otherwise it is the time per MB
of text in docs/pretrain.md, measured on two cores; another host may halve or double it. Other stages are not
estimated.
"""

import dataclasses
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.runs import report
from flows.runs.run_request import RunRequest
from ipu_model.core.units import format_bytes, format_seconds
from tasks.estimates.job_estimates import (
    EstimatedJob,
    EstimateOptions,
    Interval,
    add_intervals,
    as_values,
    configure_model,
    estimate_jobs,
    model_parameters,
    scaled,
)
from tasks.host import ledger
from tasks.plan.dvc_records import StageStatus
from tasks.stage import artifacts
from tasks.stage.parallel import worker_count

RUNS, SKIPPED = "runs", "skipped"
HOUR = 3600.0
OTHER_HOST, SAME_HOST = 2.0, 1.25
"""Factors for the interval around a time: measured on another host, or for the same stage on this host."""
LESS_MB, MORE_MB = 10.0, 1003.0
CPU_SECONDS: dict[str, tuple[float, float]] = {
    "corpus@text": (0.85, 21.7),
    "validate@corpus": (1.75, 9.1),
    "tokenizer": (1.31, 18.9),
    "pretrain_rows@phase1": (1.6, 117.5),
    "validate@phase1": (0.64, 13.4),
    "pretrain_rows@phase2": (1.32, 92.1),
    "validate@phase2": (0.59, 9.5),
}
"""Stage -> seconds on one core for LESS_MB and for MORE_MB of text, from docs/pretrain.md."""
CORPUS = 261 / 1003
ROWS = {"phase1": 5561 / 1003 / 2, "phase2": 2958 / 1003}
"""Bytes of the corpus and of each phase's rows per byte of text; for rows, also per copy in `duplicates`."""
DEMO_DOCUMENT = 237
"""Bytes of a generated document."""
CHECKPOINTS = 3
"""Number of checkpoints on disk: two that are kept and one being written."""
LARGE_TEXT = 200e6
"""Bytes of a corpus whose preparation a run describes before it starts."""
WALK_S = 1.0
MODELS = "models/"
"""Folder of trained models: outs of device stages in it."""


@dataclass(frozen=True)
class RunEstimate:
    """Estimate of a run."""

    stages: tuple[StageStatus, ...]
    jobs: tuple[EstimatedJob, ...]
    """Device jobs of the run's stages, in order."""
    other_seconds: dict[str, Interval]
    """Stage without a device that would run -> estimated seconds, if known."""
    disk_bytes: float
    """Approximate bytes that would be written."""
    free_bytes: float
    price: float | None = None
    """Price of one hour of all devices of a job, in any currency."""

    @property
    def running(self) -> tuple[EstimatedJob, ...]:
        """Jobs of stages that would run."""
        names = {stage.stage for stage in self.stages if stage.status == RUNS}
        return tuple(job for job in self.jobs if job.planned.stage in names)

    @property
    def device_seconds(self) -> Interval:
        """Total seconds of the jobs that would run and have an estimate."""
        return add_intervals(job.seconds for job in self.running if job.seconds is not None)

    @property
    def seconds(self) -> Interval:
        """Total seconds of all stages that would run and have an estimate."""
        return add_intervals([self.device_seconds, *self.other_seconds.values()])

    @property
    def unknown(self) -> list[str]:
        """Stages that would run and have no estimate."""
        timed = {job.planned.stage for job in self.jobs if job.seconds is not None} | set(self.other_seconds)
        return [stage.stage for stage in self.stages if stage.status == RUNS and stage.stage not in timed]

    def cost(self, seconds: Interval | None) -> Interval | None:
        """Return the cost of device seconds; None without a price."""
        return None if self.price is None or seconds is None else scaled(seconds, self.price / HOUR)

    def as_values(self) -> dict[str, Any]:
        """Return the values that `podium plan --json` prints."""
        names = {job.name for job in self.running}
        jobs = [
            {**as_values(job), "runs": job.name in names, "cost": _plain(self.cost(job.seconds))} for job in self.jobs
        ]
        whole = {
            "seconds": _plain(self.seconds),
            "device_seconds": _plain(self.device_seconds),
            "without_a_time": self.unknown,
            "disk_bytes": self.disk_bytes,
            "free_bytes": self.free_bytes,
            "price": self.price,
            "cost": _plain(self.cost(self.device_seconds)),
        }
        return {"stages": [dataclasses.asdict(stage) for stage in self.stages], "jobs": jobs, "total": whole}


def _plain(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else dataclasses.asdict(interval)


def estimate_run(
    request: RunRequest, price: float | None = None, options: EstimateOptions | None = None
) -> RunEstimate:
    """Estimate a requested run. Nothing is changed.

    Args:
        price: price of one hour of all devices of a job.
        options: other options. The records of this host's ledger are always used.

    Raises:
        InputError: an input file is invalid.
    """
    stages = request.forecast
    running = [stage.stage for stage in stages if stage.status == RUNS]
    options = options or EstimateOptions()
    measured = set(options.measured) & set(running)
    jobs = estimate_run_jobs(request, stages, dataclasses.replace(options, measured=measured))
    started = {job.planned.stage for job in jobs}
    others = estimate_stage_seconds(request, [stage for stage in running if stage not in started])
    rest = dataclasses.replace(request, target=tuple(running))
    written, free = estimate_data_bytes(rest) + estimate_model_bytes(rest), shutil.disk_usage(request.project).free
    return RunEstimate(stages, tuple(jobs), others, written, float(free), price)


def estimate_run_jobs(
    request: RunRequest, stages: Sequence[StageStatus], options: EstimateOptions | None = None
) -> list[EstimatedJob]:
    """Estimate the device jobs of these stages of a run; see `estimate_run`.

    Raises:
        InputError: an input file is invalid.
    """
    to_run = [stage.stage for stage in stages if stage.status != SKIPPED]
    records, elsewhere = ledger.read(ledger.ledger_file()), request.options.on_workers
    options = dataclasses.replace(options or EstimateOptions(), records=records, elsewhere=elsewhere)
    return estimate_jobs(
        request.params, request.project, request.root, [stage.stage for stage in stages], to_run, options
    )


def estimate_stage_seconds(request: RunRequest, stages: Sequence[str]) -> dict[str, Interval]:
    """Estimate the seconds of stages without a device. Stages without an estimate are left out.

    Args:
        request: the run.
        stages: stages that will run.
    """
    last = report.read_report(request.project, request.root)
    before = {stage.name: stage.seconds for stage in (last.stages if last is not None else ()) if stage.status == "ran"}
    text_mb = text_bytes(request) / 1e6
    seconds = {}
    for stage in stages:
        if stage in before:
            seconds[stage] = interval_around(before[stage], SAME_HOST)
        elif stage in CPU_SECONDS and text_mb:
            seconds[stage] = interval_around(_estimate_text_stage(stage, text_mb), OTHER_HOST)
    return seconds


def describe_preparation(request: RunRequest) -> str:
    """Describe the time and disk that a large corpus takes; empty if it is small, unknown, or prepared already."""
    text = text_bytes(request)
    if text < LARGE_TEXT or not request.makes("corpus") or (request.root / artifacts.CORPUS).exists():
        return ""
    seconds = add_intervals(estimate_stage_seconds(request, request.target).values())
    free = format_bytes(shutil.disk_usage(request.project).free)
    return (
        f"the corpus has {format_bytes(text)} of text: stages that need no device take roughly "
        f"{format_seconds(seconds.low)} to {format_seconds(seconds.high)}, corpus and rows "
        f"{format_bytes(estimate_data_bytes(request))} of disk; {free} are free"
    )


def interval_around(likely: float, factor: float) -> Interval:
    """Return the interval from `likely` divided by `factor` to `likely` times `factor`."""
    return Interval(likely / factor, likely, likely * factor)


def _estimate_text_stage(stage: str, text_mb: float) -> float:
    """Return the seconds of a stage from a line through both measurements, with a start-up time of at least 0."""
    less, more = CPU_SECONDS[stage]
    slope = (more - less) / (MORE_MB - LESS_MB)
    start = max(0.0, less - slope * LESS_MB)
    return start + slope * text_mb / worker_count()


def estimate_data_bytes(request: RunRequest) -> float:
    """Estimate the bytes of the corpus and the rows."""
    params, text = request.params, text_bytes(request)
    factor = CORPUS if request.makes("corpus") else 0.0
    if params.pretrain_rows.source == "corpus":
        for phase in params.pretrain.list_phases():
            if f"pretrain_rows@{phase}" in request.target:
                factor += ROWS.get(phase, ROWS["phase2"]) * params.pretrain_rows.get_phase(phase).duplicates
    return text * factor


def text_bytes(request: RunRequest) -> float:
    """Return the bytes of the input text; 0 if there is none, or if it is on the Hub."""
    source = request.params.corpus
    if source.source == "demo":
        return float(source.demo_documents * DEMO_DOCUMENT)
    return folder_bytes(request.project / source.path) if source.source == "files" else 0.0


def estimate_model_bytes(request: RunRequest) -> float:
    """Estimate the bytes of the trained models, and of the checkpoints of one of them."""
    made = [out for stage in request.stages if stage.holds_device for out in stage.outs]
    trained = [out for out in made if out.startswith(MODELS)]
    model = configure_model(request.params.tokenizer.vocabulary_size, **request.params.model.model_dump())
    weights = 4.0 * model_parameters(model, "pretraining")
    return weights * (len(trained) + 3 * CHECKPOINTS) if trained else 0.0


def folder_bytes(path: Path) -> float:
    """Return the bytes of all files in a folder, or of those visited within WALK_S seconds."""
    if path.is_file():
        return float(path.stat().st_size)
    total, until = 0.0, time.monotonic() + WALK_S
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            total += file.stat().st_size if file.is_file() else 0
        if time.monotonic() > until:
            break
    return total
