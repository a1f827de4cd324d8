"""What the device jobs of a plan will need: memory, time and throughput, without a device and without torch.

The figures are those of ipu_model/estimates, their intervals widened by what the ledger of this host says of such jobs.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_model.errors import LAUNCHER, ROWS, DeviceJobError, RowsError
from ipu_model.estimates.estimate import (
    DOES_NOT_FIT,
    Interval,
    JobEstimate,
    MemoryEstimate,
    Term,
    TimeEstimate,
)
from ipu_model.estimates.job import MK2, Where, advice, estimate_job
from ipu_model.estimates.record import MEMORY, SECONDS, TOKENS, rows_at_once, useful_flops
from ipu_model.files import write_text
from ipu_model.jobs.plan import Choice, make_plan
from ipu_model.jobs.probed import Probed
from ipu_model.units import format_bytes
from tasks.host import ledger
from tasks.host.launcher import PopRunOptions, launch_words, poprun_options
from tasks.jobs.device_job import Job, device_python
from tasks.preflight.planned_jobs import PlannedJob, planned_jobs
from tasks.project.errors import ParamsError
from tasks.project.params import DeviceParams, Params
from tasks.project.process import describe_exit, die_with_parent, python_path

if TYPE_CHECKING:
    from ipu_model.ipu.planning import IpuPlan
    from tasks.project.row_folders import Manifest

__all__ = [
    "DOES_NOT_FIT",
    "MK2",
    "Asked",
    "Foretold",
    "Interval",
    "MemoryEstimate",
    "Term",
    "foretell",
    "total",
]

WIDENED_BY = 20
"""Newest records of the ledger that widen an interval."""
DEVICE_FILES = (("ipu", ("/dev/ipu0", "/dev/ipu0_ex")), ("cuda", ("/dev/nvidia0", "/dev/dxg")))
"""Runtime -> what Linux has of its devices."""
PRECISION = {"ipu": "fp16", "cuda": "bf16", "cpu": "fp32"}
"""What `auto` is taken as: on IPUs and GPUs what it chooses, on CPUs the one of the two that takes more memory."""

PROBED_RUNTIMES = ("cpu", "cuda")
LONGEST_PROBE = 180.0
"""Seconds: start-up, some ten seconds of updates, and one more update that may be long."""
MEASURED_LATER = "fp32, as the job chooses its precision by measuring"
NOT_MEASURED = {
    "ipu": "not measured on IPUs; formulas fitted to published figures",
    "cuda": "memory not measured on GPUs; formulas",
}
"""Runtime -> what the estimate of a job rests on while no such job has run on this host."""


@dataclass(frozen=True)
class Asked:
    """What somebody asks beside the jobs themselves."""

    records: Sequence[ledger.Record] = ()
    """Of the ledger."""
    limit: float | None = None
    """Bytes of memory of each GPU, or of a host without; None: of this host, and of GPUs what a probe finds."""
    generation: str = MK2
    """Of IPUs: mk2 or bow."""
    probed: Collection[str] = ()
    """Stages of which a few updates are timed, which takes seconds, where their rows are there."""
    say: Callable[[str], None] = print
    """Told before each of them."""
    manifests: Mapping[str, Path] = field(default_factory=dict)
    """Manifests of the run that are not in its checkout yet -> where they are."""
    elsewhere: bool = False
    """The jobs run on workers, which may have a launcher of their own."""


@dataclass(frozen=True)
class Foretold:
    """A device job of a plan, and what it will need."""

    planned: PlannedJob
    runtime: str
    precision: str
    estimate: JobEstimate | None
    """None where the job cannot be: `problem` says why."""
    problem: str
    assumed: tuple[str, ...]
    impossible: bool = False
    """The job cannot run as it is stated, whatever its rows turn out to be."""
    where: Where = Where()
    better: str = ""
    """How its devices would be used better, as estimated; empty where nothing is known."""
    records: int = 0
    """Of the ledger, which the intervals were widened by."""

    @property
    def name(self) -> str:
        """The stage, and the split where that has several."""
        return self.planned.name

    @property
    def verdict(self) -> str:
        """Of its memory; empty where nobody knows how much there is."""
        bounded = self.estimate is not None and any(math.isfinite(one.limit) for one in self.estimate.memory)
        return self.estimate.verdict if self.estimate is not None and bounded else ""

    @property
    def basis(self) -> str:
        """Say that the estimate was not measured on hardware; empty where it was, or where there is none."""
        return NOT_MEASURED.get(self.runtime, "") if self.estimate is not None and not self.records else ""

    @property
    def time(self) -> TimeEstimate | None:
        """Of the whole job; None where nothing is known of it."""
        return None if self.estimate is None else self.estimate.time

    @property
    def seconds(self) -> Interval | None:
        """That the whole job takes, set-up and compiling aside."""
        return None if self.time is None else scaled(self.time.update_seconds, float(self.time.updates))

    @property
    def ipu_plan(self) -> IpuPlan | None:
        """How it lies on IPUs; None where there are none."""
        job = self.planned.job
        if self.runtime != "ipu" or self.estimate is None or job.model is None:
            return None
        from ipu_model.estimates.ipu import ipu_plan_of

        return ipu_plan_of(job, job.model, self.planned.rows.manifest, self.where.instances)

    @property
    def refusal(self) -> str:
        """Why it cannot run: found, required, knob; empty where it may."""
        if self.verdict != DOES_NOT_FIT:
            return ""
        assert self.estimate is not None
        fullest = self.estimate.memory[0]
        largest = fullest.largest
        knob = f": {largest.knob}" if largest.knob else ""
        return (
            f"{self.name} does not fit: {fullest.where} takes {format_bytes(fullest.total.low)} to "
            f"{format_bytes(fullest.total.high)}, and there are {format_bytes(fullest.limit)}. The largest part is "
            f"{largest.name}, {format_bytes(largest.amount)}{knob}"
        )


def foretell(
    params: Params,
    project: Path,
    root: Path,
    stages: Sequence[str],
    made_anew: Collection[str] = (),
    asked: Asked | None = None,
) -> list[Foretold]:
    """What the device jobs of these stages will need; see `planned_jobs` for the arguments.

    Raises:
        InputError: a file that a job is built from cannot be used.
    """
    asked, device = asked or Asked(), params.device
    jobs = planned_jobs(params, project, root, stages, made_anew, asked.manifests)
    runtime, why = chosen_runtime(device)
    found = [_foretold(job, device, runtime, asked) for job in jobs]
    found = [dataclasses.replace(one, assumed=(*one.assumed, why)) for one in found] if why else found
    return [_probed(one, device, root, asked) if one.planned.stage in asked.probed else one for one in found]


def chosen_runtime(device: DeviceParams, exists: Callable[[str], bool] = os.path.exists) -> tuple[str, str]:
    """The runtime that a job will have, and what of it is assumed; empty where it is stated."""
    if device.runtime != "auto":
        return device.runtime, ""
    for runtime, files in DEVICE_FILES:
        if any(map(exists, files)) and (runtime != "ipu" or importlib.util.find_spec("poptorch") is not None):
            return runtime, f"device.runtime=auto is {runtime}, whose devices are here"
    return "cpu", "device.runtime=auto is cpu, as neither IPUs nor GPUs are here"


def _foretold(planned: PlannedJob, device: DeviceParams, runtime: str, asked: Asked) -> Foretold:
    precision: str = device.precision
    assumed = planned.rows.assumed
    if precision == "auto":
        precision = PRECISION[runtime]
        assumed = (*assumed, *([MEASURED_LATER] if runtime == "cpu" else []))
    job, manifest = dataclasses.replace(planned.job, runtime=runtime, precision=precision), planned.rows.manifest
    try:
        where = _where(job, device, asked)
        estimate, better = estimate_job(job, manifest, where=where), advice(job, manifest, where=where)
    except (DeviceJobError, ParamsError) as error:
        impossible = device.runtime != "auto" and not _may_be_wrong(error, planned, device, asked)
        return Foretold(planned, runtime, precision, None, str(error), assumed, impossible)
    used = ledger.of_kind(asked.records, estimate.device, job.kind)
    update = _update(job, manifest, where.processes)
    alike = [] if update is None else ledger.alike(used, update.flops)
    if estimate.time is None and update is not None:
        estimate = timed(estimate, update, ledger.speed(alike))
    found = Foretold(planned, runtime, precision, widened(estimate, used, alike), "", assumed, where=where)
    return dataclasses.replace(found, better=better, records=len(used))


def attached_ipus(params: Params, project: Path, root: Path, stages: Sequence[str]) -> int:
    """IPUs of the largest device that a job of these stages attaches; 1 where PopRun starts it and attaches them.

    Raises:
        InputError: a file that a job is built from cannot be used.
    """
    from ipu_model.estimates.ipu import ipu_plan_of

    found = [1]
    for planned in planned_jobs(params, project, root, stages, stages):
        job = planned.job
        if job.model is None or job.ipu_config is None:
            continue
        try:
            if not launch_words(job, params.device):
                found.append(ipu_plan_of(job, job.model, planned.rows.manifest).local_ipus)
        except (DeviceJobError, ParamsError):
            continue  # `foretell` says why the job cannot be
    return max(found)


def _may_be_wrong(error: Exception, planned: PlannedJob, device: DeviceParams, asked: Asked) -> bool:
    """Whether the error results from what was assumed of the rows or of the launcher."""
    if isinstance(error, ParamsError):
        return asked.elsewhere
    depends_on = ROWS if isinstance(error, RowsError) else getattr(error, "depends_on", "")
    if depends_on == ROWS:
        return bool(planned.rows.assumed)
    if depends_on != LAUNCHER or asked.elsewhere:
        return depends_on == LAUNCHER
    told = _poprun(planned.job, device, asked)
    return told is not None and told.instances is None


def _where(job: Job, device: DeviceParams, asked: Asked, probed: Probed | None = None) -> Where:
    where = Where(1 if job.kind == "predict" else device.processes, asked.limit, asked.generation, probed)
    told = _poprun(job, device, asked) if job.runtime == "ipu" else None
    if told is None:
        return where
    processes = told.instances or where.processes
    return dataclasses.replace(
        where, processes=processes, replicas=told.replicas, ipus_per_replica=told.ipus_per_replica
    )


def _poprun(job: Job, device: DeviceParams, asked: Asked) -> PopRunOptions | None:
    return poprun_options(launch_words(job, device, {} if asked.elsewhere else os.environ))


def _probed(one: Foretold, device: DeviceParams, root: Path, asked: Asked) -> Foretold:
    """The same with what a few updates take; as it was, where there are no rows yet, or the probe fails."""
    if one.estimate is None or not can_be_probed(one.planned, one.runtime):
        return one
    asked.say(f"{one.name}: a few updates are timed (--no-probe leaves that out)")
    precision = "auto" if device.precision == "auto" else one.precision
    job = dataclasses.replace(one.planned.job, runtime=one.runtime, precision=precision)
    try:
        probed = probe(one.planned, job, root)
    except NotProbed as error:
        asked.say(f"{one.name}: {error}")
        return one
    job, manifest = dataclasses.replace(job, precision=probed.precision), one.planned.rows.manifest
    where = _where(job, device, asked, probed)
    told = estimate_job(job, manifest, where=where)
    # The ledger knows how good the formula of memory was; the time is no longer that of a formula.
    memory = widened(told, ledger.of_kind(asked.records, one.estimate.device, job.kind)).memory
    return dataclasses.replace(
        one,
        precision=probed.precision,
        estimate=dataclasses.replace(told, memory=memory),
        assumed=tuple(words for words in one.assumed if words != MEASURED_LATER),
        better=advice(job, manifest, where=where),
    )


class NotProbed(Exception):
    """Why a job could not be probed."""


def can_be_probed(planned: PlannedJob, runtime: str) -> bool:
    """Whether the rows of a job are there, on a runtime whose updates can be timed at once."""
    return runtime in PROBED_RUNTIMES and not planned.rows.assumed and bool(planned.rows.manifest.files)


def probe(planned: PlannedJob, job: Job, root: Path) -> Probed:
    """What a few updates of a job take, from fresh weights; nothing that they make is kept.

    Args:
        job: of `planned`, with its runtime and precision.
        root: the checkout, which has its rows.

    Raises:
        NotProbed: the device's Python failed, or took too long.
    """
    alone = dataclasses.replace(job, rows=str((root / job.rows).absolute()), evaluation=None, executables=None)
    with tempfile.TemporaryDirectory(prefix="podium-probe-") as folder:
        file = Path(folder) / "job.json"
        write_text(file, dataclasses.replace(alone, output=f"{folder}/out", run_folder=folder).to_json())
        return _read_probed(_run_probe(file))


def _run_probe(file: Path) -> str:
    command = [device_python(), "-m", "ipu_model", "--probe", str(file)]
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    try:
        done = subprocess.run(
            command,
            env=environment,
            text=True,
            capture_output=True,
            timeout=LONGEST_PROBE,
            check=False,
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired:
        raise NotProbed(f"a probe of it took more than {LONGEST_PROBE:.0f} s") from None
    except OSError as error:
        raise NotProbed(f"{command[0]} cannot be started ({error.strerror})") from None
    if done.returncode:
        said = [event["text"] for event in _events(done.stdout) if event["event"] == "error"]
        raise NotProbed(said[-1] if said else f"{describe_exit(done.returncode)} of the device's Python")
    return done.stdout


def _events(text: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]


def _read_probed(text: str) -> Probed:
    """Of the event that a probe ends with."""
    names = {field.name for field in dataclasses.fields(Probed)}
    for event in _events(text):
        if event["event"] == "probed":
            return Probed(**{name: value for name, value in event.items() if name in names})  # type: ignore[arg-type]
    raise NotProbed("the device's Python ended without a word of it")


@dataclass(frozen=True)
class Update:
    """What an update of a training is, or a call of a prediction."""

    calls: int
    """How many of them the job makes."""
    sequences: float
    flops: float


def _update(job: Job, manifest: Manifest, processes: int) -> Update | None:
    """What an update of a job is; None where these rows are too few for one: there may be more than are foreseen."""
    if job.model is None:
        return None
    geometry = dataclasses.replace(job.geometry, replication_factor=processes)
    try:
        plan = make_plan(dataclasses.replace(job, geometry=geometry), manifest, Choice("", ""), Choice("", ""))
    except DeviceJobError:
        return None
    rows = rows_at_once(plan)
    calls = -(-manifest.rows // rows) if job.kind == "predict" else plan.updates
    flops = useful_flops(job.model, manifest, rows, job.kind != "predict")
    return Update(calls, rows * manifest.packing_factor, flops)


def timed(estimate: JobEstimate, update: Update, speed: tuple[float, float, float] | None) -> JobEstimate:
    """The same with the time that it takes at a speed known of earlier jobs.

    Args:
        speed: FLOP/s, slowest, middle and fastest; None: nobody knows.
    """
    if speed is None:
        return estimate
    slowest, middle, fastest = speed
    seconds = Interval(update.flops / fastest, update.flops / middle, update.flops / slowest)
    rates = Interval(*(update.sequences / one for one in (seconds.high, seconds.likely, seconds.low)))
    term = Term(f"matrix products at {middle / 1e9:,.0f} GFLOP/s, as of earlier jobs here", seconds.likely)
    return dataclasses.replace(estimate, time=TimeEstimate((term,), update.calls, seconds, rates))


def widened(
    estimate: JobEstimate, records: Sequence[ledger.Record], alike: Sequence[ledger.Record] = ()
) -> JobEstimate:
    """The same with intervals that hold what such jobs took here, going by measured over foretold.

    Args:
        alike: those of them that speak of its time.
    """

    def wider(interval: Interval, figure: str) -> Interval:
        found = ledger.ratios(records if figure == MEMORY else alike, figure)[-WIDENED_BY:]
        if not found:
            return interval
        low, high = interval.likely * min(found), interval.likely * max(found)
        return Interval(min(interval.low, low), interval.likely, max(interval.high, high))

    memory = tuple(dataclasses.replace(one, total=wider(one.total, MEMORY)) for one in estimate.memory)
    time = estimate.time
    if time is not None:
        seconds, rate = wider(time.update_seconds, SECONDS), wider(time.sequences_per_second, TOKENS)
        time = dataclasses.replace(time, update_seconds=seconds, sequences_per_second=rate)
    return dataclasses.replace(estimate, memory=memory, time=time)


def scaled(interval: Interval, factor: float) -> Interval:
    """An interval in another unit, or of several alike."""
    return Interval(interval.low * factor, interval.likely * factor, interval.high * factor)


def total(intervals: Iterable[Interval]) -> Interval:
    """The sum, its ends those of all being low, and of all being high."""
    found = list(intervals)
    return Interval(sum(x.low for x in found), sum(x.likely for x in found), sum(x.high for x in found))


def as_values(one: Foretold) -> dict[str, Any]:
    """For programs."""
    values: dict[str, Any] = {
        "name": one.name,
        "stage": one.planned.stage,
        "kind": one.planned.job.kind,
        "runtime": one.runtime,
        "precision": one.precision,
        "verdict": one.verdict or None,
        "problem": one.problem or None,
        "assumed": list(one.assumed),
        "better": one.better or None,
        "ledger_records": one.records,
        "basis": one.basis or None,
        "device": None,
        "memory": [],
        "time": None,
    }
    if one.estimate is not None:
        memory = [_memory_values(each) for each in one.estimate.memory]
        values |= {"device": one.estimate.device, "memory": memory}
    if one.time is not None and one.seconds is not None:
        values["time"] = {**dataclasses.asdict(one.time), "seconds": dataclasses.asdict(one.seconds)}
    return values


def _memory_values(memory: MemoryEstimate) -> dict[str, Any]:
    limit = None if math.isinf(memory.limit) else memory.limit  # JSON has no infinity
    return {**dataclasses.asdict(memory), "limit": limit, "verdict": memory.verdict}
