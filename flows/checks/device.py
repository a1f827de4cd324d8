"""Checks of the device for training and prediction: its Python, runtime and launcher, and whether its jobs fit into its
memory, by estimates; no job is started."""

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flows import dvc
from flows.checks.probes import REMOTE_LIMIT_S, CheckResult, Probe, ok, problem, warning
from flows.runs.run_estimate import RUNS, estimate_run_jobs, folder_bytes
from flows.runs.run_request import RunRequest
from flows.views.plan_page import JobView
from tasks.estimates.job_estimates import EstimatedJob, EstimateOptions, count_attached_ipus
from tasks.host.launcher import DEVICE_LAUNCHER, DEVICE_PYTHON, parse_launcher
from tasks.models.model_folders import packs_rows
from tasks.params.sections import RuntimeSpec
from tasks.plan.dvc_records import StageStatus
from tasks.plan.named_files import OWN_INPUTS, find_parameters
from tasks.plan.plan_file import ANYWHERE, COMPILER, DEVICE, Stage
from tasks.plan.stage_kinds import STAGE_KINDS, offered_kinds
from tasks.stage import streams
from tasks.stage.errors import InputError, ParamsError

JOBS = "device jobs"
MAX_HASHED = 2e9
"""Maximum bytes of input files that are hashed before a run starts."""
HOST_INDEPENDENT = "ipu"
"""Runtime whose memory is the same on every host; the memory of workers for other runtimes is unknown here."""


def check_device(request: RunRequest) -> Iterator[CheckResult]:
    """Check the device without a probe: the launcher, and torch for CPU jobs in this Python."""
    stages = _stages(request)
    if not stages:
        if request.thorough:
            yield ok("device", "not needed here: all device stages are up to date or only restored")
        return
    device = request.params.device
    yield from _check_launcher(device.launched_by)
    if list(probe_device(request)):
        return
    if importlib.util.find_spec("torch") is None:
        yield problem("device", f"{sys.executable} lacks torch. Install it with make setup, or set {DEVICE_PYTHON}")
    else:
        yield ok("device", f"cpu, {device.precision}; torch {version('torch')} of this Python")


def _check_launcher(named: str | None) -> Iterator[CheckResult]:
    launcher, knob = os.environ.get(DEVICE_LAUNCHER), "device.launcher"
    words = ["poprun"] if named == "poprun" else []
    if launcher:
        knob = DEVICE_LAUNCHER
        try:
            words = parse_launcher(launcher)
        except ParamsError as error:
            yield problem("launcher", str(error))
            return
    if words and shutil.which(words[0], path=dvc.stage_environment()["PATH"]) is None:
        yield problem("launcher", f"{words[0]} is not on PATH. Enable the SDK that contains it, or change {knob}")


def probe_device(request: RunRequest) -> Iterator[Probe]:
    """Probe the device's Python, unless it is this one and only the CPU is needed."""
    stages = _stages(request)
    places = _required_devices(request, stages)
    device_python = os.environ.get(DEVICE_PYTHON)
    family = request.params.model.family
    local_cpu = not device_python and not request.thorough and all(map(_is_cpu, places))
    if not stages or (local_cpu and packs_rows(family)):
        return
    device, ipus, own_launcher = request.params.device, 1, os.environ.get(DEVICE_LAUNCHER)
    if any(spec["runtime"] in ("ipu", "auto") for spec in places):
        with contextlib.suppress(InputError, OSError):  # reported by the check of files
            names = [stage.name for stage in stages]
            ipus = count_attached_ipus(request.params, request.project, request.root, names)
    wanted = {
        "places": places,
        "processes": 1 if own_launcher or device.launched_by != "torchrun" else device.processes,
        "family": family,
        "pretrains": request.params.pretrain.enabled,
        "compile_only": all(stage.host == COMPILER for stage in stages),
        "ipus": ipus,
    }
    python = device_python or sys.executable
    named = f"{DEVICE_PYTHON}={device_python}" if device_python else python
    failure = f"{named} does not answer the device check. Set {DEVICE_PYTHON} to the device's Python, or unset it"
    yield Probe("device", "ipu_model.runtimes.host_check", wanted, REMOTE_LIMIT_S, python, failure)


def _stages(request: RunRequest) -> list[Stage]:
    """Return the stages that need a device on this host, without those that it may only restore."""
    if request.options.on_workers:
        return []
    runtime, offered = request.params.device.runtime, (*offered_kinds(), "auto")
    return [stage for stage in request.stages if stage.host != ANYWHERE and stage.kind(runtime) in offered]


def _is_cpu(runtime: dict[str, Any]) -> bool:
    """Return whether a job runs on the CPU for certain: also `auto` where torch has no CUDA and there is no poptorch.

    It saves a probe, which imports torch: two seconds of a core while Prefect starts.
    """
    if runtime["runtime"] == "cpu":
        return True
    if runtime["runtime"] != "auto" or runtime["precision"] not in ("auto", "fp32"):
        return False
    with contextlib.suppress(PackageNotFoundError):
        return version("torch").endswith("+cpu") and importlib.util.find_spec("poptorch") is None
    return False


def _required_devices(request: RunRequest, stages: list[Stage]) -> list[dict[str, Any]]:
    device = request.params.device
    places = []
    named = [stage for stage in stages if stage.host not in (DEVICE, COMPILER)]
    if len(named) < len(stages):
        hint = f"device.runtime={device.runtime}, device.precision={device.precision}"
        if device.runtime not in ("cpu", "auto"):
            hint += f" (set {STAGE_KINDS}=cpu on a host that only restores results)"
        places.append({"knob": hint, "runtime": device.runtime, "precision": device.precision})
    for stage in named:
        spec = RuntimeSpec.parse(stage.host)
        knob = f"{stage.meta.get('because', stage.name)} names {stage.host}"
        places.append({"knob": knob, "runtime": spec.runtime, "precision": spec.precision})
    return places


def check_fit(request: RunRequest) -> Iterator[CheckResult]:
    """Check each device job that would run: it must fit and must be able to run with its parameters."""
    try:
        stages = find_stages_to_run(request)
        names = () if request.options.on_workers or request.thorough else [stage.stage for stage in stages]
        jobs = estimate_run_jobs(request, stages, EstimateOptions(measured=names, in_doubt=True, say=streams.note))
    except (InputError, OSError) as error:  # a stage or another check reports the file
        yield warning(JOBS, f"no estimates: {error}")
        return
    for job in jobs:
        yield _check_job(job, request)


def require_fit(request: RunRequest, tell: Callable[[str], None]) -> None:
    """Report the estimates of a run's device jobs; refuse a job that does not fit or cannot run with its parameters.

    Raises:
        ParamsError: names the largest part of the memory with the parameter that reduces it, or the job's requirement.
    """
    findings = list(check_fit(request))
    for finding in findings:
        tell(finding.text)
    if problems := [finding.text for finding in findings if finding.level == "problem"]:
        raise ParamsError("\n".join(problems))


def find_stages_to_run(request: RunRequest) -> list[StageStatus]:
    """Return the stages that would run; all stages if finding out takes long, or if an input cannot be read."""
    inputs = find_parameters(request.values, OWN_INPUTS).values()
    if not request.options.on_workers and sum(folder_bytes(request.project / path) for path in inputs) <= MAX_HASHED:
        with contextlib.suppress(OSError):  # another check reports the file
            return [stage for stage in request.forecast if stage.status == RUNS]
    return [StageStatus(stage, RUNS, ()) for stage in request.target]


def _check_job(job: EstimatedJob, request: RunRequest) -> CheckResult:
    elsewhere = request.options.on_workers and job.runtime != HOST_INDEPENDENT
    if job.impossible and not elsewhere:
        return problem(JOBS, f"{job.name}: {job.problem}", of_parameters=True)
    if job.estimate is None:  # an assumption may be the cause, so that the job itself decides
        return warning(JOBS, f"{job.name}: {job.problem}")
    if not job.refusal or elsewhere:
        return ok(JOBS, JobView(job).summary)
    if request.options.force:
        return warning(JOBS, f"{job.refusal}; it runs anyway (--force)")
    return problem(JOBS, f"{job.refusal}. Use podium run --force (in a flow: force) to run it anyway")
