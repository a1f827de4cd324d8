"""What can be known before the first stage: this host, the device, files, the Hub, remotes, the disk, the server.

`podium doctor` shows every finding; a run is refused for the problems, all of them at once, before anything starts or
changes. What cannot be found out in time is said and refuses nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from flows import checkout, run_params
from flows.plan import ALL, stages_to_run
from flows.preflight import device, device_jobs, disk, host, hub, inputs, network, remotes, server, surroundings
from flows.preflight.finding import Finding, Wanted
from flows.preflight.question import Question, asked
from tasks.project.errors import InputError, ParamsError

__all__ = ["Finding", "Wanted", "look", "of_parameters", "of_run", "refusal", "require"]

_SETTINGS = (network.settings, device.known, device_jobs.fit, inputs.there, inputs.written, disk.room)
_PLACES = (remotes.dvc_remote, remotes.checkpoints, hub.token, hub.origin, server.known)
_CHECKS = (*host.CHECKS, *surroundings.CHECKS, *_SETTINGS, *_PLACES)
AT_ONCE: tuple[Callable[[Wanted], Iterator[Finding]], ...] = _CHECKS
"""Checks that wait for nothing."""
TO_ASK: tuple[Callable[[Wanted], Iterator[Question]], ...] = (device.asked, inputs.heads, hub.asked, server.asked)
"""Checks that may wait, as questions that are asked side by side."""


def of_run(
    project: Path,
    preset: str | None,
    overrides: Sequence[str],
    part: str = ALL,
    to: Sequence[str] = (),
    publish: bool = True,
    on_workers: bool = False,
    curious: bool = False,
    name: str | None = None,
    force: bool = False,
) -> Wanted:
    """What to look at before the run that these words of the command line ask for.

    Raises:
        ParamsError: preset, overrides, part or the stages to run to are wrong, or the name is another run's.
    """
    values = checkout.resolved_params(project, preset, list(overrides))
    stages = tuple(stages_to_run(project, values, part, to))
    root = checkout.folder_of(project, values, preset, overrides, name, on_workers)
    run_params.require_same(project, values, name)
    wanted = Wanted(project, values, root, stages, publish and not to, on_workers, curious, force)
    return dataclasses.replace(wanted, publish=wanted.publish and any(stage.is_gate for stage in wanted.plan))


def look(wanted: Wanted) -> list[Finding]:
    """Make every check, those that wait side by side.

    Where something stands in the way, what matters is what the stages need that would really run.
    """
    found = _look(wanted)
    if any(finding.level == "problem" for finding in found) and not wanted.on_workers:
        left = _those_that_run(wanted)
        if len(left) < len(wanted.stages):
            found = _look(dataclasses.replace(wanted, stages=left))
    return found


def _look(wanted: Wanted) -> list[Finding]:
    questions = [question for ask in TO_ASK for question in ask(wanted)]
    with asked(questions, wanted.project) as under_way:
        found = [finding for check in AT_ONCE for finding in check(wanted)]
        # once: of a base model's head, both the check of files and that of the Hub may know
        return list(dict.fromkeys([*found, *(finding for one in under_way for finding in one.findings())]))


def _those_that_run(wanted: Wanted) -> tuple[str, ...]:
    """Stages that would be neither skipped nor restored; all, where hashing what is given would take long."""
    if disk.hashing_takes_long(wanted):
        return wanted.stages
    try:
        return tuple(one.stage for one in wanted.forecast if one.status == "runs")
    except OSError:  # given files that cannot be read, which is a problem that was found already
        return wanted.stages


def _unsaid(text: str) -> None:
    """For who wants to know of problems alone."""


def require(wanted: Wanted, say: Callable[[str], None], tell: Callable[[str], None] = _unsaid) -> None:
    """Refuse a run that cannot end well.

    Args:
        say: takes the warnings.
        tell: takes a line for each device job that would run, what it will need; none where the run is refused.

    Raises:
        ParamsError: some of the reasons are in the parameters (exit code 2).
        InputError: all of them are on this host, in its environment or in given files (exit code 1).
    """
    findings = look(wanted)
    for finding in findings:
        if finding.level == "warning":
            say(f"{finding.name}: {finding.text}")
    if problems := [finding for finding in findings if finding.level == "problem"]:
        raise (ParamsError if of_parameters(problems) else InputError)(refusal(problems))
    for finding in findings:
        if finding.level == "ok" and finding.name == device_jobs.NAME:
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
