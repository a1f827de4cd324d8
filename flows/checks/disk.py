"""Checks of disk space, against a quick and rough estimate, and of remotes.

Rows take ROWS bytes per byte of text and per duplicate, as measured at a gigabyte in docs/data-scale.md. Weights take
four bytes per parameter, and twice as much again in a checkpoint for both moments. A run is refused only if the space
is clearly too small, because the estimate is low for folders that are too large to scan.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from flows.checks.probes import CheckResult, ok, problem, warning
from flows.runs.run_estimate import estimate_data_bytes, estimate_model_bytes
from flows.runs.run_request import RunRequest
from ipu_model.units import format_bytes
from tasks.plan.dvc_records import default_remote
from tasks.stage.errors import ParamsError

MIN_SHARE = 0.5
"""Minimum share of the estimate that must be free."""
PACKAGE_SCHEMES = {"sftp": "ssh", "https": "http", "webdavs": "webdav"}
"""URL scheme -> scheme in the name of DVC's package, which is dvc_SCHEME."""


def check_disk(request: RunRequest) -> Iterator[CheckResult]:
    """Check the free space on the project's disk; DVC's cache shares it by links if the disk supports them."""
    if request.on_workers:
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
    from tasks.host.checkpoint_travel import address_of

    remote = request.params.checkpoint.remote
    if remote is None or request.on_workers:
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
    place = next(one for one in (path, *path.parents) if one.exists())
    if not place.is_dir():
        return problem(name, f"{what} is {path}, but {place} is not a folder. Set another one ({knob})")
    if not os.access(place, os.W_OK | os.X_OK):
        return problem(
            name, f"{what} is {path}, but {place} is not writable for this user. Permit it, or set another one ({knob})"
        )
    return ok(name, f"{what}: {path}{'' if place == path else ' (will be created)'}")
