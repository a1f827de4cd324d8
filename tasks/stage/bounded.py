"""Processes for what a stranger's file makes a library compute: they have a time limit, and are killed at its end."""

import subprocess
import sys
from collections.abc import Sequence

from tasks.stage.errors import InputError
from tasks.stage.process import child_environment, describe_exit


def run_bounded(module: str, arguments: Sequence[str], seconds: float, what: str, content: str = "") -> str:
    """Run a module, which calls `run_main`, with `content` as standard input; return what it printed.

    `what` is the subject of messages, such as "the exported models".

    Raises:
        InputError: the module failed, or took longer than `seconds`.
    """
    environment = child_environment()
    environment.pop("DVC_STAGE", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=content.encode(),
            capture_output=True,
            env=environment,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{what} took longer than {seconds:g} s and were stopped") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        message = next((line for line in reversed(lines) if line.startswith("error: ")), "").removeprefix("error: ")
        raise InputError(message or f"{what} ended their process ({describe_exit(done.returncode)})")
    return done.stdout.decode()
