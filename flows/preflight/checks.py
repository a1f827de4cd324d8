"""What can be known before the first stage: this host, the device, files, the Hub, remotes, the disk, the server.

`podium doctor` shows every finding; a run is refused for the problems, all of them at once, before anything starts or
changes. What cannot be found out in time is said and refuses nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from flows.preflight import device, disk, host, inputs, server
from flows.preflight.question import Finding, asked
from flows.run_request import RunRequest
from tasks.project.errors import InputError, ParamsError

AT_ONCE = (
    *(host.system, host.python, host.size, host.folders, host.spelling, host.prefect_home, server.settings),
    *(device.known, device.fit, inputs.there, inputs.written, disk.room),
    *(disk.dvc_remote, disk.checkpoints, inputs.token, inputs.origin, server.known),
)
"""Checks that wait for nothing, in the order of the report."""
TO_ASK = (device.asked, inputs.heads, inputs.asked, server.asked)
"""Checks that may wait, as questions that are asked side by side."""


def look(request: RunRequest) -> list[Finding]:
    """Make every check, those that wait side by side.

    Where something stands in the way, what matters is what the stages need that would really run.
    """
    found = _look(request)
    if any(finding.level == "problem" for finding in found) and not request.on_workers:
        left = _those_that_run(request)
        if len(left) < len(request.target):
            found = _look(dataclasses.replace(request, target=left))
    return found


def _look(request: RunRequest) -> list[Finding]:
    questions = [question for ask in TO_ASK for question in ask(request)]
    with asked(questions, request.project) as under_way:
        found = [finding for check in AT_ONCE for finding in check(request)]
        # once: of a base model's head, both the check of files and that of the Hub may know
        return list(dict.fromkeys([*found, *(finding for one in under_way for finding in one.findings())]))


def _those_that_run(request: RunRequest) -> tuple[str, ...]:
    """Stages that would be neither skipped nor restored; all, where hashing what is given would take long."""
    if disk.hashing_takes_long(request):
        return request.target
    try:
        return tuple(one.stage for one in request.forecast if one.status == "runs")
    except OSError:  # given files that cannot be read, which is a problem that was found already
        return request.target


def require(request: RunRequest, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
    """Refuse a run that cannot end well.

    Args:
        say: takes the warnings.
        tell: takes a line for each device job that would run, what it will need; none where the run is refused.

    Raises:
        ParamsError: some of the reasons are in the parameters (exit code 2).
        InputError: all of them are on this host, in its environment or in given files (exit code 1).
    """
    findings = look(request)
    for finding in findings:
        if finding.level == "warning":
            say(f"{finding.name}: {finding.text}")
    if problems := [finding for finding in findings if finding.level == "problem"]:
        raise (ParamsError if of_parameters(problems) else InputError)(refusal(problems))
    for finding in findings:
        if finding.level == "ok" and finding.name == device.JOBS:
            tell(finding.text)


def of_parameters(problems: Iterable[Finding]) -> bool:
    """Whether some of these problems are in the parameters."""
    return any(problem.of_parameters for problem in problems)


def refusal(problems: list[Finding]) -> str:
    """All reasons in one message."""
    if len(problems) == 1:
        return f"nothing was started. {problems[0].name}: {problems[0].text}"
    reasons = "\n".join(f"  {problem.name}: {problem.text}" for problem in problems)
    return f"nothing was started, for {len(problems)} reasons:\n{reasons}"
