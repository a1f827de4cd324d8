"""What this host is, and where a run stands: folders that it must write, and paths that DVC and Prefect can spell."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from flows.dvc.leftovers import cache_of, folders_of_outs
from flows.environment import can_write, name_of
from flows.preflight.question import Finding, ok, problem, warning
from flows.preflight.server import may_be_named
from flows.run_request import RunRequest
from tasks.project import artifacts
from tasks.project.dvc_records import LOCK
from tasks.project.errors import ParamsError
from tasks.project.parallel import count_cores, stages_at_once

TRIED = ("Linux", "x86_64")
UNSPEAKABLE = "?%"
"""Characters that mean something else in the address of a database, which is made of its path."""


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
