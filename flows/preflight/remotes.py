"""Where results and checkpoints travel to: DVC's default remote and checkpoint.remote."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from flows.preflight.finding import Finding, ok, problem
from flows.run_request import RunRequest
from tasks.project.errors import ParamsError
from tasks.project.stage_kinds import default_remote

SAME = {"sftp": "ssh", "https": "http", "webdavs": "webdav"}
"""Scheme of a URL -> the one whose package DVC takes for it; of the others it is dvc_SCHEME."""


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
