"""DVC through its Python API, in child processes that die with the flow; no other package imports it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tasks.plan.dvc_records import default_remote


def has_remote(root: Path) -> bool:
    """Whether a default DVC remote is configured in the checkout."""
    return default_remote(root) is not None


def environment() -> dict[str, str]:
    """The environment of a stage: this interpreter first on PATH, lines unbuffered, no telemetry.

    DVC starts a stage through $SHELL, or /bin/sh. bash becomes the command; dash and others stay its parent, and
    would outlive DVC with the stage still running beneath (tasks/stage/process.py watches the parent only).
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    own = {"PATH": path, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1"}
    if bash := shutil.which("bash"):
        own["SHELL"] = bash
    return {**os.environ, **own}
