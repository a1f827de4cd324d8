"""Prefect tasks over DVC stages, and publish. Nothing here decides what has to run: DVC does."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows import dvc
from flows.api import extra
from flows.changes import look
from flows.foresight import tell_estimate
from flows.plan import PUBLISH, is_gate
from flows.report import RunReport, StageRecord
from flows.repro import Repro, StageFailed, StagePaused
from tasks.common import artifacts
from tasks.common.errors import REJECTED
from tasks.common.process import describe_exit, die_with_parent

PAUSED_STATE = "Paused"
SECONDS_BETWEEN_UPDATES = 3.0
"""A progress artifact costs a call to the API; nobody needs it more often."""


class RunFailed(Exception):
    """A stage or publish failed for a reason its message gives; the run ends here."""


class RunPaused(Exception):
    """A stage stopped at a checkpoint on purpose; running again continues there."""


Entered = Callable[[StageRecord], None]
"""Takes the record of each stage as soon as it has ended, however it ended."""


def _nothing(record: StageRecord) -> None:
    """For runs in one process, whose report has the record already."""


def run_plan(
    plan: Sequence[str], root: Path, run: RunReport, publish: bool, on_worker: bool = False, entered: Entered = _nothing
) -> None:
    """Bring the stages of `plan` up to date in the checkout `root`, then publish if they end in an accepting gate.

    Where DVC has a default remote, the outs of each stage are there when the next one starts. On a worker, only the
    stages of `plan` may run; what they need must be restored.

    Raises:
        RunFailed: a stage, or publishing, failed; the message holds the last lines it printed.
        RunPaused: a stage stopped at a checkpoint.
    """
    found, remote, say = look(root, plan), dvc.has_remote(root), get_run_logger().info
    if "corpus" in plan and "corpus" not in found.unchanged:
        tell_estimate(root, say)
    left = plan[len(found.unchanged) :]
    with Repro(left, root, say, plan if on_worker else None, found.is_complete and not remote) as repro:
        for stage in plan:
            reproduce(stage, repro if stage in left else None, root, run, entered)
    if remote and (kept := [stage.name for stage in run.stages if stage.status != "ran"]):
        _push(kept, root)  # found in a cache of this host: other hosts may not have them
    gates = [stage for stage in plan if is_gate(stage)]
    if not gates:
        return
    run.read_results(root)
    for stage in gates if publish else ():
        task = stage.partition("@")[2]
        gate = run.glue[task]["gate"] if task else run.gate
        if gate is not None and gate["accepted"]:
            run.enter_receipt(_publish(root, run, entered, task), task)


def reproduce(stage: str, repro: Repro | None, root: Path, run: RunReport, entered: Entered) -> None:
    """Run one stage as a Prefect task and enter it in the report, whatever comes of it. No `repro`: nothing changed.

    Raises:
        RunFailed, RunPaused: see `run_plan`.
    """
    task_of_stage = _stage_task.with_options(task_run_name=stage)
    with _entered(stage, run, entered) as entry:
        try:
            entry.status = cast(str, _result(task_of_stage(stage, repro, root, return_state=True)))
        except RunPaused:
            entry.status = "paused"
            raise


def _push(stages: Sequence[str], root: Path) -> None:
    try:
        dvc.push(stages, root, get_run_logger().info)
    except dvc.PushFailed as error:
        raise RunFailed(str(error)) from None


@dataclass
class _Entry:
    status: str = "failed"


@contextlib.contextmanager
def _entered(name: str, run: RunReport, entered: Entered) -> Iterator[_Entry]:
    """Time what happens inside and enter it in the report: failed, unless the body says otherwise."""
    entry, started_at = _Entry(), time.perf_counter()
    try:
        yield entry
    finally:
        record = StageRecord(name, entry.status, round(time.perf_counter() - started_at, 2))
        run.enter(record)
        entered(record)


def _result(state: State[Any]) -> Any:
    if state.is_failed():
        raise RunFailed(state.message)
    if state.name == PAUSED_STATE:
        raise RunPaused(state.message)
    return state.result()


@task(name="stage", cache_policy=NO_CACHE, retries=0)
def _stage_task(stage: str, repro: Repro | None, root: Path) -> str | State[str]:
    log = get_run_logger()
    if repro is None:
        log.info("nothing changed")
        return "skipped"
    try:
        verdict = repro.bring(stage, log.info, _Progress(stage))
        if verdict == "ran" and dvc.has_remote(root):
            dvc.push([stage], root, log.info)
    except (StageFailed, dvc.PushFailed) as error:
        return Failed(message=str(error))  # a state, not an exception: nobody needs our traceback
    except StagePaused as paused:
        return Completed(name=PAUSED_STATE, message=str(paused))
    return verdict


class _Progress:
    """Shows the share a stage has done as a Prefect progress artifact, from its first word on."""

    def __init__(self, stage: str) -> None:
        self._key = "stage-" + re.sub(r"[^a-z0-9]", "-", stage)
        self._artifact: Any = None
        self._updated_at = 0.0

    def __call__(self, percent: float) -> None:
        if percent < 100 and time.monotonic() - self._updated_at < SECONDS_BETWEEN_UPDATES:
            return
        self._updated_at = time.monotonic()
        if self._artifact is None:
            self._artifact = extra(lambda: create_progress_artifact(progress=percent, key=self._key))
        else:
            extra(lambda: update_progress_artifact(artifact_id=self._artifact, progress=percent))


def _publish(root: Path, run: RunReport, entered: Entered, task: str) -> dict[str, Any]:
    """Publish as a Prefect task and enter it in the report; returns the receipt. `task`: of GLUE, "" for questions."""
    with _entered(f"{PUBLISH}@{task}" if task else PUBLISH, run, entered) as entry:
        receipt = cast(dict[str, Any], _result(_publish_task(root, task, return_state=True)))
        entry.status = "skipped" if receipt.get("unchanged") else "ran"
    return receipt


@task(name="publish", cache_policy=NO_CACHE, retries=0)
def _publish_task(root: Path, task: str) -> dict[str, Any] | State[dict[str, Any]]:
    command = ["tasks.glue_publish", task] if task else ["tasks.publish"]
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=root, env=dvc.environment(), text=True, bufsize=1,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:  # at once: it also says what it waits for
        lines.append(line)
        get_run_logger().info(line.rstrip())
    if code := process.wait():
        said = "".join(lines).strip() or describe_exit(code)
        rejected = " (the gate's verdict changed meanwhile)" if code == REJECTED else ""
        return Failed(message=f"publish failed{rejected}: {said}")
    receipt: dict[str, Any] = json.loads((root / artifacts.publish_receipt(task)).read_text(encoding="utf-8"))
    return receipt
