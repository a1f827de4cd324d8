"""Prefect tasks that run DVC stages and publish. DVC decides which stages have to run."""

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
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
from flows.dvc.session import DvcSession, Listener, use_fork_server
from flows.runs.report import WORKER_ENDED, RunReport, StageRecord
from flows.runs.stage_plan import publish_step
from flows.runs.stopping import CANCELLED_IN_PREFECT, RunFailed, RunPaused, RunStopped, stop
from flows.server.api import StageLock, call_optional, is_cancelled
from flows.views.screen import current_screen, format_progress
from tasks.pages.markup import markdown_text
from tasks.plan.dvc_records import find_gate_damage
from tasks.plan.plan_file import Stage, read_plan
from tasks.stage.process import is_sent, read_usage, usage_file
from tasks.stage.streams import NOTE, printable

PAUSED_STATE = "Paused"
SECONDS_BETWEEN_UPDATES = 3.0
"""Minimum interval between updates of a progress artifact, each of which is a call to the API."""

CANCELLED = (RunStopped, KeyboardInterrupt, TerminationSignal)
"""Errors that end a cancelled run: by Ctrl-C, by SIGTERM, or by a worker, which sends SIGTERM to its run."""


def describe_cancellation(error: BaseException) -> str:
    """Describe what cancelled or interrupted a run."""
    if stop.number:
        return stop.reason()
    if isinstance(error, TerminationSignal) and not is_sent():
        return "SIGTERM"
    if isinstance(error, TerminationSignal) and not is_cancelled(flow_run.id):
        return WORKER_ENDED
    return "Ctrl-C" if isinstance(error, KeyboardInterrupt) else CANCELLED_IN_PREFECT


StageCallback = Callable[[StageRecord], None]
"""Callback with the record of each stage when it ends."""
_early: ContextVar[DvcSession | None] = ContextVar("early", default=None)
"""Session that started before the flow, in a repaired checkout."""


@contextlib.contextmanager
def start_session(stages: Sequence[Stage], root: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Start the DVC process of a run on this host, which takes a second, before the flow that the body calls.

    Args:
        stages: stages that are expected to run.
    """
    leftovers.repair(root, say)
    with DvcSession(root) as session, use_fork_server(session, stages, root):
        token = _early.set(session)
        try:
            yield
        finally:
            _early.reset(token)


def has_session() -> bool:
    """Return whether a session has started before the flow."""
    return _early.get() is not None


def run_plan(
    plan: Sequence[str],
    root: Path,
    run: RunReport,
    publish: bool,
    on_worker: bool = False,
    on_end: StageCallback = lambda record: None,
    released: releases.ReleaseSelection | None = None,
) -> None:
    """Bring the stages of `plan` up to date in the checkout `root`, then publish the models that gates accept.

    The released models that gates compare with are fetched first. With a default DVC remote, the outs of each stage are
    pushed before the next one starts.

    Args:
        on_worker: run only the stages of `plan`, and restore their dependencies.
        released: releases to fetch; None: the newest ones.

    Raises:
        RunFailed: a stage or publishing failed; the message has its error.
        RunPaused: a stage stopped at a checkpoint.
        RunStopped, Interrupted: a signal stopped the run, and there was nothing to keep.
    """
    known = read_plan(root)
    gates = [known[stage] for stage in plan if known[stage].is_gate]
    names = [gate.name for gate in gates]
    for text in find_gate_damage(names, root):
        log_line(text)
    remote = dvc.has_remote(root)
    if not has_session():
        leftovers.repair(root, log_line)
    with contextlib.ExitStack() as held:
        locks = StageLock(str(flow_run.id), log_line)
        lock = locks.take if on_worker and remote else None
        session = _early.get() or held.enter_context(DvcSession(root, plan if on_worker else None, lock))
        session.run = run.identity
        session.require_dvc()
        found = session.check_plan(plan)
        if releases.fetch_releases(plan, root, log_line, released, found.unchanged):
            found = session.check_plan(plan)
        if not has_session():
            held.enter_context(
                use_fork_server(session, [known[one] for one in plan if one not in found.unchanged], root)
            )
        others = [] if found.is_complete else [one for one in known.with_upstream(plan) if one not in plan]
        try:
            for stage in plan:
                upstream = [one for one in known.with_upstream([stage]) if one in others]
                others = [one for one in others if one not in upstream]
                left = [] if stage in found.unchanged else [known[one] for one in (*upstream, stage)]
                _record(
                    "stage", stage, functools.partial(_bring, left, session, locks, run.progress), run, on_end, root
                )
        finally:
            run.read_results(root)  # of a failed run too
        if remote and (kept := [stage.name for stage in run.stages if stage.status != "ran"]):
            session.push(kept, log_line)  # outs from this host's cache, which the remote may lack
    if any(stage.status == "restored" for stage in run.stages) and (damaged := find_gate_damage(names, root)):
        run.results.clear()  # no gate wrote this verdict
        raise RunFailed("\n".join(damaged))
    for gate in gates if publish else ():
        if run.accepts(gate.name):
            run.add_receipt(_publish(gate, root, run, on_end), gate.name)


def log_line(text: str) -> None:
    """Write a line about the run to the log and to the terminal."""
    get_run_logger().info(printable(text))
    current_screen().tell(text)


def _record(kind: str, name: str, body: Callable[[], str], run: RunReport, on_end: StageCallback, root: Path) -> None:
    """Call `body` as a Prefect task, and add its status and time to the report."""
    status, started_at, began = "failed", time.perf_counter(), round(time.time(), 2)
    run.at_work[name] = began
    current_screen().begin(name)
    try:
        status = _run_task(kind, name, body)
    except RunPaused:
        status = "paused"
        raise
    except CANCELLED as error:
        status = "interrupted" if describe_cancellation(error) == WORKER_ENDED else "cancelled"
        raise
    finally:
        seconds = round(time.perf_counter() - started_at, 2)
        record = StageRecord(name, status, seconds, None, began, **read_usage(root / usage_file(name), began))
        run.add_stage(record)
        on_end(record)
        current_screen().end(record)


def _run_task(kind: str, name: str, body: Callable[[], str]) -> str:
    """Call `body` as a Prefect task whose state shows the outcome; return its result or raise its error."""
    raised: list[BaseException] = []

    # The task has no tags: for each tag, Prefect requests a slot from the server, which takes seconds.
    @task(name=kind, task_run_name=name, cache_policy=NO_CACHE, retries=0)
    def attempt() -> str | State[str]:
        try:
            return body()
        except (RunFailed, RunPaused, *CANCELLED) as error:  # expected; Prefect would log a traceback
            if isinstance(error, CANCELLED) and describe_cancellation(error) == WORKER_ENDED:
                raise
            raised.append(error)
            if isinstance(error, RunPaused):
                return Completed(name=PAUSED_STATE, message=str(error))
            return Failed(message=str(error)) if isinstance(error, RunFailed) else Cancelled(message=str(error))

    state = attempt(return_state=True)
    if raised:
        raise raised[0]
    return cast(str, state.result())


def _bring(stages: Sequence[Stage], session: DvcSession, locks: StageLock, shown: dict[str, str]) -> str:
    """Bring stages up to date, one after the other, and return the status of the last one; none: nothing changed."""
    if not stages:
        get_run_logger().info("nothing changed")
    verdict = "skipped"
    for stage in stages:
        try:
            verdict = _update(stage, session, shown)
        finally:  # its outs have been pushed
            locks.release()
    return verdict


def _update(stage: Stage, session: DvcSession, shown: dict[str, str]) -> str:
    """Bring a stage up to date, push its outs to the remote, and return its status."""
    artifact = _Progress(stage)

    def tell(line: str) -> None:
        get_run_logger().info(printable(line))  # on a worker, the log also goes to a terminal
        current_screen().line(line)

    def note(text: str) -> None:
        log_line(f"{NOTE}{text}")

    def progress(percent: int, text: str) -> None:
        shown[stage.name] = format_progress(percent, text)
        get_run_logger().info(printable(shown[stage.name]))
        current_screen().progress(stage.name, percent, text)
        artifact(percent)

    pull = dvc.has_remote(session.root)
    verdict = session.update(stage.name, Listener(tell, note, progress), pull=pull)
    if verdict == "ran" and pull:
        session.push([stage.name], log_line)
    return verdict


class _Progress:
    def __init__(self, stage: Stage) -> None:
        self._key = "stage-" + re.sub(r"[^a-z0-9]", "-", stage.name)
        counted = "training updates" if stage.plots else "rows"
        self._description = f"{markdown_text(stage.name)}: percentage of {counted} done"
        self._artifact: Any = None
        self._updated_at = 0.0

    def __call__(self, percent: float) -> None:
        if percent < 100 and time.monotonic() - self._updated_at < SECONDS_BETWEEN_UPDATES:
            return
        self._updated_at = time.monotonic()
        if self._artifact is None:
            about = {"key": self._key, "description": self._description}
            self._artifact = call_optional(lambda: create_progress_artifact(progress=percent, **about))
        else:
            call_optional(lambda: update_progress_artifact(artifact_id=self._artifact, progress=percent))


def _publish(gate: Stage, root: Path, run: RunReport, on_end: StageCallback) -> dict[str, Any]:
    receipt: dict[str, Any] = {}

    def publish() -> str:
        receipt.update(releases.publish_release(gate, root, log_line))
        return "skipped" if receipt.get("unchanged") else "ran"

    _record("publish", publish_step(gate), publish, run, on_end, root)
    return receipt
