"""Processes of a stage: how they find the project, speak, and end - with their parent, and never without a word."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

PR_SET_PDEATHSIG = 1
STARTED_BY_A_WORKER = "PREFECT__FLOW_RUN_ID"
"""Prefect's workers name the run in this variable to the process that they start for it; a shell has none."""

Say = Callable[[str], None]
"""Takes a line for people."""


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


def is_sent() -> bool:
    """Tell whether a worker started this process for a run of the server: a stranger may have chosen its parameters."""
    return STARTED_BY_A_WORKER in os.environ


def describe_exit(code: int) -> str:
    """An exit status in words: "exit code 2", or the signal that ended the process."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    if -code == signal.SIGKILL:
        return f"{name} (killed; often the system ran out of memory)"
    return name


def python_path(own: str | None) -> str:
    """PYTHONPATH of a child process: this project first, then the host's own, where a Poplar SDK has its packages."""
    project = str(Path(__file__).resolve().parents[2])
    return f"{project}{os.pathsep}{own}" if own else project


def takes_no_words(what: str) -> None:
    """For a program that reads nothing from its command line: --help answers with `what`, any other word ends with 2.

    Called first, so that asking what a stage is does not start it.
    """
    argparse.ArgumentParser(description=what).parse_args()


def item(word: str) -> str:
    """The item that a word of the command line names: dvc.yaml passes `"$DVC_STAGE"`, such as glue_data@sst2.

    What params.yaml says would be a part of the shell's text in its place. By hand, the item alone will do.
    """
    return word.rpartition("@")[2]


def print_line(text: str) -> None:
    """Say a line on standard output, if somebody still reads it: a checkpoint matters more than its news."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


@contextlib.contextmanager
def loading_packages() -> Iterator[None]:
    """Packages that are imported inside are not searched for garbage, then or later: large ones load a third faster."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
