"""Stages whose outs are there, made with the very parameters of the run: what they need is not asked for again."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tasks.common import artifacts
from tasks.common.intact import LOCK
from tasks.common.stage_kinds import outs_of, stages_of


def is_made(stage: str, root: Path, values: dict[str, Any]) -> bool:
    """Whether a stage of the checkout `root` has its outs, and dvc.lock states them for these parameters.

    Its other inputs may have changed since: then it runs again, and says itself what it lacks.
    """
    lock = root / LOCK
    if not lock.is_file():
        return False
    stated = _locked(lock, lock.stat().st_mtime_ns).get(stage, {}).get("params", {}).get(str(artifacts.PARAMS), {})
    same = all(_at(values, name) == value for name, value in stated.items())
    return bool(stated) and same and all((root / path).exists() for path in outs_of(stage, root))


@functools.lru_cache(maxsize=1)
def _locked(lock: Path, version: int) -> dict[str, Any]:
    return stages_of(lock)


def _at(values: Any, name: str) -> Any:
    """The value under a dotted name; None where there is none."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values
