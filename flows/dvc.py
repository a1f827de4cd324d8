"""How a flow calls DVC: one child process per stage, its lines passed on, its verdict read.

`dvc.yaml` alone says what depends on what; DVC alone decides what has to run.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tasks.process import describe_exit, die_with_parent

DVC = (sys.executable, "-m", "dvc")
KEPT_LINES = 25
"""Lines of a failed stage that its error repeats."""
PROGRESS = re.compile(r"^\[\s*(\d{1,3})%\]")
"""How stages begin a line that says how far they are (tasks/device_job.py)."""


class StageFailed(Exception):
    """A stage ended without its outputs; the message holds the last lines it printed."""

    def __init__(self, stage: str, reason: str, tail: list[str]) -> None:
        self.stage = stage
        lines = "".join(f"  {line}" for line in tail).rstrip()
        super().__init__(f"stage {stage} failed ({reason}); nothing of it was kept. Its last lines:\n{lines}")


def repro(stage: str, root: Path, say: Callable[[str], None], progress: Callable[[float], None]) -> str:
    """Bring `stage` and whatever it needs up to date in the checkout `root`.

    Args:
        stage: a name of dvc.yaml, such as `pretrain@phase1`.
        root: the checkout's folder.
        say: takes every line for people.
        progress: takes the share that is done, 0 to 100, whenever the stage says it.

    Returns:
        "ran", "restored" (from DVC's run-cache or the remote) or "skipped" (nothing had changed).

    Raises:
        StageFailed: the command failed; its outputs are as DVC leaves them, absent.
    """
    command = [*DVC, "repro", *(["--pull"] if has_remote(root) else []), stage]
    verdict = "skipped"
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    process = subprocess.Popen(
        command, cwd=root, env=environment(), text=True, bufsize=1,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if not line.strip():
            continue
        verdict = _verdict(line, stage) or verdict
        if share := PROGRESS.match(line):
            progress(float(share[1]))
        if not _is_bookkeeping(line):
            tail.append(line)
            say(line.rstrip())
    if code := process.wait():
        raise StageFailed(stage, describe_exit(code), list(tail))
    return verdict


def is_up_to_date(root: Path) -> bool:
    """Whether DVC would run nothing at all: one look instead of one per stage.

    A status that cannot be read (no dvc.lock yet, another run at work) counts as "not known": False.
    """
    done = subprocess.run(
        [*DVC, "status", "--json"], cwd=root, env=environment(), text=True, capture_output=True, check=False
    )
    if done.returncode:
        return False
    try:
        return bool(json.loads(done.stdout or "null") == {})
    except ValueError:
        return False


def has_remote(root: Path) -> bool:
    """Whether a default DVC remote is configured in the checkout."""
    config = configparser.ConfigParser()
    config.read([root / ".dvc" / "config", root / ".dvc" / "config.local"], encoding="utf-8")
    return config.has_option("core", "remote")


def environment() -> dict[str, str]:
    """The environment of a stage: this interpreter first on PATH, lines unbuffered, no telemetry.

    DVC starts a stage through $SHELL, or /bin/sh. bash becomes the command; dash and others stay its parent, and
    would outlive DVC with the stage still running beneath (tasks/process.py watches the parent only).
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    own = {"PATH": path, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1"}
    if bash := shutil.which("bash"):
        own["SHELL"] = bash
    return {**os.environ, **own}


def _verdict(line: str, stage: str) -> str | None:
    """What DVC's line says of `stage` itself, not of the stages before it."""
    if line.startswith(f"Running stage '{stage}'"):
        return "ran"
    if line.startswith(f"Stage '{stage}' is cached - skipping run"):
        return "restored"
    return None


BOOKKEEPING = ("Updating lock file", "Generating lock file", "Use `dvc push`", "Stage '", "To track", "\tgit add", "> ",
               "Data and pipelines are up to date")  # fmt: skip


def _is_bookkeeping(line: str) -> bool:
    """Lines of DVC that say nothing to somebody who watches the flow; the command's own error is said already."""
    return line.startswith(BOOKKEEPING) or ("failed to reproduce" in line and "failed to run:" in line)
