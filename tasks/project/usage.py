"""What the process of a stage took, by its own account: runs/usage/<stage>.json, which the flow reads when it ends.

The same stands in measurements/stages/<stage>.json with the run that the stage was part of. That is an out of the
stage: whoever restores the stage restores it, too.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

from ipu_model.files import find_object, write_json
from tasks.project.artifacts import RUNS, stage_run_file

FOLDER = RUNS / "usage"
KIB = 1024
RUN = "PODIUM_RUN"
"""Set by the flow for its stages: when the run began, in UTC, and its name."""


def usage_file(stage: str) -> Path:
    """Where the stage of this name says what it took."""
    return FOLDER / f"{stage}.json"


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
