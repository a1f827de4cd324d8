"""How a stage's process ends: with its parent, and never without a word."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


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


def describe_exit(code: int) -> str:
    """An exit status in words: "exit code 2", or the signal that ended the process."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    if -code == signal.SIGKILL:
        return f"{name} (killed; often the system ran out of memory)"
    return name
