"""Prefect tasks over DVC stages, and publish. Nothing here decides what has to run: DVC does."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, cast

from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows import dvc
from flows.dvc import leftovers, releases
from flows.dvc.session import DvcSession
from flows.runs.report import WORKER_ENDED, RunReport, StageRecord
from flows.runs.stage_plan import publish_after
from flows.runs.stopping import Interrupted, RunFailed, RunPaused, RunStopped, stop
from flows.server.api import StageLocks, extra, is_cancelled
from flows.views.screen import screen
from tasks.pages.markup import markdown_text
from tasks.plan.dvc_records import verify
from tasks.plan.plan_file import Plan, Stage, read_plan
from tasks.stage import artifacts
from tasks.stage.parallel import stages_at_once
from tasks.stage.process import die_with_parent, is_sent, took, usage_file
from tasks.stage.streams import printable

PAUSED_STATE = "Paused"
SECONDS_BETWEEN_UPDATES = 3.0
"""A progress artifact costs a call to the API; nobody needs it more often."""
LARGE_MB = 200.0
"""Megabytes of text; for less, an estimate of what its preparation takes, some 20 s, is not worth its time."""


CANCELLED = (RunStopped, KeyboardInterrupt, TerminationSignal)
"""What ends a run that was cancelled: by Ctrl-C, by SIGTERM, or on a worker, which sends its run SIGTERM."""


def cancelled_by(error: BaseException) -> str:
    """Return what cancelled a run, or interrupted it, in words.

    Args:
        error: one of CANCELLED.
    """
    if stop.number:
        return stop.reason()
    if isinstance(error, TerminationSignal):
        return WORKER_ENDED if is_sent() and not is_cancelled(flow_run.id) else "SIGTERM"
    return "Ctrl-C" if isinstance(error, KeyboardInterrupt) else "a cancellation in Prefect"


Entered = Callable[[StageRecord], None]
"""Takes the record of each stage as soon as it has ended, however it ended."""
Bring = Callable[[str, DvcSession], None]
"""Brings a stage up to date with a DVC that nobody else uses meanwhile."""


def run_plan(
    plan: Sequence[str],
    root: Path,
    run: RunReport,
    publish: bool,
    on_worker: bool = False,
    entered: Entered = lambda record: None,
    released: releases.Chosen | None = None,
) -> None:
    """Bring the stages of `plan` up to date in the checkout `root`, then publish if they end in an accepting gate.

    First the released models are fetched that gates compare with. Stages that do not need each other run at once where
    the host has room (`bring_all`). Where DVC has a default remote they run one by one, and the outs of each stage
    are there when the next one starts; so they do on a worker. There, only the stages of `plan` may run; what they need
    must be restored; and `released` says which releases are fetched.

    Raises:
        RunFailed: a stage, or publishing, failed; the message holds the last lines it printed.
        RunPaused: a stage stopped at a checkpoint.
        RunStopped, Interrupted: the command was asked to end, and there was nothing to keep.
    """
    known = read_plan(root)
    gates = [known[stage] for stage in plan if known[stage].is_gate]
    names = [gate.name for gate in gates]
    for text in verify(names, root):
        tell(text)
    releases.fetch(plan, root, tell, released)
    remote, most, say = dvc.has_remote(root), 1 if on_worker else stages_at_once(), tell
    leftovers.mend(root, say)
    with contextlib.ExitStack() as held:
        sent, locks = plan if on_worker else None, StageLocks(str(flow_run.id), tell)
        lock = locks.take if on_worker and remote else None
        lanes = [held.enter_context(DvcSession(root, sent, most > 1, lock, run.identity)) for _ in range(most)]
        found = lanes[0].look(plan)
        if known.makers(str(artifacts.CORPUS)) & set(plan) - set(found.unchanged):
            tell_estimate(root, say)
        for stage in found.unchanged:
            reproduce(known[stage], None, root, run, entered)
        left, alone = plan[len(found.unchanged) :], found.is_complete and not remote

        def bring(stage: str, lane: DvcSession) -> None:
            try:
                reproduce(known[stage], lane, root, run, entered, alone)
            finally:  # what it made has been pushed
                locks.release()

        try:
            _bring(left, known, lanes if alone else lanes[:1], bring)
        finally:
            run.sort(plan)
        if remote and (kept := [stage.name for stage in run.stages if stage.status != "ran"]):
            lanes[0].push(kept, tell)  # found in a cache of this host: other hosts may not have them
    if any(stage.status == "restored" for stage in run.stages) and (damaged := verify(names, root)):
        raise RunFailed("\n".join(damaged))
    run.read_results(root)
    for gate in gates if publish else ():
        if run.accepts(gate.name):
            run.enter_receipt(_publish(gate, root, run, entered), gate.name)


def _bring(left: Sequence[str], known: Plan, lanes: Sequence[DvcSession], bring: Bring) -> None:
    """Bring stages up to date, in their order or as many at once as there are lanes."""
    if len(lanes) == 1:
        for stage in left:
            bring(stage, lanes[0])
        return
    failed = bring_all(left, known, lanes, bring, tell)
    for error in failed:
        if not isinstance(error, (RunFailed, RunPaused, RunStopped)):
            raise error
    for kind, between in ((RunFailed, "\n"), (RunPaused, "\n"), (RunStopped, " and stage ")):
        if said := [str(error) for error in failed if isinstance(error, kind)]:
            raise kind(between.join(said))


def bring_all(
    stages: Sequence[str], known: Plan, lanes: Sequence[DvcSession], bring: Bring, tell: Callable[[str], None]
) -> list[BaseException]:
    """Bring stages up to date, as many at once as there are lanes.

    The order of the plan decides who begins; a stage that needs a device has the host for itself, as training is slower
    beside anything else. Where one fails nothing more begins, and those at work come to their end: what they make is
    kept.

    Args:
        stages: in the order of the plan; what else they need is up to date.
        known: the plan.
        lanes: see `Bring`.
        bring: is called in threads of its own.
        tell: takes who is waited for, for people.

    Returns:
        What was raised by stages, in the order in which they ended.
    """
    left, free, failed = list(stages), list(lanes), list[BaseException]()
    working: dict[Future[None], tuple[str, DvcSession]] = {}
    with ThreadPoolExecutor(len(lanes)) as threads:
        try:
            while True:
                while free and not failed and (stage := _next(left, [name for name, _ in working.values()], known)):
                    lane = free.pop()
                    lane.start()  # here: it ends with the thread that starts it
                    left.remove(stage)
                    working[threads.submit(contextvars.copy_context().run, bring, stage, lane)] = stage, lane
                if not working:
                    return failed
                for ended in wait(working, return_when=FIRST_COMPLETED).done:
                    stage, lane = working.pop(ended)
                    free.append(lane)
                    if error := ended.exception():
                        failed.append(error)
                        if others := ", ".join(name for name, _ in working.values()):
                            tell(f"after {stage} nothing more begins; {others} may come to an end")
        except BaseException:
            for lane in lanes:
                lane.end()  # else its thread would be waited for
            raise


def _next(left: Sequence[str], working: Sequence[str], known: Plan) -> str | None:
    """The first stage that may begin now; None while it is better to wait."""
    if any(known[stage].uses_device for stage in working):
        return None
    unfinished = {*left, *working}
    ready = (stage for stage in left if unfinished.isdisjoint(known.needs[stage]))
    first = next(ready, None)
    return None if first is not None and working and known[first].uses_device else first


def reproduce(
    stage: Stage, session: DvcSession | None, root: Path, run: RunReport, entered: Entered, alone: bool = False
) -> None:
    """Run one stage as a Prefect task and enter it in the report, whatever comes of it.

    Args:
        stage: of the plan.
        session: brings it up to date; None: nothing changed.
        root: the checkout.
        run: the report.
        entered: takes the record.
        alone: what it needs is up to date.

    Raises:
        RunFailed, RunPaused, RunStopped: see `run_plan`.
    """
    _enter("stage", stage.name, lambda: _update(stage, session, alone), run, entered, root)


def tell(text: str) -> None:
    """Say a line that is about the run, not of a stage: in the log and to who watches."""
    get_run_logger().info(printable(text))
    screen().tell(text)


_ENTERING = threading.Lock()
"""Stages may end at the same time, each in a thread of its own."""


def _enter(kind: str, name: str, body: Callable[[], str], run: RunReport, entered: Entered, root: Path) -> None:
    """Do what `body` does as a task of Prefect, and enter in the report what came of it, and how long it took.

    Args:
        body: returns the status.
        name: of the line of the run.
    """
    status, started_at, began = "failed", time.perf_counter(), round(time.time(), 2)
    run.at_work[name] = began
    screen().begin(name)
    try:
        status = _in_task(kind, name, body)
    except RunPaused:
        status = "paused"
        raise
    except CANCELLED:
        status = "interrupted"
        raise
    finally:
        seconds = round(time.perf_counter() - started_at, 2)
        record = StageRecord(name, status, seconds, None, began, **took(root / usage_file(name), began))
        with _ENTERING:
            run.enter(record)
            entered(record)
            screen().end(record)


def _in_task(kind: str, name: str, body: Callable[[], str]) -> str:
    """Do what `body` does as a task of Prefect, whose state says how that ended; return or raise what it does."""
    raised: list[BaseException] = []

    # Without a tag of its own: for each tag of a task Prefect asks the server for a slot, which takes some seconds.
    @task(name=kind, task_run_name=name, cache_policy=NO_CACHE, retries=0)
    def attempt() -> str | State[str]:
        try:
            return body()
        except (RunFailed, RunPaused, RunStopped, Interrupted) as error:  # a state: nobody needs our traceback
            raised.append(error)
            if isinstance(error, RunPaused):
                return Completed(name=PAUSED_STATE, message=str(error))
            return Failed(message=str(error)) if isinstance(error, RunFailed) else Cancelled(message=str(error))

    state = attempt(return_state=True)
    if raised:
        raise raised[0]
    return cast(str, state.result())


def _update(stage: Stage, session: DvcSession | None, alone: bool) -> str:
    """Bring a stage up to date, and give the remote what it made; the verdict."""
    if session is None:
        get_run_logger().info("nothing changed")
        return "skipped"
    pull, say = dvc.has_remote(session.root), functools.partial(_pass_on, stage.name)
    verdict = session.update(stage.name, say, _Progress(stage), pull=pull, alone=alone)
    if verdict == "ran" and pull:
        session.push([stage.name], tell)
    return verdict


def _pass_on(stage: str, line: str) -> None:
    """Say a line that a stage printed."""
    get_run_logger().info(printable(line))  # on a worker this is a terminal, too
    screen().line(stage, line)


class _Progress:
    """Shows the share a stage has done as a Prefect progress artifact, from its first word on."""

    def __init__(self, stage: Stage) -> None:
        self._key = "stage-" + re.sub(r"[^a-z0-9]", "-", stage.name)
        counted = "updates of the training" if stage.plots else "rows"
        self._description = f"{markdown_text(stage.name)}: {counted} that are done, in percent"
        self._artifact: Any = None
        self._updated_at = 0.0

    def __call__(self, percent: float) -> None:
        if percent < 100 and time.monotonic() - self._updated_at < SECONDS_BETWEEN_UPDATES:
            return
        self._updated_at = time.monotonic()
        if self._artifact is None:
            about = {"key": self._key, "description": self._description}
            self._artifact = extra(lambda: create_progress_artifact(progress=percent, **about))
        else:
            extra(lambda: update_progress_artifact(artifact_id=self._artifact, progress=percent))


def _publish(gate: Stage, root: Path, run: RunReport, entered: Entered) -> dict[str, Any]:
    """Publish as a Prefect task what a gate accepted, and enter it in the report; returns the receipt."""
    receipt: dict[str, Any] = {}

    def publish() -> str:
        receipt.update(releases.publish(gate, root, tell))
        return "skipped" if receipt.get("unchanged") else "ran"

    _enter("publish", publish_after(gate), publish, run, entered, root)
    return receipt


def tell_estimate(root: Path, say: Callable[[str], None]) -> None:
    """Print what `python -m tasks.estimates.data_estimate` finds for the checkout `root`, if its corpus is large.

    An estimate that cannot be made stops nothing: the stages say what is wrong with what they read.
    """
    if (root / artifacts.CORPUS).exists():
        return
    megabytes = _estimate(root, "--size")
    if megabytes and float(megabytes) >= LARGE_MB:
        say(f"a corpus of {float(megabytes):,.0f} MB: a sample of it is prepared first, to say what all of it takes")
        say(_estimate(root) or "no estimate could be made of it")


def _estimate(root: Path, *words: str) -> str:
    """Return what the estimate of the checkout prints; nothing if it failed."""
    command = [sys.executable, "-m", "tasks.estimates.data_estimate", *words]
    env, out, null = dvc.environment(), subprocess.PIPE, subprocess.DEVNULL
    done = subprocess.run(
        command, cwd=root, env=env, text=True, check=False, stdout=out, stderr=null, preexec_fn=die_with_parent
    )
    return done.stdout.strip() if done.returncode == 0 else ""
