"""How a flow calls DVC: one child process per stage, its lines passed on, its verdict read.

`dvc.yaml` alone says what depends on what; DVC alone decides what has to run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

import yaml

from flows import dvc_failures, dvc_leftovers
from tasks.common.intact import LOCK
from tasks.common.process import describe_exit, die_with_parent
from tasks.common.stage_kinds import STAGES_SENT, default_remote, read_dvc_file

DVC = (sys.executable, "-m", "dvc")
KEPT_LINES = 25
"""Lines of a failed stage that its error repeats."""
PROGRESS = re.compile(r"^\[\s*(\d{1,3})%\]")
"""How stages begin a line that says how far they are (tasks/jobs/device_job.py)."""
PAUSED = "paused: "
"""How a stage begins the line that says why it stopped on purpose before its end, its checkpoint written."""
PUSH_WAITS = (5.0, 20.0, 60.0)
"""Seconds before each new try to push; a remote is often back by then."""


class StageFailed(Exception):
    """A stage ended without its outputs; the message holds the last lines it printed."""

    def __init__(self, stage: str, reason: str, tail: list[str]) -> None:
        self.stage = stage
        lines = "".join(f"  {line}" for line in tail).rstrip()
        super().__init__(f"stage {stage} failed ({reason}). Nothing of it was kept. Its last lines:\n{lines}")


class PushFailed(Exception):
    """The remote did not take what stages made; it is safe in the cache of this host."""


class StagePaused(Exception):
    """A stage stopped before its end on purpose, and continues from its checkpoint when it is run again."""

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        super().__init__(f"stage {stage} paused: {reason}")


def repro(
    stage: str,
    root: Path,
    say: Callable[[str], None],
    progress: Callable[[float], None],
    sent: Sequence[str] | None = None,
) -> str:
    """Bring `stage` and whatever it needs up to date in the checkout `root`.

    Args:
        stage: a name of dvc.yaml, such as `pretrain@phase1`.
        root: the checkout's folder.
        say: takes every line for people.
        progress: takes the share that is done, 0 to 100, whenever the stage says it.
        sent: the stages that may run here; others must be restored. None: all may.

    Returns:
        "ran", "restored" (from DVC's run-cache or the remote) or "skipped" (nothing had changed).

    Raises:
        StageFailed: the command failed; its outputs are as DVC leaves them, absent. Or DVC could not copy them into its
            cache; the next run makes them again.
        StagePaused: the command stopped at a checkpoint on purpose; running it again continues.
    """
    dvc_leftovers.mend(root, say)
    command = [*DVC, "repro", *(["--pull"] if has_remote(root) else []), stage]
    allowed = {} if sent is None else {STAGES_SENT: " ".join(sent)}
    process = subprocess.Popen(
        command, cwd=root, env={**environment(), **allowed}, text=True, bufsize=1,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
    )  # fmt: skip
    assert process.stdout is not None
    verdict, paused, tail = _follow(process.stdout, stage, say, progress)
    code = process.wait()
    if code and paused is not None:
        raise StagePaused(stage, paused)
    if code or any(line.startswith(dvc_failures.NOT_KEPT) for line in tail):
        reason = describe_exit(code) if code else "DVC could not keep what it made in its cache"
        raise StageFailed(stage, reason + dvc_failures.explain(stage, root, tail), tail)
    return verdict


def _follow(
    lines: Iterable[str], stage: str, say: Callable[[str], None], progress: Callable[[float], None]
) -> tuple[str, str | None, list[str]]:
    """Pass on what DVC prints; returns its verdict, why the stage paused if it did, and the last lines."""
    verdict, paused = "skipped", None
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    for line in lines:
        if not line.strip():
            continue
        verdict = _verdict(line, stage) or verdict
        if line.startswith(PAUSED):
            paused = line[len(PAUSED) :].strip()
        if share := PROGRESS.match(line):
            progress(float(share[1]))
        if not _is_bookkeeping(line):
            tail.append(line)
            say(line.rstrip())
    return verdict, paused, list(tail)


def push(stages: Sequence[str], root: Path, say: Callable[[str], None]) -> None:
    """Copy the outputs of `stages`, and the run-cache that names them, to the default remote.

    A remote that does not answer is tried again a few times, over about a minute and a half.

    Raises:
        PushFailed: it did not take them; they are safe in the cache of this host.
    """
    for wait in (*PUSH_WAITS, None):
        done = _call("push", "--run-cache", *stages, root=root)
        if done.returncode == 0:
            return
        name, url = default_remote(root) or ("?", "?")
        what = f"the remote {name} ({url}) did not take the outs of {', '.join(stages)}"
        if wait is None:
            said = "\n".join(f"  {line}" for line in done.stdout.splitlines()[-KEPT_LINES:])
            raise PushFailed(
                f"{what}. They are done and in the cache of this host: bring the remote back and run again, nothing is "
                f"computed twice. DVC said:\n{said}"
            )
        say(f"{what}; again in {wait:.0f} s")
        time.sleep(wait)


def pull(stages: Sequence[str], root: Path, say: Callable[[str], None]) -> str | None:
    """Restore the outputs that dvc.lock states for `stages`; None when they are here, else what DVC said."""
    dvc_leftovers.mend(root, say)
    done = _call("pull", *stages, root=root)
    return done.stdout if done.returncode else None


def _call(*words: str, root: Path, stderr: int = subprocess.STDOUT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DVC, *words], cwd=root, env=environment(), text=True, check=False,
        stdout=subprocess.PIPE, stderr=stderr, preexec_fn=die_with_parent,
    )  # fmt: skip


def up_to_date(root: Path, plan: Sequence[str]) -> list[str]:
    """The first stages of `plan` for which DVC would run nothing: one look instead of one per stage.

    DVC names a stage whose own inputs, parameters, command or outs changed, not those that come after it: all from the
    first such stage on count as changed. A status that cannot be read (another run at work) says nothing of any.

    Args:
        root: the checkout's folder.
        plan: stages of dvc.yaml, each after those it needs. If one changed that `plan` needs and lacks, all count as
            changed.
    """
    needed = _needed(root, plan)
    if plan[0] not in needed:
        return []
    # Of all stages: DVC looks at what several targets need once for each of them.
    done = _call("status", "--json", root=root, stderr=subprocess.DEVNULL)
    if done.returncode:
        return []
    try:
        found = set(json.loads(done.stdout))
    except ValueError:
        return []
    changed = (needed & found) | (set(plan) - needed)
    if not changed <= set(plan):
        return []
    return list(itertools.takewhile(lambda stage: stage not in changed, plan))


def _needed(root: Path, plan: Sequence[str]) -> set[str]:
    """Stages of dvc.lock that are in `plan`, or made what its stages read."""
    try:
        stages = read_dvc_file(root / LOCK).get("stages", {})
    except yaml.YAMLError:
        return set()  # `repro` mends it
    maker = {out["path"]: name for name, stage in stages.items() for out in stage.get("outs", ())}
    needed: set[str] = set()
    left = [stage for stage in plan if stage in stages]
    while left:
        needed.add(stage := left.pop())
        read = [PurePosixPath(dep["path"]) for dep in stages[stage].get("deps", ())]
        makers = {maker.get(str(path)) for dep in read for path in (dep, *dep.parents)}
        left += [name for name in makers if name is not None and name not in needed]
    return needed


def has_remote(root: Path) -> bool:
    """Whether a default DVC remote is configured in the checkout."""
    return default_remote(root) is not None


def environment() -> dict[str, str]:
    """The environment of a stage: this interpreter first on PATH, lines unbuffered, no telemetry.

    DVC starts a stage through $SHELL, or /bin/sh. bash becomes the command; dash and others stay its parent, and
    would outlive DVC with the stage still running beneath (tasks/common/process.py watches the parent only).
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
