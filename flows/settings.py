"""The parameters of a run beside those that it lies over: its preset's or those of params.yaml, and the defaults."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows import run_params, run_story
from flows.report import RunReport
from tasks.project import artifacts
from tasks.project.errors import ParamsError
from tasks.project.overlays import base_of, resolve
from tasks.project.params import default_values
from tasks.project.params_command import ABSENT

Row = tuple[str, str, str]
"""Name, value there, value of the run."""


@dataclass(frozen=True)
class Settings:
    """What a run was told."""

    values: dict[str, Any] = field(default_factory=dict)
    """All parameters; empty where they cannot be read."""
    origin: str = ""
    """What the run lies over."""
    told: tuple[Row, ...] = ()
    """What is not as there."""
    unusual: tuple[Row, ...] = ()
    """What is not as the defaults have it."""


def of_run(report: RunReport, root: Path, project: Path) -> Settings:
    """The parameters of a run as they are now in its checkout `root`; read once, as long as that file is the same."""
    path = root / artifacts.PARAMS
    version = path.stat().st_mtime_ns if path.is_file() else 0
    return _read(report.preset, root, project, version)


@functools.lru_cache(maxsize=8)
def _read(preset: str | None, root: Path, project: Path, version: int) -> Settings:
    try:
        values = run_params.params_of(project, root)
        base = values if root == project else resolve(base_of(preset, project), preset, [], project / artifacts.PRESETS)
        told, unusual = (_rows(run_story.against(one, values)) for one in (base, default_values()))
    except (ParamsError, KeyError):  # there are none, or those of a revision that had other sections
        return Settings()
    return Settings(values, preset or str(artifacts.PARAMS), told, unusual)


def _rows(differ: list[tuple[str, list[Any]]]) -> tuple[Row, ...]:
    return tuple((name, _said(there), _said(here)) for name, (there, here) in differ)


def _said(value: Any) -> str:
    """A value in words; 2 and 2.0 are the same number, however params.yaml writes it."""
    if value is None or value is ABSENT:
        return "none"
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)
