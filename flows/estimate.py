"""What preparing a large corpus takes, said before it begins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from flows import dvc
from tasks.project import artifacts
from tasks.project.process import die_with_parent

LARGE_MB = 200.0
"""Megabytes of text; for less, an estimate, which takes some 20 s, is not worth its time."""


def tell_estimate(root: Path, say: Callable[[str], None]) -> None:
    """Say what `python -m tasks.preflight.estimate` finds for the checkout `root`, where a large corpus is to be made.

    An estimate that cannot be made stops nothing: the stages say what is wrong with what they read.
    """
    if (root / artifacts.CORPUS).exists():
        return
    megabytes = _said_by("tasks.preflight.source_size", root)
    if megabytes and float(megabytes) >= LARGE_MB:
        say(f"a corpus of {float(megabytes):,.0f} MB: a sample of it is prepared first, to say what all of it takes")
        say(_said_by("tasks.preflight.estimate", root) or "no estimate could be made of it")


def _said_by(module: str, root: Path) -> str:
    """What a module of the checkout prints; nothing if it failed."""
    command, env, out, null = [sys.executable, "-m", module], dvc.environment(), subprocess.PIPE, subprocess.DEVNULL
    done = subprocess.run(
        command, cwd=root, env=env, text=True, check=False, stdout=out, stderr=null, preexec_fn=die_with_parent
    )
    return done.stdout.strip() if done.returncode == 0 else ""
