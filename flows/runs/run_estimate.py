"""Estimate a whole run: its device jobs, its other stages, the disk, and the cost of device hours.

The estimate of a stage without a device is its time in the last run of this checkout, else the time per MB of text that
docs/data-scale.md measured on two cores, which another host may halve or double. Other stages have no estimate.
"""

from __future__ import annotations

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
from tasks.estimates.job_estimates import (
    EstimatedJob,
    EstimateOptions,
    Interval,
    ModelConfig,
    as_values,
    estimate_jobs,
    model_parameters,
    scaled,
    total,
)
from tasks.host import ledger
from tasks.plan.dvc_records import StageForecast
from tasks.stage.parallel import WORKER_STAGES, worker_count

RUNS, SKIPPED = "runs", "skipped"
HOUR = 3600.0
OTHER_HOST, AGAIN = 2.0, 1.25
"""Factors of an interval around a time: for a time from another host, and for the same stage on the same host."""
LESS_MB, MORE_MB = 10.0, 1003.0
CPU_SECONDS: dict[str, tuple[float, float]] = {
    "corpus@text": (2.42, 135.2),
    "validate@corpus": (2.19, 15.3),
    "tokenizer": (2.14, 196.8),
    "pretrain_rows@phase1": (4.61, 409.9),
    "validate@phase1": (3.01, 60.31),
    "pretrain_rows@phase2": (4.76, 312.3),
    "validate@phase2": (2.55, 20.71),
}
"""Of one core at LESS_MB and at MORE_MB of text, from the table of docs/data-scale.md."""
CORPUS = 277 / 1003
ROWS = {"phase1": 5561 / 1003 / 2, "phase2": 2957 / 1003}
"""Bytes for each byte of text; of rows, and for each of `duplicates`."""
DEMO_DOCUMENT = 237
"""Bytes of a generated document."""
CHECKPOINTS = 3
"""Two that are kept, and one being written."""
WALK_S = 1.0
MODELS = "models/"
"""What a stage writes there that uses a device is a model it trained."""


@dataclass(frozen=True)
class RunEstimate:
    """What a run would do, and take."""

    stages: tuple[StageForecast, ...]
    jobs: tuple[EstimatedJob, ...]
    """Of every stage of the run that starts one, in their order."""
    other_seconds: dict[str, Interval]
    """Stage without a device that would run -> seconds, where something is known of it."""
    disk_bytes: float
    """That would be written, roughly."""
    free_bytes: float
    price: float | None = None
    """Of an hour of all that a device job holds, in anybody's money."""

    @property
    def running(self) -> tuple[EstimatedJob, ...]:
        """The jobs of stages that would run."""
        names = {one.stage for one in self.stages if one.status == RUNS}
        return tuple(job for job in self.jobs if job.planned.stage in names)

    @property
    def device_seconds(self) -> Interval:
        """Of the jobs that would run, as far as they are known."""
        return total(job.seconds for job in self.running if job.seconds is not None)

    @property
    def seconds(self) -> Interval:
        """Of everything that would run and is known."""
        return total([self.device_seconds, *self.other_seconds.values()])

    @property
    def unknown(self) -> list[str]:
        """What would run and has no time."""
        timed = {job.planned.stage for job in self.jobs if job.seconds is not None} | set(self.other_seconds)
        return [one.stage for one in self.stages if one.status == RUNS and one.stage not in timed]

    def cost(self, seconds: Interval | None) -> Interval | None:
        """Of so many seconds of a device; None without a price."""
        return None if self.price is None or seconds is None else scaled(seconds, self.price / HOUR)

    def as_values(self) -> dict[str, Any]:
        """For programs."""
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
        return {"stages": [dataclasses.asdict(one) for one in self.stages], "jobs": jobs, "total": whole}


def _plain(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else dataclasses.asdict(interval)


def estimate_run(
    request: RunRequest, price: float | None = None, options: EstimateOptions | None = None
) -> RunEstimate:
    """What the requested run would do and take; nothing is changed.

    Args:
        price: of an hour of all that a device job holds.
        options: beside that; the ledger of this host is looked into whatever it says.

    Raises:
        InputError: a file that it is made from cannot be used.
    """
    stages = request.forecast
    running = [one.stage for one in stages if one.status == RUNS]
    options = options or EstimateOptions()
    measured = set(options.measured) & set(running)
    jobs = jobs_of(request, stages, dataclasses.replace(options, measured=measured, manifests=request.manifests))
    started = {job.planned.stage for job in jobs}
    others = stage_seconds(request, [stage for stage in running if stage not in started])
    rest = dataclasses.replace(request, target=tuple(running))
    written, free = data_bytes(rest) + model_bytes(rest), shutil.disk_usage(request.project).free
    return RunEstimate(stages, tuple(jobs), others, written, float(free), price)


def jobs_of(
    request: RunRequest, stages: Sequence[StageForecast], options: EstimateOptions | None = None
) -> list[EstimatedJob]:
    """The device jobs of these stages of a run; see `estimate_run`.

    Raises:
        InputError: a file that they are made from cannot be used.
    """
    anew = [one.stage for one in stages if one.status != SKIPPED]
    records, elsewhere = ledger.read(ledger.ledger_file()), request.on_workers
    options = dataclasses.replace(options or EstimateOptions(), records=records, elsewhere=elsewhere)
    return estimate_jobs(request.params, request.project, request.root, [one.stage for one in stages], anew, options)


def stage_seconds(request: RunRequest, stages: Sequence[str]) -> dict[str, Interval]:
    """Seconds of those of these stages of which something is known.

    Args:
        request: the run.
        stages: that will run, and hold no device.
    """
    last = report.read(request.project, request.root)
    before = {one.name: one.seconds for one in (last.stages if last is not None else ()) if one.status == "ran"}
    text_mb = text_bytes(request) / 1e6
    found = {}
    for stage in stages:
        if stage in before:
            found[stage] = within(before[stage], AGAIN)
        elif stage in CPU_SECONDS and text_mb:
            found[stage] = within(_of_text(stage, text_mb), OTHER_HOST)
    return found


def within(likely: float, factor: float) -> Interval:
    """From so many times less to so many times more."""
    return Interval(likely / factor, likely, likely * factor)


def _of_text(stage: str, text_mb: float) -> float:
    """On a straight line through what was measured; not below what the smaller text took, which is start-up."""
    less, more = CPU_SECONDS[stage]
    slope = (more - less) / (MORE_MB - LESS_MB)
    start = max(0.0, less - slope * LESS_MB)
    return start + slope * text_mb / (worker_count() if stage in WORKER_STAGES else 1)


def data_bytes(request: RunRequest) -> float:
    """Estimated size of the corpus and the rows."""
    params, text = request.params, text_bytes(request)
    factor = CORPUS if request.makes("corpus") else 0.0
    if params.pretrain_rows.source == "corpus":
        for phase, bytes_each in ROWS.items():
            if f"pretrain_rows@{phase}" in request.target:
                factor += bytes_each * getattr(params.pretrain_rows, phase).duplicates
    return text * factor


def text_bytes(request: RunRequest) -> float:
    """Size of the text; 0 where there is none, or nobody says (hub)."""
    source = request.params.corpus
    if source.source == "demo":
        return float(source.demo_documents * DEMO_DOCUMENT)
    return bytes_of(request.project / source.path) if source.source == "files" else 0.0


def model_bytes(request: RunRequest) -> float:
    """Estimated size of the models that are trained, and of the checkpoints of one of them at a time."""
    made = [out for stage in request.stages if stage.holds_device for out in stage.outs]
    trained = [out for out in made if out.startswith(MODELS)]
    model = ModelConfig(request.params.tokenizer.vocabulary_size, **request.params.model.model_dump())
    weights = 4.0 * model_parameters(model, "pretraining")
    return weights * (len(trained) + 3 * CHECKPOINTS) if trained else 0.0


def bytes_of(path: Path) -> float:
    """Size of all files in a folder, or of those that can be looked at in WALK_S."""
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
