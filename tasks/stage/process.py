"""Processes of a stage: environment, output, exit with the parent, and resource usage.

A stage's process writes the resources it used to runs/usage/<stage>.json, which the flow reads when the stage ends.
measurements/stages/<stage>.json has the same and the run that the stage was part of. It is an out of the stage, so
restoring the stage restores it as well.
"""

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ipu_model.core.files import find_object, write_json
from ipu_model.core.memory import read_memory
from tasks.stage.artifacts import RUNS, stage_run_file

PR_SET_PDEATHSIG = 1
STARTED_BY_A_WORKER = "PREFECT__FLOW_RUN_ID"
"""Variable in which Prefect's workers pass the run's ID to the process they start; not set in a shell."""
USAGE = RUNS / "usage"
KIB = 1024
RUN = "PODIUM_RUN"
"""Variable that the flow sets for its stages: start time of the run in UTC, and its name."""
GIT_LOCATIONS = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CEILING_DIRECTORIES", "GIT_GRAFT_FILE", "GIT_PREFIX"),
    "GIT_SHALLOW_FILE",
)
"""Variables by which git works in another repository, as in its hooks."""

MOST_TIMES = 512
"""Times of items that a map keeps; further items are added in pairs, so that memory stays bounded."""

Say = Callable[[str], None]
"""Function that takes a line of output for users."""


@dataclass
class MapUsage:
    """Time of a parallel map over the parts of a stage's work (tasks/stage/parallel.py)."""

    processes: int = 1
    """Most processes at a time; on a cluster, threads of workers."""
    items: int = 0
    seconds: float = 0.0
    """Wall time, with the start of the processes."""
    merge_seconds: float = 0.0
    """Part of it in which the stage used results; the processes may have worked meanwhile."""
    item_seconds: list[float] = field(default_factory=list)
    """Wall time of each item in its process, in order; with more than MOST_TIMES items, of neighbors together."""

    def add(self, seconds: float) -> None:
        """Add an item."""
        self.items += 1
        self.item_seconds.append(round(seconds, 3))
        if len(self.item_seconds) > MOST_TIMES:
            pairs = zip(self.item_seconds[::2], [*self.item_seconds[1::2], 0.0], strict=False)
            self.item_seconds = [round(first + second, 3) for first, second in pairs]


MAPS: list[MapUsage] = []
"""The completed maps of this process."""


def die_with_parent() -> None:
    """Ask the kernel to send SIGTERM when the parent process dies (Linux only).

    DVC can be killed before it stops its stages; without this, a second `dvc repro` would start a second trainer while
    the orphan still runs.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died between the two calls
        raise SystemExit(128 + signal.SIGTERM)


def is_sent() -> bool:
    """Return True if a worker started this process for a run from the server, whose parameters may be a stranger's."""
    return STARTED_BY_A_WORKER in os.environ


def describe_exit(code: int) -> str:
    """Return an exit status as text: "exit code 2", or the signal that ended the process."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name} (killed; often the system ran out of memory)" if -code == signal.SIGKILL else name


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a child process; PYTHONPATH has this project, then what a Poplar SDK has put there."""
    paths = (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def parse_no_arguments(what: str) -> None:
    """Handle a command line without arguments: --help prints `what`, any argument exits with 2.

    Call it first, so that --help does not start the stage.
    """
    argparse.ArgumentParser(description=what).parse_args()


def parse_item(word: str) -> str:
    """Return the item in an argument of the command line: dvc.yaml passes `"$DVC_STAGE"`, such as glue_data@sst2.

    dvc.yaml does not pass ${key}, because values of params.yaml must not become shell text. You may also pass the item
    alone.
    """
    return word.rpartition("@")[2]


def print_line(text: str) -> None:
    """Write a line to standard output and ignore a closed pipe, because a checkpoint matters more than its message."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


@contextlib.contextmanager
def loading_packages() -> Iterator[None]:
    """Import packages without garbage collection, and exclude them from it later: large ones load a third faster."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def usage_file(stage: str) -> Path:
    """Return the file in which a stage reports its resource usage."""
    return USAGE / f"{stage}.json"


def write_usage(stage: str, began: float) -> None:
    """Write the resources that this process used so far, including children it waited for."""
    write_json(usage_file(stage), _usage(began))


def write_stage_run(stage: str, began: float) -> None:
    """Write the run that produced the stage's outs; null for `dvc repro`."""
    run_began, _, name = os.environ.get(RUN, "").partition(" ")
    run = {"name": name, "began": run_began} if name else None
    write_json(stage_run_file(stage), {"run": run, "process": _usage(began)})


def _usage(began: float) -> dict[str, Any]:
    process, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    # ru_maxrss also counts memory from before the exec.
    own_peak = next(iter(read_memory(Path("/proc/self/status"), "VmHWM")), process.ru_maxrss * KIB)
    return {
        "began": round(began, 2),
        "ended": round(time.time(), 2),
        "cpu_seconds": round(process.ru_utime + process.ru_stime + children.ru_utime + children.ru_stime, 2),
        "peak_memory_mb": round(max(own_peak, children.ru_maxrss * KIB) / 2**20, 1),
        "maps": [asdict(usage) for usage in MAPS],
    }


def read_usage(path: Path, since: float) -> dict[str, float]:
    """Return cpu_seconds and peak_memory_mb of a stage; empty if it did not report them, or before `since`."""
    usage = find_object(path)
    if usage is None or usage.get("began", 0.0) < since:
        return {}
    figures = {name: usage.get(name) for name in ("cpu_seconds", "peak_memory_mb")}
    return {name: value for name, value in figures.items() if isinstance(value, float)}
