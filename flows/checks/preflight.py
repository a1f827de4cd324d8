"""Checks before the first stage: host, device, files, Hub, remotes, disk, server.

`podium doctor` shows every result. A run is refused with all problems in one message, before anything starts or
changes. A check that does not finish in time is a warning.
"""

import dataclasses
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from flows.checks import device, server
from flows.checks.input_checks import INPUT, PUBLISH_LATER, select_checks
from flows.checks.probes import LOCAL_LIMIT_S, REMOTE_LIMIT_S, CheckResult, Probe, ok, problem, start_probes, warning
from flows.dvc.leftovers import output_folders
from flows.dvc.releases import RELEASE_STAGES
from flows.runs.environment import is_writable, user_name
from flows.runs.run_estimate import estimate_data_bytes, estimate_model_bytes
from flows.runs.run_request import RunRequest
from flows.server.local_server import may_be_configured, users_home
from ipu_model.core.units import format_bytes, shorten
from tasks.models.model_card import read_origin
from tasks.models.model_folders import rotates_positions
from tasks.plan import plan_file
from tasks.plan.code_state import call_git, git_state
from tasks.plan.dvc_records import LOCK, LOST, default_remote, find_cache
from tasks.plan.named_files import READ, check_input_paths, check_output_folders, find_parameters
from tasks.release.hub.token import TOKEN, token_of_environment
from tasks.release.release import refuse_foreign, require_origin, require_signed, resolve_origin
from tasks.release.signing import open_signer
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError, ParamsError, PublishError, require_packages
from tasks.stage.parallel import count_cores

MIN_SHARE = 0.5
"""Minimum share of the estimate that must be free."""
PACKAGE_SCHEMES = {"sftp": "ssh", "https": "http", "webdavs": "webdav"}
"""URL scheme -> scheme in the name of DVC's package, which is dvc_SCHEME."""
TESTED = ("Linux", "x86_64")
OLDEST = {"dvc": "3.61", "prefect": "3.7"}
"""Package below a run -> oldest version that works; another project of the same Python may require another."""
OLDEST_GIT = "2.18"
"""Knows `git status --no-renames`."""
SHOWN_LOST = 3
UNSAFE_IN_URLS = "?%"
"""Characters with a special meaning in the URL of a database, which contains its path."""


def check_paths(request: RunRequest) -> Iterator[CheckResult]:
    """Check all paths in the parameters."""
    for text in check_input_paths(request.values, request.project):
        yield problem("files", text, of_parameters=True)


def check_outputs(request: RunRequest) -> Iterator[CheckResult]:
    """Check all output folders in the parameters, and the folder that a release would replace."""
    if problems := check_output_folders(request.values, request.project, request.plan):
        yield from (problem("folders", text, of_parameters=True) for text in problems)
        return
    if not request.options.publish or request.options.on_workers or request.params.publish.target != "local":
        return
    for gate in (stage for stage in request.stages if stage.is_gate):
        try:
            folder = _release_folder(request, gate.item)
            refuse_foreign(folder)
            require_signed(folder, request.params.publish.signing != "none")
        except PublishError as error:
            yield problem("publish", str(error), of_parameters=True)


def probe_files(request: RunRequest) -> Iterator[Probe]:
    """Probe all paths, and the first records of the files with the readers of their stages."""
    deps = {path for stage in request.stages for path in stage.deps}  # relative to the checkout
    in_checkout = find_parameters(request.checkout.values, READ)
    read = sorted({path for name, path in find_parameters(request.values, READ).items() if in_checkout[name] in deps})
    compared = [entry for entry in _list_compared(request, "local") if _release_folder(request, entry).exists()]
    if select_checks(request.params, read, compared) and not request.options.on_workers:
        values = {"values": request.values, "read": read, "compared": compared}
        yield Probe("files", "flows.checks.input_checks", values, LOCAL_LIMIT_S)


def check_token(request: RunRequest) -> Iterator[CheckResult]:
    """Check HF_TOKEN, which is never shown; a worker's token is on its own host."""
    if not _publishes(request):
        if request.thorough and os.environ.get(TOKEN):
            yield ok("hub", f"{TOKEN} is set, but this run does not publish to the Hub")
        return
    try:
        token_of_environment()
    except PublishError as error:
        yield problem("hub", f"{error}. {PUBLISH_LATER}")


def check_signing(request: RunRequest) -> Iterator[CheckResult]:
    """Check the key or identity that signs releases; a worker's key is on its own host."""
    if not request.options.publish or request.options.on_workers or not any(stage.is_gate for stage in request.stages):
        return
    try:
        if signer := open_signer(request.params.publish.signing):
            yield ok("signing", f"releases are signed ({signer.kind})")
    except PublishError as error:
        yield problem("signing", f"{error}. {PUBLISH_LATER}")


def check_rotation(request: RunRequest) -> Iterator[CheckResult]:
    """Check that the model has the rotary positions whose base a phase sets, and that its heads can be rotated."""
    training, family = request.params.pretrain, request.params.model.family
    phases = training.list_phases()
    setter = training.find_theta(phases[-1]) if phases else None
    if setter is not None and not rotates_positions(family):
        text = (
            f"pretrain.{setter}.global_rope_theta needs a model with rotary positions, found model.family: {family} "
            "(docs/models.md). Set it to null"
        )
        yield problem("model", text, of_parameters=True)
    size = request.params.model.hidden_size // request.params.model.num_heads
    if rotates_positions(family) and size % 2:
        text = (
            f"model.hidden_size / model.num_heads = {size}: the rotary positions of {family} need an even number. "
            "Change one of both"
        )
        yield problem("model", text, of_parameters=True)


def require_fitting_model(request: RunRequest) -> None:
    """Refuse parameters that do not fit the model (ParamsError), for a plan, which checks nothing else."""
    _refuse_problems([*check_rotation(request)])


def check_export(request: RunRequest) -> Iterator[CheckResult]:
    """Check the packages that exporting needs; a worker's are on its own host."""
    if request.options.on_workers or not any(stage.group == "export" for stage in request.stages):
        return
    from tasks.downstream.inference.onnx_answers import EXPORTING  # imports numpy and pyarrow

    try:
        require_packages("export", EXPORTING)
    except InputError as error:
        yield problem("export", str(error))


def check_origin(request: RunRequest) -> Iterator[CheckResult]:
    """Check license and language of the model, which its card on the Hub requires."""
    base, folder = request.params.base_model, request.project / request.params.base_model.path
    elsewhere = base.source == "folder" and request.options.on_workers and not folder.is_dir()
    if not _goes_to_hub(request) or base.source == "hub" or elsewhere:
        return  # `probe_hub` checks a base model on the Hub; publishing checks a folder on a worker's host
    resolved = resolve_origin(request.params, read_origin(folder) if base.source == "folder" else None)
    try:
        require_origin(request.params, resolved)
    except PublishError as error:
        yield problem("hub", str(error), of_parameters=True)
    if base.source == "folder" and resolved.base_model is None:
        yield warning(
            "hub",
            f"the files of {base.path} do not state the model's name on the Hub, so that the card will name no base "
            "model. If the model is there, set its name, for example --set publish.base_model=user/name",
        )


def probe_hub(request: RunRequest) -> Iterator[Probe]:
    """Probe the Hub."""
    publish = []
    if _publishes(request):
        try:
            token_of_environment()
            gates = [stage.item for stage in request.stages if stage.is_gate]
            publish = [str(request.params.downstream[name].publish.repository) for name in gates]
        except PublishError:
            pass  # reported by `check_token`
    sources = [] if request.options.on_workers else list(_hub_sources(request))
    publishing = request.params.publish
    # Without the token that publishing needs, a private repository cannot be read either.
    compared = _list_compared(request, "hub") if publish or not request.options.publish else []
    explicit = publishing.license and publishing.language
    origin = _goes_to_hub(request) and request.params.base_model.source == "hub" and not explicit
    if (publish or sources or origin or compared) and not list(server.check_network(request)):
        values = {"values": request.values, "publish": publish, "review": publishing.review, "compared": compared}
        yield Probe("hub", "flows.checks.input_checks", values | {"sources": sources, "origin": origin}, REMOTE_LIMIT_S)


def _release_folder(request: RunRequest, entry: str) -> Path:
    return request.project / request.params.downstream[entry].publish.folder


def _list_compared(request: RunRequest, target: str) -> list[str]:
    """Return the entries whose gates compare with what publishing replaces; a worker's are checked on its own host."""
    if request.options.on_workers or request.params.publish.target != target:
        return []
    return [stage.item for stage in request.stages if stage.group == RELEASE_STAGES]


def _publishes(request: RunRequest) -> bool:
    return _goes_to_hub(request) and not request.options.on_workers


def _goes_to_hub(request: RunRequest) -> bool:
    return request.options.publish and request.params.publish.target == "hub"


def _hub_sources(request: RunRequest) -> Iterator[dict[str, Any]]:
    """Yield Hub data sets, models and teachers that the stages read."""
    for stage in request.stages:
        if stage.group == "teacher" and (repository := request.params.downstream[stage.item].distill.repository):
            yield {"kind": "teacher", "section": stage.item, "name": repository, "revision": None}
        for section in dict.fromkeys(key for keys in stage.params.values() for key in keys):
            part, holder = (plan_file.value_at(request.values, name) for name in (section, section.rpartition(".")[0]))
            if not isinstance(part, dict) or "hub" not in (part.get("source"), (holder or {}).get("source")):
                continue
            for kind, key in (("model", "repository"), ("dataset", "dataset")):
                named, revision = part.get(key), part.get("revision" if kind == "model" else "dataset_revision")
                is_here = named and section != "base_model" and (request.project / Path(named)).exists()
                if key not in part or is_here:
                    continue
                yield {"kind": kind, "section": section, "name": named, "revision": revision}


def check_host(request: RunRequest) -> Iterator[CheckResult]:
    """Check for Linux on x86-64, as ending processes and locking runs rely on it; report Python, cores and memory."""
    name, machine = platform.system(), platform.machine()
    system = f"{name} on {machine}"
    if name != TESTED[0]:
        yield problem("system", f"{system}: Podium requires Linux (tested on x86-64). Use such a host, or WSL")
    elif machine != TESTED[1]:
        yield warning("system", f"{system}: Podium was tested only on x86-64")
    else:
        yield ok("system", system)
    yield ok("python", f"{platform.python_version()}, {sys.executable}")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield ok("host", f"{count_cores()} cores, {memory / 1e9:.0f} GB of memory")


def check_packages(request: RunRequest) -> Iterator[CheckResult]:
    """Check the versions of DVC and Prefect."""
    for package, oldest in OLDEST.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "not installed"
        if server.parse_release(version) < server.parse_release(oldest):
            yield problem(
                package,
                f"{package} is {version}; {oldest} or newer is required. Run {sys.executable} -m pip install -U "
                f"'{package}>={oldest}'",
            )


def check_folders(request: RunRequest) -> Iterator[CheckResult]:
    """Check that this user may write everything that a run writes, which often fails in another user's clone."""
    for path in _written_paths(request.project):
        needed = os.W_OK | os.R_OK | (os.X_OK if os.path.isdir(path) else 0)
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            yield problem(
                "folders",
                f"{path} is on a read-only file system. Remount it for writing, or use a clone on another disk",
            )
            return
        if not os.access(path, needed):
            owner, me = user_name(path.stat().st_uid), user_name(os.getuid())
            yield problem(
                "folders",
                f"{path} belongs to {owner} and is not writable for {me}. Use your own clone, or let {owner} share "
                f"this one (chgrp -R GROUP, chmod -R g+rwXs, umask 002, dvc config --local cache.shared group)",
            )
            return
    yield ok("folders", f"{request.project} is writable")


def _written_paths(project: Path) -> Iterator[Path]:
    """Yield existing folders and files of a project that a run writes."""
    outs = output_folders(project)
    cache, dvc_folder = find_cache(project), project / ".dvc"
    yield from (project, dvc_folder)
    for path in (project / LOCK, dvc_folder / "tmp", cache, *outs, project / artifacts.RUNS, project / "reports"):
        if path.exists():
            yield path
    for pattern in ("lock", "rwlock", "rwlock.lock"):
        yield from (dvc_folder / "tmp").glob(pattern)
    for pattern in ("files/md5", "files/md5/??", "runs", "runs/??", "runs/??/*"):
        yield from cache.glob(pattern)
    for folder in (*outs, project / artifacts.RUNS, project / "reports"):
        yield from (path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_dir())


def check_cache(request: RunRequest) -> Iterator[CheckResult]:
    """Check DVC's cache: its path has no braces, which DVC would expand after the first stage has run, and it has the
    outputs of all finished stages."""
    cache = os.path.abspath(find_cache(request.project))
    if "{" in cache or "}" in cache:
        yield problem(
            "path",
            f"DVC cannot use the cache {cache}, because its path contains braces. Rename the folder, or set another "
            "cache (dvc config --local cache.dir DIR)",
        )
    stages = [stage.stage for stage in device.find_stages_to_run(request) if LOST in stage.why]
    if stages:
        lost = [path for stage in stages for path in request.plan[stage].outs]
        yield warning(
            "DVC's cache",
            f"{shorten(lost, SHOWN_LOST)} {'is' if len(lost) == 1 else 'are'} in no cache of this host, as after "
            "`dvc gc`, and will be made again. If a DVC remote has them, run `dvc fetch` first",
        )


def check_git(request: RunRequest) -> Iterator[CheckResult]:
    """Warn if a run could not record the revision of its code although there is a repository."""
    project = request.project
    is_repository = any((folder / ".git").exists() for folder in (project, *project.parents))
    if git_state(project)["revision"] is not None or not is_repository:
        return
    reason, fix = "git is not installed", "install git"
    if shutil.which("git") is not None:
        version = call_git(project, "version").stdout.strip()
        refusal = call_git(project, "rev-parse", "HEAD").stderr.strip().partition("\n")[0]
        reason, fix = refusal or "the repository does not track the code", "work in a clone of your own"
        if server.parse_release(version) < server.parse_release(OLDEST_GIT):
            reason, fix = version, f"install git {OLDEST_GIT} or newer"
    yield warning("git", f"the revision of the code will not be recorded ({reason}). To record it, {fix}")


def check_prefect_home(request: RunRequest) -> Iterator[CheckResult]:
    """Check the folder of the database of a run's Prefect server."""
    if may_be_configured():
        return
    home = users_home()
    if not is_writable(home):
        yield problem("PREFECT_HOME", f"Prefect cannot write to {home}. Set PREFECT_HOME or HOME to a writable folder")
    elif any(character in str(home) for character in UNSAFE_IN_URLS):
        yield problem(
            "PREFECT_HOME",
            f"Prefect cannot use a database in {home}, because the path contains {' or '.join(UNSAFE_IN_URLS)}. Set "
            "PREFECT_HOME to another folder",
        )


def check_disk(request: RunRequest) -> Iterator[CheckResult]:
    """Check the free space on the project's disk; DVC's cache shares it by links if the disk supports them.

    A run is refused only if the space is clearly too small, because the estimate is low for folders that are too large
    to scan; `python -m tasks.estimates.data_estimate` measures.
    """
    if request.options.on_workers:
        return
    needed = estimate_data_bytes(request) + estimate_model_bytes(request)
    free = shutil.disk_usage(request.project).free
    fact = f"{format_bytes(free)} free in {request.project}, about {format_bytes(needed)} will be written"
    if free < MIN_SHARE * needed:
        knob = "Free some space, lower pretrain_rows.*.duplicates, or use a clone on another disk"
        yield problem("disk", f"{fact}. {knob}")
    elif free < needed:
        yield warning("disk", f"{fact}. Free some space, or the disk may become full during the run")
    else:
        yield ok("disk", fact)


def check_dvc_remote(request: RunRequest) -> Iterator[CheckResult]:
    """Check DVC's remote: a writable folder, or a URL whose DVC package is installed."""
    remote = default_remote(request.project)
    if remote is None:
        if request.thorough:
            yield ok("remote", "none: results stay on this host")
        return
    name, url = remote
    if "://" not in url:
        yield _check_folder("remote", request.project / ".dvc" / url, f"the DVC remote {name}", "dvc remote modify")
        return
    scheme = url.partition("://")[0]
    package = f"dvc_{PACKAGE_SCHEMES.get(scheme, scheme)}"
    if importlib.util.find_spec(package) is None:
        wheel = package.replace("_", "-")
        yield problem("remote", f"the DVC remote {name} ({url}) requires the package {wheel}: pip install {wheel}")
    else:
        yield ok("remote", f"{name}, {url}; connection not tested")


def check_checkpoint_remote(request: RunRequest) -> Iterator[CheckResult]:
    """Check checkpoint.remote in the same way."""
    from tasks.host.checkpoint_sync import address_of

    remote = request.params.checkpoint.remote
    if remote is None or request.options.on_workers:
        return
    try:
        address = address_of(remote, request.project)
    except ParamsError as error:
        yield problem("checkpoints", str(error), of_parameters=True)
        return
    if "://" in address:
        yield ok("checkpoints", f"{remote}; connection not tested")
    else:
        yield _check_folder("checkpoints", Path(address), "checkpoint.remote", "checkpoint.remote")


def _check_folder(name: str, path: Path, what: str, knob: str) -> CheckResult:
    """Check a folder, which must be writable, or must be possible to create."""
    path = Path(os.path.normpath(path))
    near = next(folder for folder in (path, *path.parents) if folder.exists())
    if not near.is_dir():
        return problem(name, f"{what} is {path}, but {near} is not a folder. Set another one ({knob})")
    if not os.access(near, os.W_OK | os.X_OK):
        return problem(
            name,
            f"{what} is {path}, but {near} is not writable for this user. Permit it, or set another one ({knob})",
        )
    return ok(name, f"{what}: {path}{'' if near == path else ' (will be created)'}")


CHECKS = (
    *(check_host, check_packages, check_folders, check_cache, check_git, check_prefect_home),
    *(server.check_network, device.check_device, device.check_fit, check_paths, check_outputs, check_disk),
    *(check_dvc_remote, check_checkpoint_remote, check_token, check_signing, check_export, check_origin),
    *(check_rotation, server.check_server_setting),
)
"""Immediate checks, in the order of the report."""
PROBES = (device.probe_device, probe_files, probe_hub, server.probe_server)
"""Sources of probes, which run in parallel."""


def run_checks(request: RunRequest, meanwhile: Callable[[], None] = lambda: None) -> list[CheckResult]:
    """Run all checks, with probes in parallel; call `meanwhile` then, unless the other checks have found a problem.

    If there is a problem, check again with only the stages that would really run.
    """
    findings = _run_checks(request, meanwhile)
    if any(finding.level == "problem" for finding in findings) and not request.options.on_workers:
        left = tuple(stage.stage for stage in device.find_stages_to_run(request))
        if len(left) < len(request.target):
            findings = _run_checks(dataclasses.replace(request, target=left))
    return findings


def _run_checks(request: RunRequest, meanwhile: Callable[[], None] = lambda: None) -> list[CheckResult]:
    probes = [probe for find_probes in PROBES for probe in find_probes(request)]
    with start_probes(probes, request.project) as wait:
        findings = [finding for check in CHECKS for finding in check(request)]
        if not any(finding.level == "problem" for finding in findings):
            meanwhile()
        # Without duplicates: the probes of files and of the Hub may both report on a base model's head.
        return list(dict.fromkeys([*findings, *wait()]))


def require_runnable(request: RunRequest, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Refuse a run that cannot succeed; print warnings, and the estimate of each device job unless the run is refused.

    Raises:
        ParamsError: some problems are in the parameters (exit code 2).
        InputError: all problems are in this host, its environment or the input files (exit code 1).
    """
    findings = run_checks(request, meanwhile)
    _refuse_problems(findings)
    for finding in findings:
        if finding.level == "ok" and finding.name in (INPUT, device.JOBS):
            with streams.outlive_output():
                streams.say_line(finding.text)


def require_readable_files(request: RunRequest) -> list[str]:
    """Check model and input files as a run does before it starts, print warnings, and return how the files are read.

    Raises:
        ParamsError, InputError: as of `require_runnable`.
    """
    with start_probes([*probe_files(request)], request.project) as wait:
        findings = [*check_rotation(request), *check_paths(request), *wait()]
    _refuse_problems(findings)
    return [finding.text for finding in findings if finding.level == "ok" and finding.name == INPUT]


def _refuse_problems(findings: Sequence[CheckResult]) -> None:
    for finding in findings:
        if finding.level == "warning":
            streams.note(f"{finding.name}: {finding.text}")
    if problems := [finding for finding in findings if finding.level == "problem"]:
        raise (ParamsError if has_parameter_problem(problems) else InputError)(format_refusal(problems))


def has_parameter_problem(problems: Iterable[CheckResult]) -> bool:
    """Return whether any of these problems is in the parameters."""
    return any(problem.of_parameters for problem in problems)


def format_refusal(problems: list[CheckResult]) -> str:
    """Return all problems as one message. What two entries have in common, such as a file, is said once."""
    by_text = {
        finding.text.replace(f"downstream.{finding.name}.", "downstream."): finding for finding in reversed(problems)
    }
    problems = [*by_text.values()][::-1]
    if len(problems) == 1:
        return f"nothing was started. {problems[0].name}: {problems[0].text}"
    reasons = "\n".join(f"  {problem.name}: {problem.text}" for problem in problems)
    return f"nothing was started, for {len(problems)} reasons:\n{reasons}"
