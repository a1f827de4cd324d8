"""What this host is, whatever is run: each check is a function in CHECKS, and says what it found at once."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator

from flows.preflight.finding import Finding, ok, problem, warning
from flows.run_request import RunRequest
from tasks.host.room import stages_at_once
from tasks.project.errors import ParamsError

TRIED = ("Linux", "x86_64")
OLDEST_PYTHON = (3, 11)


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
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        least = ".".join(map(str, OLDEST_PYTHON))
        yield problem("python", f"{found}: {least} or newer is required; make .venv with one (make setup)")
    else:
        yield ok("python", found)


def size(request: RunRequest) -> Iterator[Finding]:
    """Cores and memory, as this process may use them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield ok("host", f"{cores} cores, {memory / 1e9:.0f} GB of memory")
    try:
        stages_at_once()
    except ParamsError as error:
        yield problem("host", str(error))


CHECKS: tuple[Callable[[RunRequest], Iterator[Finding]], ...] = (system, python, size)
"""In the order of the report. A check of the host itself is added here."""
