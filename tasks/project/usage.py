"""What the process of a stage took, by its own account: runs/usage/<stage>.json, which the flow reads when it ends."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

from ipu_model.files import find_object, write_json
from tasks.project.artifacts import RUNS

FOLDER = RUNS / "usage"
KIB = 1024


def usage_file(stage: str) -> Path:
    """Where the stage of this name says what it took."""
    return FOLDER / f"{stage}.json"


def write_usage(stage: str, began: float) -> None:
    """Write what this process took so far, those that it started and waited for included.

    Args:
        stage: a name of dvc.yaml.
        began: when its work began; seconds since 1970.
    """
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    values: dict[str, Any] = {
        "began": round(began, 2),
        "ended": round(time.time(), 2),
        "cpu_seconds": round(own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime, 2),
        "peak_memory_mb": round(max(_own_peak(own.ru_maxrss), others.ru_maxrss) * KIB / 2**20, 1),
    }
    write_json(usage_file(stage), values)


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
