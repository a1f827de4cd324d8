"""Where a run writes: room on the disk, against a rough estimate that takes no time, and remotes.

Rows take ROWS bytes for every byte of text and masking, as docs/data-scale.md measured at a gigabyte; weights take four
bytes a parameter, twice more in a checkpoint, which holds both moments. Only what is clearly too little is refused:
the estimate is low where a folder is too large to be looked through at once, and
`python -m tasks.estimates.data_estimate` measures.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from flows.checks.probes import Finding, ok, problem, warning
from flows.runs.run_estimate import bytes_of, data_bytes, model_bytes
from flows.runs.run_request import RunRequest
from ipu_model.units import format_bytes
from tasks.plan.dvc_records import default_remote
from tasks.plan.named_files import OWN_INPUTS, find_parameters
from tasks.stage.errors import ParamsError

CLEARLY = 0.5
"""Less than this share of the estimate is refused."""
HASHED = 2e9
"""Bytes of given files that are hashed before a run begins."""
SAME = {"sftp": "ssh", "https": "http", "webdavs": "webdav"}
"""Scheme of a URL -> the one whose package DVC takes for it; of the others it is dvc_SCHEME."""


def room(request: RunRequest) -> Iterator[Finding]:
    """On the disk of the project; DVC's cache links what lies there, where the disk can."""
    if request.on_workers:
        return
    needed = data_bytes(request) + model_bytes(request)
    free = shutil.disk_usage(request.project).free
    said = f"{format_bytes(free)} free in {request.project}, some {format_bytes(needed)} will be written"
    if free < CLEARLY * needed:
        knob = "make room, lower pretrain_rows.*.duplicates, or run a clone on another disk"
        yield problem("disk", f"{said}: {knob}; python -m tasks.estimates.data_estimate measures what is needed")
    elif free < needed:
        yield warning("disk", f"{said}: make room, or the run may end without it")
    else:
        yield ok("disk", said)


def hashing_takes_long(request: RunRequest) -> bool:
    """Whether what the parameters name is so much that a run is not looked at before it begins."""
    paths = find_parameters(request.values, OWN_INPUTS).values()
    return sum(bytes_of(request.project / path) for path in paths) > HASHED


def dvc_remote(request: RunRequest) -> Iterator[Finding]:
    """DVC's own: a folder that can be written, or a URL that DVC has the package for."""
    remote = default_remote(request.project)
    if remote is None:
        if request.curious:
            yield ok("remote", "none: results stay on this host")
        return
    name, url = remote
    if "://" not in url:
        yield _folder("remote", request.project / ".dvc" / url, f"the DVC remote {name}", "dvc remote modify")
        return
    scheme = url.partition("://")[0]
    package = f"dvc_{SAME.get(scheme, scheme)}"
    if importlib.util.find_spec(package) is None:
        wheel = package.replace("_", "-")
        yield problem("remote", f"the DVC remote {name} ({url}) needs the package {wheel}: pip install {wheel}")
    else:
        yield ok("remote", f"{name}, {url}; not reached in advance")


def checkpoints(request: RunRequest) -> Iterator[Finding]:
    """checkpoint.remote, the same way."""
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
        yield ok("checkpoints", f"{remote}; not reached in advance")
    else:
        yield _folder("checkpoints", Path(address), "checkpoint.remote", "checkpoint.remote")


def _folder(name: str, path: Path, what: str, knob: str) -> Finding:
    """A folder that is there and can be written, or that can be made."""
    path = Path(os.path.normpath(path))
    place = next(one for one in (path, *path.parents) if one.exists())
    if not place.is_dir():
        return problem(name, f"{what} is {path}, and {place} is no folder: name another ({knob})")
    if not os.access(place, os.W_OK | os.X_OK):
        return problem(
            name, f"{what} is {path}, and {place} cannot be written: let this user, or name another ({knob})"
        )
    return ok(name, f"{what}: {path}{'' if place == path else ', which will be made'}")
