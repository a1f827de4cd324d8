"""What can be known before the first stage: this host, the device, files, the Hub, remotes, the disk, the server.

`podium doctor` shows every finding; a run is refused for the problems, all of them at once, before anything starts or
changes. What cannot be found out in time is said and refuses nothing.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from flows.checks import device, disk, server
from flows.checks.given_inputs import LATER
from flows.checks.given_inputs import wanted as given_to
from flows.checks.probes import FAR_S, HERE_S, Finding, Question, asked, ok, problem, warning
from flows.checks.server import is_usable
from flows.dvc.leftovers import folders_of_outs
from flows.runs.environment import can_write, name_of
from flows.runs.run_request import RunRequest
from flows.server.local_server import may_be_named
from tasks.models.model_card import read_origin
from tasks.plan import plan_file
from tasks.plan.dvc_records import LOCK, cache_of
from tasks.plan.named_files import READ, check_given, check_written, find_parameters
from tasks.release.hub.token import TOKEN, token_of_environment
from tasks.release.origin import require_origin, resolve_origin
from tasks.release.release import refuse_foreign
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError, PublishError
from tasks.stage.parallel import count_cores, stages_at_once

TRIED = ("Linux", "x86_64")
UNSPEAKABLE = "?%"
"""Characters that mean something else in the address of a database, which is made of its path."""


def there(request: RunRequest) -> Iterator[Finding]:
    """Every path that the parameters name, where none of them is a person's own, which may be large."""
    if not list(heads(request)):
        for text in check_given(request.values, request.project):
            yield problem("files", text, of_parameters=True)


def written(request: RunRequest) -> Iterator[Finding]:
    """Every folder that the parameters name for what is written, and what a release would replace."""
    if problems := check_written(request.values, request.project, request.plan):
        yield from (problem("folders", text, of_parameters=True) for text in problems)
        return
    if not request.publish or request.on_workers or request.params.publish.target != "local":
        return
    for gate in (stage for stage in request.stages if stage.is_gate):
        try:
            refuse_foreign(request.project / request.params.downstream[gate.item].publish.folder)
        except PublishError as error:
            yield problem("publish", str(error), of_parameters=True)


def heads(request: RunRequest) -> Iterator[Question]:
    """The same, and the first records of the files, read as their stages read them."""
    deps = {path for stage in request.stages for path in stage.deps}  # as the checkout calls them
    there = find_parameters(request.checkout.values, READ)
    read = sorted({path for name, path in find_parameters(request.values, READ).items() if there[name] in deps})
    if given_to(request.params, read) and not request.on_workers:
        yield Question("files", "flows.checks.given_inputs", {"values": request.values, "read": read}, HERE_S)


def token(request: RunRequest) -> Iterator[Finding]:
    """HF_TOKEN, which is never shown; that of a worker is on its host."""
    if not _publishes(request):
        if request.curious and os.environ.get(TOKEN):
            yield ok("hub", f"{TOKEN} is set; this run publishes to a folder, or not at all")
        return
    try:
        token_of_environment()
    except PublishError as error:
        yield problem("hub", f"{error}. {LATER}")


def origin(request: RunRequest) -> Iterator[Finding]:
    """Licence and language of the model, which its card on the Hub states."""
    base, folder = request.params.base_model, request.project / request.params.base_model.path
    elsewhere = base.source == "folder" and request.on_workers and not folder.is_dir()
    if not _goes_to_hub(request) or base.source == "hub" or elsewhere:
        return  # of a base model on the Hub, `hub` reads them; of a folder on a worker's host, publishing does
    resolved = resolve_origin(request.params, read_origin(folder) if base.source == "folder" else None)
    try:
        require_origin(request.params, resolved)
    except PublishError as error:
        yield problem("hub", str(error), of_parameters=True)
    if base.source == "folder" and resolved.base_model is None:
        yield warning(
            "hub",
            f"the files of {base.path} do not say what the model is called on the Hub, so the card will name no base "
            "model: state it, such as --set publish.base_model=user/name, if it is there",
        )


def hub(request: RunRequest) -> Iterator[Question]:
    """The Hub itself."""
    publish = []
    if _publishes(request):
        try:
            token_of_environment()
            gates = [stage.item for stage in request.stages if stage.is_gate]
            publish = [str(request.params.downstream[name].publish.repository) for name in gates]
        except PublishError:
            pass  # said by `token`
    sources = [] if request.on_workers else list(_sources(request))
    publishing = request.params.publish
    stated = publishing.license and publishing.language
    origin = _goes_to_hub(request) and request.params.base_model.source == "hub" and not stated
    if (publish or sources or origin) and is_usable():
        told = {"values": request.values, "publish": publish, "review": publishing.review}
        yield Question("hub", "flows.checks.given_inputs", told | {"sources": sources, "origin": origin}, FAR_S)


def _publishes(request: RunRequest) -> bool:
    return _goes_to_hub(request) and not request.on_workers


def _goes_to_hub(request: RunRequest) -> bool:
    return request.publish and request.params.publish.target == "hub"


def _sources(request: RunRequest) -> Iterator[dict[str, Any]]:
    """Data sets and models that stages read."""
    for stage in request.stages:
        for section in dict.fromkeys(key for keys in stage.params.values() for key in keys):
            given, holder = (plan_file.value_at(request.values, name) for name in (section, section.rpartition(".")[0]))
            if not isinstance(given, dict) or "hub" not in (given.get("source"), (holder or {}).get("source")):
                continue
            for kind, key in (("model", "repository"), ("dataset", "dataset")):
                named, revision = given.get(key), given.get("revision" if kind == "model" else "dataset_revision")
                is_here = named and section != "base_model" and (request.project / Path(named)).exists()
                if key not in given or is_here:
                    continue
                yield {"kind": kind, "section": section, "name": named, "revision": revision}


def system(request: RunRequest) -> Iterator[Finding]:
    """Linux on x86-64; how processes end and how runs take turns are Linux's own."""
    name, machine = platform.system(), platform.machine()
    found = f"{name} on {machine}"
    if name != TRIED[0]:
        yield problem("system", f"{found}: Podium runs on Linux alone, tried on x86-64; use such a host, or WSL")
    elif machine != TRIED[1]:
        yield warning("system", f"{found}: Podium was tried on x86-64 alone, and nothing is known of other machines")
    else:
        yield ok("system", found)


def python(request: RunRequest) -> Iterator[Finding]:
    """The Python of everything but device jobs."""
    yield ok("python", f"{platform.python_version()}, {sys.executable}")


def size(request: RunRequest) -> Iterator[Finding]:
    """Cores and memory, as this process may use them."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield ok("host", f"{count_cores()} cores, {memory / 1e9:.0f} GB of memory")
    try:
        stages_at_once()
    except ParamsError as error:
        yield problem("host", str(error))


def folders(request: RunRequest) -> Iterator[Finding]:
    """Whatever a run writes must be this user's to write: a clone that another user works in often is not."""
    for path in _written(request.project):
        needed = os.W_OK | os.R_OK | (os.X_OK if os.path.isdir(path) else 0)
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            yield problem(
                "folders",
                f"{path} is on a file system that is mounted read-only: remount it for writing, or work in a clone on "
                "another disk",
            )
            return
        if not os.access(path, needed):
            owner, me = name_of(path.stat().st_uid), name_of(os.getuid())
            yield problem(
                "folders",
                f"{path} belongs to {owner} and cannot be written by {me}: work in a clone of your own, or let {owner} "
                f"share this one (chgrp -R GROUP, chmod -R g+rwXs, umask 002, dvc config --local cache.shared group)",
            )
            return
    yield ok("folders", f"{request.project} can be written")


def _written(project: Path) -> Iterator[Path]:
    """Folders and files of a project that a run writes and that are there."""
    outs = folders_of_outs(project)
    cache, own = cache_of(project), project / ".dvc"
    yield from (project, own)
    for path in (project / LOCK, own / "tmp", cache, *outs, project / artifacts.RUNS, project / "reports"):
        if path.exists():
            yield path
    for pattern in ("lock", "rwlock", "rwlock.lock"):
        yield from (own / "tmp").glob(pattern)
    for pattern in ("files/md5", "files/md5/??", "runs", "runs/??", "runs/??/*"):
        yield from cache.glob(pattern)
    for folder in (*outs, project / artifacts.RUNS, project / "reports"):
        yield from (path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_dir())


def spelling(request: RunRequest) -> Iterator[Finding]:
    """DVC fills in whatever stands in braces in the path of its cache, after the first stage has done its work."""
    cache = os.path.abspath(cache_of(request.project))
    if "{" in cache or "}" in cache:
        yield problem(
            "path",
            f"DVC cannot keep a cache in {cache}, because of the braces: rename the folder, or state another for it "
            "(dvc config --local cache.dir DIR)",
        )


def prefect_home(request: RunRequest) -> Iterator[Finding]:
    """Where the Prefect server of a run keeps its database."""
    if may_be_named() or os.environ.get("PREFECT_API_DATABASE_CONNECTION_URL"):
        return
    home = Path(os.path.expanduser(os.environ.get("PREFECT_HOME") or "~/.prefect"))
    if not can_write(home):
        yield problem(
            "PREFECT_HOME", f"Prefect cannot write {home}: set PREFECT_HOME, or HOME, to a folder that can be written"
        )
    elif any(character in str(home) for character in UNSPEAKABLE):
        yield problem(
            "PREFECT_HOME",
            f"Prefect cannot keep its database in {home}, because of its {' or '.join(UNSPEAKABLE)}: set PREFECT_HOME "
            "to a folder without",
        )


AT_ONCE = (
    *(system, python, size, folders, spelling, prefect_home, server.settings),
    *(device.known, device.fit, there, written, disk.room),
    *(disk.dvc_remote, disk.checkpoints, token, origin, server.known),
)
"""Checks that wait for nothing, in the order of the report."""
TO_ASK = (device.asked, heads, hub, server.asked)
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
