"""DVC through its Python API, in child processes that end with the flow. Only this package uses DVC."""

import os
import shutil
import sys
from pathlib import Path

from tasks.plan.dvc_records import default_remote


def has_remote(root: Path) -> bool:
    """Return whether the checkout has a default DVC remote."""
    return default_remote(root) is not None


def stage_environment() -> dict[str, str]:
    """Return the environment of stages: this interpreter first on PATH, output unbuffered, no telemetry.

    DVC starts a stage through $SHELL, or /bin/sh. bash replaces itself with the command. dash and others stay its
    parent and would outlive DVC with the stage still running (tasks/stage/process.py watches the parent only).
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    variables = {"PATH": path, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1"}
    if bash := shutil.which("bash"):
        variables["SHELL"] = bash
    return {**os.environ, **variables}
