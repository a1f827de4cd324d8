"""Estimates of a plan's device jobs: memory, time and throughput, without a device and without torch.

For IPUs, the formulas are those of ipu_model/estimates, with intervals widened by the ledger of this host. For CPUs and
GPUs, they come from the ledger's jobs of the same shape; without any, only memory has a bound. `measure` runs a few
updates in the device's Python and adds the result to the ledger.
"""

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_model.core.errors import LAUNCHER, ROWS, VOCABULARY, DeviceJobError, OutOfMemory, RowsError
from ipu_model.core.files import write_text
from ipu_model.core.memory import free_memory, memory_limit
from ipu_model.core.units import format_bytes
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.estimates.estimate import (
    DOES_NOT_FIT,
    FITS,
    MEMORY,
    SECONDS,
    TOKENS,
    Interval,
    JobEstimate,
    MemoryEstimate,
    Term,
    TimeEstimate,
)
from ipu_model.estimates.job import MK2, estimate_job, job_shape, rows_per_step, suggest_layout
from ipu_model.estimates.shapes import model_parameters
from ipu_model.jobs.plan import Choice, JobPlan, make_plan
from ipu_model.models.families import configure_model
from tasks.estimates.planned_jobs import PlannedJob, PlannedRows, planned_jobs, write_manifests
from tasks.host import ledger
from tasks.host.launcher import device_python, launch_command, parse_poprun_options
from tasks.jobs.device_job import Job
from tasks.params.schema import DeviceParams, Params
from tasks.stage.errors import ParamsError
from tasks.stage.process import child_environment, describe_exit, die_with_parent
from tasks.stage.row_folders import Manifest
from tasks.stage.scratch import scratch_folder

if TYPE_CHECKING:
    from ipu_model.ipu.planning import IpuPlan

__all__ = ["MemoryEstimate", "configure_model", "model_parameters"]

WIDENED_BY = 20
"""Number of newest ledger records that widen an interval."""
DEVICE_FILES = (("ipu", ("/dev/ipu0", "/dev/ipu0_ex")), ("cuda", ("/dev/nvidia0", "/dev/dxg")))
"""Runtime -> its device files on Linux."""
PRECISION = {"ipu": "fp16", "cuda": "bf16", "cpu": "fp32"}
"""Precision assumed for `auto`: the device's choice on IPUs and GPUs, the one that needs more memory on CPUs."""

MEASURABLE = ("cpu", "cuda")
"""Runtimes on which updates can be measured before a run."""
MEASURED_LATER = "fp32, as the job chooses its precision by measuring"
BASIS = {
    "ipu": "not measured on IPUs; formulas fitted to published figures",
    "cuda": "not measured; a bound from the sizes of tensors",
    "cpu": "not measured; a bound from the sizes of tensors",
}
"""Runtime -> basis of an estimate as long as no such job has run on this host."""
LONGEST = 180.0
"""Timeout in seconds: start-up, up to a minute of updates, and a few more, which may be long."""
MOSTLY_FREE = 0.8
"""Share of the host's memory that must be free before a job that runs out of memory counts as too large."""
KILLED = (-signal.SIGKILL, -signal.SIGABRT)
"""Exit statuses of a process that the kernel or a library ended for memory."""
BESIDES = " besides the memory of the command, Prefect and DVC"


@dataclass(frozen=True)
class EstimateOptions:
    """Options of an estimate."""

    records: Sequence[ledger.Record] = ()
    limit: float | None = None
    """Bytes of memory of each GPU, or of a host without GPUs; None: of this host, and for GPUs the free memory at the
    last measurement."""
    generation: str = MK2
    """IPU generation: mk2 or bow."""
    measured: Collection[str] = ()
    """Stages whose jobs are measured if they run on a CPU or GPU, about 20 seconds per job."""
    in_doubt: bool = False
    """Measure only jobs that may not fit into memory."""
    say: Callable[[str], None] = print
    """Receives a message before each measurement."""
    elsewhere: bool = False
    """The jobs run on workers, which may have their own launcher."""


@dataclass(frozen=True)
class EstimatedJob:
    """Device job of a plan with its estimate."""

    planned: PlannedJob
    runtime: str
    precision: str
    assumed: tuple[str, ...]
    estimate: JobEstimate | None = None
    """None if the job is not possible; see `problem`."""
    plan: JobPlan | None = None
    """Plan on a CPU or GPU; None if there are too few rows for one update, as there may be more than assumed."""
    problem: str = ""
    impossible: bool = False
    """True if the job cannot run with any number of rows."""
    instances: PopRunInstances = PopRunInstances()
    """Processes that train together."""
    better: str = ""
    """Suggestion for better device utilization; empty if there is none."""
    records: int = 0
    """Number of ledger records: those that widened the intervals, or on CPUs and GPUs those that the estimate is based
    on."""
    too_large: str = ""
    """Reason why a measurement ran out of memory."""

    @property
    def name(self) -> str:
        """Name of the stage, with the split if it has several."""
        return self.planned.name

    @property
    def verdict(self) -> str:
        """Verdict on memory; empty if the available memory is unknown."""
        if self.too_large:
            return DOES_NOT_FIT
        bounded = self.estimate is not None and any(math.isfinite(memory.limit) for memory in self.estimate.memory)
        return self.estimate.verdict if self.estimate is not None and bounded else ""

    @property
    def basis(self) -> str:
        """Note that the estimate was not measured on hardware; empty if it was, or if there is no estimate."""
        return BASIS.get(self.runtime, "") if self.estimate is not None and not self.records else ""

    @property
    def time(self) -> TimeEstimate | None:
        """Time estimate of the whole job; None if unknown."""
        return None if self.estimate is None else self.estimate.time

    @property
    def seconds(self) -> Interval | None:
        """Seconds of the whole job, without set-up and compilation."""
        return None if self.time is None else scaled(self.time.update_seconds, float(self.time.updates))

    @property
    def ipu_plan(self) -> "IpuPlan | None":
        """Layout on IPUs; None on other devices."""
        job = self.planned.job
        if self.runtime != "ipu" or self.estimate is None or job.model is None:
            return None
        from ipu_model.estimates.ipu import plan_for_estimate

        return plan_for_estimate(job, job.model, self.planned.rows.manifest, self.instances)

    @property
    def refusal(self) -> str:
        """Reason why the job cannot run and how to fix it; empty if it may run."""
        if self.verdict != DOES_NOT_FIT:
            return ""
        assert self.estimate is not None
        fullest = self.estimate.memory[0]
        largest = fullest.largest
        knob = f": {largest.knob}" if largest.knob else ""
        excess = self.too_large or (
            f"{fullest.where} needs {format_bytes(fullest.total.low)} to {format_bytes(fullest.total.high)}, and "
            f"{format_bytes(fullest.limit)} are available{BESIDES if self.runtime == 'cpu' else ''}"
        )
        return (
            f"{self.name} does not fit: {excess}. The largest part is {largest.name}, "
            f"{format_bytes(largest.amount)}{knob}"
        )


def estimate_jobs(
    params: Params,
    project: Path,
    root: Path,
    stages: Sequence[str],
    remade: Collection[str] = (),
    options: EstimateOptions | None = None,
) -> list[EstimatedJob]:
    """Return estimates of these stages' device jobs; see `planned_jobs` for the arguments.

    Raises:
        InputError: an input file of a job cannot be used.
    """
    options, device = options or EstimateOptions(), params.device
    jobs = planned_jobs(params, project, root, stages, remade)
    runtime, why = choose_runtime(device)
    estimated = [_estimate_job(job, device, runtime, options) for job in jobs]
    estimated = [dataclasses.replace(job, assumed=(*job.assumed, why)) for job in estimated] if why else estimated
    return _measured(estimated, device, options) if options.measured else estimated


def choose_runtime(device: DeviceParams, exists: Callable[[str], bool] = os.path.exists) -> tuple[str, str]:
    """Return the runtime of a job, and the assumption behind it; empty if the parameters set it."""
    if device.runtime != "auto":
        return device.runtime, ""
    for runtime, files in DEVICE_FILES:
        if any(map(exists, files)) and (runtime != "ipu" or importlib.util.find_spec("poptorch") is not None):
            return runtime, f"device.runtime=auto is {runtime}, whose devices are here"
    return "cpu", "device.runtime=auto is cpu, as neither IPUs nor GPUs are here"


def _estimate_job(planned: PlannedJob, device: DeviceParams, runtime: str, options: EstimateOptions) -> EstimatedJob:
    precision: str = device.precision
    assumed = planned.rows.assumed
    if precision == "auto":
        precision = PRECISION[runtime]
        assumed = (*assumed, *([MEASURED_LATER] if runtime == "cpu" else []))
    job, manifest = dataclasses.replace(planned.job, runtime=runtime, precision=precision), planned.rows.manifest
    poprun: dict[str, int] | None = None
    try:
        if runtime == "ipu":
            poprun = parse_poprun_options(launch_command(job, device, {} if options.elsewhere else os.environ))
        processes = 1 if job.kind == "predict" else device.processes
        instances = PopRunInstances(**{"count": processes, **(poprun or {})})
        estimate = estimate_job(job, manifest, instances, options.limit, options.generation)
        better = suggest_layout(job, manifest, instances)
    except (DeviceJobError, ParamsError) as error:
        may_be_wrong = _may_be_wrong(error, planned, poprun, options.elsewhere)
        impossible = device.runtime != "auto" and not may_be_wrong
        return EstimatedJob(planned, runtime, precision, assumed, problem=str(error), impossible=impossible)
    estimated = EstimatedJob(planned, runtime, precision, assumed, estimate, instances=instances, better=better)
    if runtime in MEASURABLE:
        plan = _plan_job(job, manifest, instances.count)
        return _use_ledger(dataclasses.replace(estimated, plan=plan), device, options)
    used = [record for record in options.records if (record["device"], record["kind"]) == (estimate.device, job.kind)]
    return dataclasses.replace(estimated, estimate=widen(estimate, used), records=len(used))


def _use_ledger(job: EstimatedJob, device: DeviceParams, options: EstimateOptions) -> EstimatedJob:
    """Return the job with an estimate from ledger records of its shape on this host, if there are any."""
    estimate, plan, manifest = job.estimate, job.plan, job.planned.rows.manifest
    if estimate is None or plan is None:
        return job
    [memory] = estimate.memory
    host = ledger.host_name(job.runtime)
    free = [x["free_memory"] for x in options.records if x.get("host") == host and "free_memory" in x]
    if free and job.runtime == "cuda" and options.limit is None:
        memory = dataclasses.replace(memory, limit=free[-1])
    used = ledger.select_shape(options.records, _job_shape(job, plan), job.runtime, device.precision, host)
    if not used:
        return dataclasses.replace(job, estimate=dataclasses.replace(estimate, memory=(memory,)))
    if (ends := ledger.expected(used, MEMORY)) is not None:
        term = Term("tensors and libraries, measured", ends.likely, "a smaller device.micro_batch_size")
        memory = dataclasses.replace(memory, terms=(term,), total=ends)
    time = None
    if (ends := ledger.expected(used, SECONDS)) is not None:
        predicts, rows = plan.kind == "predict", rows_per_step(plan)
        term = Term(f"{'calls' if predicts else 'updates'}, as measured", ends.likely, "a smaller model")
        sequences = rows * manifest.packing_factor
        rates = Interval(sequences / ends.high, sequences / ends.likely, sequences / ends.low)
        time = TimeEstimate((term,), -(-manifest.rows // rows) if predicts else plan.updates, ends, rates)
    return dataclasses.replace(
        job,
        precision=used[-1]["precision"],
        estimate=dataclasses.replace(estimate, memory=(memory,), time=time),
        assumed=tuple(words for words in job.assumed if words != MEASURED_LATER),
        records=len(used),
    )


def count_attached_ipus(params: Params, project: Path, root: Path, stages: Sequence[str]) -> int:
    """Return the number of IPUs of the largest device that a job of these stages attaches; 1 if PopRun attaches them.

    Raises:
        InputError: an input file of a job cannot be used.
    """
    from ipu_model.estimates.ipu import plan_for_estimate

    counts = [1]
    for planned in planned_jobs(params, project, root, stages, stages):
        job = planned.job
        with contextlib.suppress(DeviceJobError, ParamsError):  # `estimate_jobs` reports why the job is not possible
            if job.model is not None and job.ipu_config is not None and not launch_command(job, params.device):
                counts.append(plan_for_estimate(job, job.model, planned.rows.manifest).local_ipus)
    return max(counts)


def _may_be_wrong(error: Exception, planned: PlannedJob, poprun: dict[str, int] | None, elsewhere: bool) -> bool:
    """Return True if the error depends on assumed rows, an assumed vocabulary or an assumed launcher."""
    depends_on = getattr(error, "depends_on", "")
    if isinstance(error, RowsError) or depends_on == ROWS:
        return bool(planned.rows.assumed)
    if depends_on == VOCABULARY:
        return not planned.vocabulary_known
    if depends_on == LAUNCHER and poprun is not None and "count" not in poprun:
        return True
    return elsewhere and (depends_on == LAUNCHER or isinstance(error, ParamsError))


def _measured(jobs: Sequence[EstimatedJob], device: DeviceParams, options: EstimateOptions) -> list[EstimatedJob]:
    """Return the jobs with those measured that `options` selects, each shape once."""
    measured, records = [], list[ledger.Record]()
    known = dataclasses.replace(options, records=records)
    for job in jobs:
        if _is_to_be_measured(job, options) and not (job := _use_ledger(job, device, known)).records:
            options.say(f"{job.name}: measuring a few updates")
            try:
                records.append(_measure(job, device))
                job = _use_ledger(job, device, known)
            except OutOfMemory as error:
                job = dataclasses.replace(job, too_large=str(error))
            except NotMeasured as error:
                options.say(f"{job.name}: not measured ({error})")
        measured.append(job)
    return measured


def _is_to_be_measured(job: EstimatedJob, options: EstimateOptions) -> bool:
    if job.planned.stage not in options.measured or job.runtime not in MEASURABLE or job.plan is None:
        return False
    if not options.in_doubt:
        return True
    unknown = not job.verdict and any(map(os.path.exists, dict(DEVICE_FILES)["cuda"]))  # a GPU reports its memory
    return not job.records and (unknown or job.verdict not in ("", FITS, DOES_NOT_FIT))


def _measure(estimated: EstimatedJob, device: DeviceParams) -> ledger.Record:
    """Measure a job, add the result to the ledger of this host, and return it."""
    assert estimated.estimate is not None
    assert estimated.plan is not None
    precision = "auto" if device.precision == "auto" else estimated.precision
    job = dataclasses.replace(estimated.planned.job, runtime=estimated.runtime, precision=precision)
    result = measure(job, estimated.planned.rows, estimated.instances.count)
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "measurement": True,
        "kind": job.kind,
        "head": job.head,
        "runtime": result["runtime"],
        "precision": result["precision"],
        "device": estimated.estimate.device,
        "host": ledger.host_name(estimated.runtime),
        "shape": _job_shape(estimated, estimated.plan),
        **{figure: {"measured": result[figure]} for figure in ledger.FIGURES},
    }
    if result["free_memory"] is not None:
        record["free_memory"] = result["free_memory"]
    with contextlib.suppress(OSError):  # the ledger may not be writable
        ledger.add_record(record, ledger.ledger_file())
    return record


def _plan_job(job: Job, manifest: Manifest, processes: int) -> JobPlan | None:
    """Return the plan of a job on a CPU or GPU; None if these rows are too few for one update."""
    geometry = dataclasses.replace(job.geometry, replication_factor=processes)
    try:
        return make_plan(dataclasses.replace(job, geometry=geometry), manifest, Choice("", ""), Choice("", ""))
    except DeviceJobError:
        return None


def _job_shape(estimated: EstimatedJob, plan: JobPlan) -> dict[str, Any]:
    """Return the key of a job in the ledger."""
    job = estimated.planned.job
    assert job.model is not None
    return job_shape(job, plan, job.model, estimated.planned.rows.manifest, estimated.instances.count)


def widen(estimate: JobEstimate, records: Sequence[ledger.Record]) -> JobEstimate:
    """Return the estimate with intervals widened by measured over estimated of such jobs on this host."""

    def wider(interval: Interval, figure: str, like: Sequence[ledger.Record]) -> Interval:
        spread = ledger.ratios(like, figure)[-WIDENED_BY:]
        if not spread:
            return interval
        low, high = interval.likely * min(spread), interval.likely * max(spread)
        return Interval(min(interval.low, low), interval.likely, max(interval.high, high))

    memory = tuple(
        dataclasses.replace(device_memory, total=wider(device_memory.total, MEMORY, records))
        for device_memory in estimate.memory
    )
    if (time := estimate.time) is not None:
        alike = ledger.select_similar(records, time.update_seconds.likely)
        seconds, rate = wider(time.update_seconds, SECONDS, alike), wider(time.sequences_per_second, TOKENS, alike)
        time = dataclasses.replace(time, update_seconds=seconds, sequences_per_second=rate)
    return dataclasses.replace(estimate, memory=memory, time=time)


def scaled(interval: Interval, factor: float) -> Interval:
    """Return an interval multiplied by a factor."""
    return Interval(interval.low * factor, interval.likely * factor, interval.high * factor)


def add_intervals(intervals: Iterable[Interval]) -> Interval:
    """Return the sum of intervals: low ends, likely values and high ends are added."""
    known = list(intervals)
    return Interval(sum(x.low for x in known), sum(x.likely for x in known), sum(x.high for x in known))


def as_values(job: EstimatedJob) -> dict[str, Any]:
    """Return an estimate as plain values, for JSON."""
    values: dict[str, Any] = {
        "name": job.name,
        "stage": job.planned.stage,
        "kind": job.planned.job.kind,
        "runtime": job.runtime,
        "precision": job.precision,
        "verdict": job.verdict or None,
        "problem": job.problem or None,
        "assumed": list(job.assumed),
        "better": job.better or None,
        "ledger_records": job.records,
        "basis": job.basis or None,
        "device": None,
        "memory": [],
        "time": None,
    }
    if job.estimate is not None:
        values["device"] = job.estimate.device
        for memory in job.estimate.memory:
            limit = None if math.isinf(memory.limit) else memory.limit  # JSON has no infinity
            values["memory"].append({**dataclasses.asdict(memory), "limit": limit, "verdict": memory.verdict})
    if job.time is not None and job.seconds is not None:
        values["time"] = {**dataclasses.asdict(job.time), "seconds": dataclasses.asdict(job.seconds)}
    return values


class NotMeasured(Exception):
    """A job could not be measured."""


def measure(job: Job, rows: PlannedRows, processes: int = 1) -> dict[str, Any]:
    """Run a few updates of a job with random weights, and return what they used (ipu_model/train/measurement.py).

    Its rows need not exist. Of the processes of a training, the share of one is measured.

    Raises:
        OutOfMemory: it needs more memory than available.
        NotMeasured: the device's Python failed, or took too long.
    """
    share = -(-job.geometry.global_batch_size // processes)
    geometry = dataclasses.replace(job.geometry, global_batch_size=share)
    with scratch_folder() as scratch:
        write_manifests({Path("rows"): rows}, scratch)
        alone = dataclasses.replace(job, geometry=geometry, rows=f"{scratch}/rows", executables=None)
        alone = dataclasses.replace(alone, output=f"{scratch}/out", run_folder=str(scratch))
        write_text(scratch / "job.json", alone.to_json())
        return _run([device_python(), "-m", "ipu_model", "--measure", str(scratch / "job.json")], job.runtime)


def _run(command: list[str], runtime: str) -> dict[str, Any]:
    """Run the command and return its last event; on a CPU, its memory is limited to what is free."""
    free, limit = (free_memory(), memory_limit()) if runtime == "cpu" else (None, None)

    def limit_memory() -> None:
        die_with_parent()
        if free is not None:
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            allowed = min([free, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)])
            resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))

    try:
        done = subprocess.run(
            command,
            env=child_environment(),
            text=True,
            capture_output=True,
            timeout=LONGEST,
            check=False,
            preexec_fn=limit_memory,
        )
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"it took more than {LONGEST:.0f} s") from None
    except OSError as error:
        raise NotMeasured(f"{command[0]} cannot be started ({error.strerror})") from None
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    last: dict[str, Any] = events[-1] if events else {"event": "", "type": ""}
    if last["event"] == "measured":
        return last
    if done.returncode in KILLED or last.get("type") == OutOfMemory.__name__:
        if free is not None and limit is not None and free < MOSTLY_FREE * limit:
            raise NotMeasured(f"it needs more than the {format_bytes(free)} of memory that are free here")
        raise OutOfMemory("it ran out of memory when a few of its updates were measured")
    raise NotMeasured(last["text"] if last["event"] == "error" else f"{describe_exit(done.returncode)} of {command[0]}")
