"""How a flow calls DVC: as a child process that dies with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from flows import dvc_leftovers
from tasks.project.process import die_with_parent
from tasks.project.stage_kinds import default_remote

DVC = (sys.executable, "-m", "dvc")
LANE = (sys.executable, "-P", str(Path(__file__).with_name("dvc_lane.py")))
"""A DVC that stays."""
KEPT_LINES = 25
"""Lines of a failure that its error repeats."""
PUSH_WAITS = (5.0, 20.0, 60.0)
"""Seconds before each new try to push; a remote is often back by then."""


class PushFailed(Exception):
    """The remote did not take what stages made; it is safe in the cache of this host."""


def push(stages: Sequence[str], root: Path, say: Callable[[str], None]) -> None:
    """Copy the outputs of `stages`, and the run-cache that names them, to the default remote.

    A remote that does not answer is tried again a few times, over about a minute and a half.

    Raises:
        PushFailed: it did not take them; they are safe in the cache of this host.
    """
    # Imported here: it takes a while, and a run of which nothing changed pushes nothing.
    from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_chain, wait_fixed

    name, url = default_remote(root) or ("?", "?")
    what = f"the remote {name} ({url}) did not take the outs of {', '.join(stages)}"
    pushed = Retrying(
        retry=retry_if_result(lambda done: done.returncode != 0),
        wait=wait_chain(*map(wait_fixed, PUSH_WAITS)),
        stop=stop_after_attempt(len(PUSH_WAITS) + 1),
        before_sleep=lambda state: say(f"{what}; again in {state.upcoming_sleep:.0f} s"),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome is not None else None,
    )
    done = pushed(call, "push", "--run-cache", "--", *stages, root=root)
    if done.returncode:
        said = "\n".join(f"  {line}" for line in done.stdout.splitlines()[-KEPT_LINES:])
        raise PushFailed(
            f"{what}. They are done and in the cache of this host: bring the remote back and run again, nothing is "
            f"computed twice. DVC said:\n{said}"
        )


def pull(stages: Sequence[str], root: Path, say: Callable[[str], None]) -> str | None:
    """Restore the outputs that dvc.lock states for `stages`; None when they are here, else what DVC said."""
    dvc_leftovers.mend(root, say)
    done = call("pull", "--", *stages, root=root)
    return done.stdout if done.returncode else None


def call(*words: str, root: Path, stderr: int = subprocess.STDOUT) -> subprocess.CompletedProcess[str]:
    """A command of DVC in the checkout `root`, waited for; what it says on standard output is kept."""
    command, env, out = [*DVC, *words], environment(), subprocess.PIPE
    return subprocess.run(
        command, cwd=root, env=env, text=True, check=False, stdout=out, stderr=stderr, preexec_fn=die_with_parent
    )


def has_remote(root: Path) -> bool:
    """Whether a default DVC remote is configured in the checkout."""
    return default_remote(root) is not None


def environment() -> dict[str, str]:
    """The environment of a stage: this interpreter first on PATH, lines unbuffered, no telemetry.

    DVC starts a stage through $SHELL, or /bin/sh. bash becomes the command; dash and others stay its parent, and
    would outlive DVC with the stage still running beneath (tasks/project/process.py watches the parent only).
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    own = {"PATH": path, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1"}
    if bash := shutil.which("bash"):
        own["SHELL"] = bash
    return {**os.environ, **own}
