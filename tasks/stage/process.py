"""Processes of a stage: how they find the project, speak, and end - with their parent, and never without a word.

What the process of a stage took, by its own account, is in runs/usage/<stage>.json, which the flow reads when it ends.
The same stands in measurements/stages/<stage>.json with the run that the stage was part of. That is an out of the
stage: whoever restores the stage restores it, too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ipu_model.files import find_object, write_json
from tasks.stage.artifacts import RUNS, stage_run_file

PR_SET_PDEATHSIG = 1
STARTED_BY_A_WORKER = "PREFECT__FLOW_RUN_ID"
"""Prefect's workers name the run in this variable to the process that they start for it; a shell has none."""
USAGE = RUNS / "usage"
KIB = 1024
RUN = "PODIUM_RUN"
"""Set by the flow for its stages: when the run began, in UTC, and its name."""

Say = Callable[[str], None]
"""Takes a line for people."""


def die_with_parent() -> None:
    """Ask the kernel to send SIGTERM when the parent process dies (Linux; elsewhere nothing happens).

    DVC is killed without a chance to stop its stages; without this a second `dvc repro` would start a
    second trainer beside the orphan.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died between the two calls
        raise SystemExit(128 + signal.SIGTERM)


def is_sent() -> bool:
    """Tell whether a worker started this process for a run of the server: a stranger may have chosen its parameters."""
    return STARTED_BY_A_WORKER in os.environ


def describe_exit(code: int) -> str:
    """An exit status in words: "exit code 2", or the signal that ended the process."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    if -code == signal.SIGKILL:
        return f"{name} (killed; often the system ran out of memory)"
    return name


def python_path(own: str | None) -> str:
    """PYTHONPATH of a child process: this project first, then the host's own, where a Poplar SDK has its packages."""
    project = str(Path(__file__).resolve().parents[2])
    return f"{project}{os.pathsep}{own}" if own else project


def takes_no_words(what: str) -> None:
    """For a program that reads nothing from its command line: --help answers with `what`, any other word ends with 2.

    Called first, so that asking what a stage is does not start it.
    """
    argparse.ArgumentParser(description=what).parse_args()


def item(word: str) -> str:
    """The item that a word of the command line names: dvc.yaml passes `"$DVC_STAGE"`, such as glue_data@sst2.

    What params.yaml says would be a part of the shell's text in its place. By hand, the item alone will do.
    """
    return word.rpartition("@")[2]


def print_line(text: str) -> None:
    """Say a line on standard output, if somebody still reads it: a checkpoint matters more than its news."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


@contextlib.contextmanager
def loading_packages() -> Iterator[None]:
    """Packages that are imported inside are not searched for garbage, then or later: large ones load a third faster."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def usage_file(stage: str) -> Path:
    """Where the stage of this name says what it took."""
    return USAGE / f"{stage}.json"


def write_usage(stage: str, began: float) -> None:
    """Write what this process took so far, those that it started and waited for included.

    Args:
        stage: a name of dvc.yaml.
        began: when its work began; seconds since 1970.
    """
    write_json(usage_file(stage), _usage(began))


def write_stage_run(stage: str, began: float) -> None:
    """Write which run makes the stage; none where `dvc repro` does.

    Args:
        stage: a name of dvc.yaml.
        began: when its work began; seconds since 1970.
    """
    run_began, _, name = os.environ.get(RUN, "").partition(" ")
    run = {"name": name, "began": run_began} if name else None
    write_json(stage_run_file(stage), {"run": run, "process": _usage(began)})


def _usage(began: float) -> dict[str, Any]:
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "began": round(began, 2),
        "ended": round(time.time(), 2),
        "cpu_seconds": round(own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime, 2),
        "peak_memory_mb": round(max(_own_peak(own.ru_maxrss), others.ru_maxrss) * KIB / 2**20, 1),
    }


def took(path: Path, since: float) -> dict[str, float]:
    """cpu_seconds and peak_memory_mb of a stage; empty where it did not say so, or did before `since`."""
    said = find_object(path)
    if said is None or said.get("began", 0.0) < since:
        return {}
    figures = {name: said.get(name) for name in ("cpu_seconds", "peak_memory_mb")}
    return {name: value for name, value in figures.items() if isinstance(value, float)}


def _own_peak(otherwise: int) -> int:
    """Most memory this program had, KiB; ru_maxrss also counts what the process had before it became this program."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return otherwise
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), otherwise)
