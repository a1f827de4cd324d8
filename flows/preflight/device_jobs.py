"""Whether device jobs fit into the memory of their device, and what they take: worked out, nothing is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flows.foretold import RUNS, jobs_of
from flows.plan_words import in_short
from flows.preflight import disk
from flows.preflight.finding import Finding, ok, problem, warning
from flows.run_request import RunRequest
from tasks.preflight.foretelling import Foretold
from tasks.project.dvc_records import StageForecast
from tasks.project.errors import InputError, ParamsError

NAME = "device jobs"
OF_THE_RECIPE = "ipu"
"""The runtime whose memory no host changes; what a worker has of others is not known here."""


def fit(request: RunRequest) -> Iterator[Finding]:
    """Each job that would run: what it will need, or that it does not fit or cannot run as stated."""
    try:
        jobs = jobs_of(request, _stages(request))
    except (InputError, OSError) as error:  # a stage, or another check, says the same of the file
        yield warning(NAME, f"nothing is foretold of them: {error}")
        return
    for job in jobs:
        yield _finding(job, request)


def require_fit(request: RunRequest, tell: Callable[[str], None]) -> None:
    """Say what the device jobs of a run will need, and refuse one that does not fit or cannot run as stated.

    Raises:
        ParamsError: names the largest part of its memory and what makes it smaller, or what the job requires.
    """
    findings = list(fit(request))
    for finding in findings:
        tell(finding.text)
    if problems := [finding.text for finding in findings if finding.level == "problem"]:
        raise ParamsError("\n".join(problems))


def _stages(request: RunRequest) -> list[StageForecast]:
    """Those that would run; all, where looking would take long."""
    if request.on_workers or disk.hashing_takes_long(request):
        return [StageForecast(stage, RUNS, ()) for stage in request.target]
    return [one for one in request.forecast if one.status == RUNS]


def _finding(job: Foretold, request: RunRequest) -> Finding:
    elsewhere = request.on_workers and job.runtime != OF_THE_RECIPE
    if job.impossible and not elsewhere:
        return problem(NAME, f"{job.name}: {job.problem}", of_parameters=True)
    if job.estimate is None:  # what was assumed may be why, so that the job itself has the last word
        return warning(NAME, f"{job.name}: {job.problem}")
    if not job.refusal or elsewhere:
        return ok(NAME, in_short(job))
    if request.force:
        return warning(NAME, f"{job.refusal}; it is tried all the same (--force)")
    return problem(NAME, f"{job.refusal}. podium run --force tries it all the same (a flow: force)")
