"""Prefect tasks that run DVC stages and publish. DVC decides which stages have to run."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
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
from flows.dvc.session import DvcSession, use_fork_server
from flows.runs.report import WORKER_ENDED, RunReport, StageRecord
from flows.runs.stage_plan import publish_step
from flows.runs.stopping import CANCELLED_IN_PREFECT, RunFailed, RunPaused, RunStopped, stop
from flows.server.api import StageLock, call_optional, is_cancelled
from flows.views.screen import PROGRESS, current_screen
from tasks.pages.markup import markdown_text
from tasks.plan.dvc_records import find_gate_damage
from tasks.plan.plan_file import Plan, Stage, read_plan
from tasks.stage.parallel import stages_at_once
from tasks.stage.process import is_sent, read_usage, usage_file
from tasks.stage.streams import printable

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
StageRunner = Callable[[str, DvcSession], None]
"""Function that brings a stage up to date in a DVC session that nothing else uses meanwhile."""


_early: ContextVar[Sequence[DvcSession]] = ContextVar("early", default=())
"""Sessions that started before the flow, in a repaired checkout."""


@contextlib.contextmanager
def start_sessions(stages: Sequence[Stage], root: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Start the DVC processes of a run on this host, which take a second, before the flow that the body calls.

    Args:
        stages: stages that are expected to run.
    """
    leftovers.repair(root, say)
    most = stages_at_once()
    with contextlib.ExitStack() as held:
        sessions = [held.enter_context(DvcSession(root, None, most > 1)) for _ in range(most)]
        for session in sessions:
            session.start()
        held.enter_context(use_fork_server(sessions, stages, root))
        token = _early.set(sessions)
        try:
            yield
        finally:
            _early.reset(token)


def has_sessions() -> bool:
    """Return whether sessions have started before the flow."""
    return bool(_early.get())


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

    The released models that gates compare with are fetched first. Independent stages run in parallel if the host has
    enough resources (`run_parallel`). With a default DVC remote they run one by one, and the outs of each are pushed
    before the next one starts. On a worker they also run one by one.

    Args:
        on_worker: run only the stages of `plan`, and restore their dependencies.
        released: releases to fetch; None: the newest ones.

    Raises:
        RunFailed: a stage or publishing failed; the message has the last lines of output.
        RunPaused: a stage stopped at a checkpoint.
        RunStopped, Interrupted: a signal stopped the run, and there was nothing to keep.
    """
    known = read_plan(root)
    gates = [known[stage] for stage in plan if known[stage].is_gate]
    names = [gate.name for gate in gates]
    for text in find_gate_damage(names, root):
        log_line(text)
    remote, most, say = dvc.has_remote(root), 1 if on_worker else stages_at_once(), log_line
    if not has_sessions():
        leftovers.repair(root, say)
    with contextlib.ExitStack() as held:
        sent, locks = plan if on_worker else None, StageLock(str(flow_run.id), log_line)
        lock = locks.take if on_worker and remote else None
        sessions = _early.get() or [held.enter_context(DvcSession(root, sent, most > 1, lock)) for _ in range(most)]
        for session in sessions:
            session.run = run.identity
        sessions[0].require_dvc()
        found = sessions[0].check_plan(plan)
        if releases.fetch_releases(plan, root, log_line, released, found.unchanged):
            found = sessions[0].check_plan(plan)
        left, single = plan[len(found.unchanged) :], found.is_complete and not remote

        def bring(stage: str, session: DvcSession | None) -> None:
            try:
                _record("stage", stage, lambda: _update(known[stage], session, single, run.progress), run, on_end, root)
            finally:  # the outs have been pushed
                locks.release()

        for stage in found.unchanged:
            bring(stage, None)
        sessions = sessions if single else sessions[:1]
        if not has_sessions():
            held.enter_context(use_fork_server(sessions, [known[stage] for stage in left], root))
        try:
            _run_stages(left, known, sessions, bring)
        finally:
            run.stages.sort(key=lambda stage: plan.index(stage.name))  # until now by their ends
            run.read_results(root)  # of a failed run too
        if remote and (kept := [stage.name for stage in run.stages if stage.status != "ran"]):
            sessions[0].push(kept, log_line)  # outs from this host's cache, which the remote may lack
    if any(stage.status == "restored" for stage in run.stages) and (damaged := find_gate_damage(names, root)):
        run.results.clear()  # no gate wrote this verdict
        raise RunFailed("\n".join(damaged))
    for gate in gates if publish else ():
        if run.accepts(gate.name):
            run.add_receipt(_publish(gate, root, run, on_end), gate.name)


def _run_stages(left: Sequence[str], known: Plan, sessions: Sequence[DvcSession], bring: StageRunner) -> None:
    """Bring stages up to date, one by one or in parallel, one in each session."""
    if len(sessions) == 1:
        for stage in left:
            bring(stage, sessions[0])
        return
    failed = run_parallel(left, known, sessions, bring, log_line)
    for error in failed:
        if not isinstance(error, (RunFailed, RunPaused, RunStopped)):
            raise error
    for kind, between in ((RunFailed, "\n"), (RunPaused, "\n"), (RunStopped, " and stage ")):
        if said := [str(error) for error in failed if isinstance(error, kind)]:
            raise kind(between.join(said))


def run_parallel(
    stages: Sequence[str], known: Plan, sessions: Sequence[DvcSession], bring: StageRunner, say: Callable[[str], None]
) -> list[BaseException]:
    """Bring stages up to date in parallel, one in each session.

    Stages start in the order of the plan. A stage that uses a device runs alone, as other stages slow training down.
    After a failure no stage starts, but those that are running finish, and their outputs are kept.

    Args:
        stages: stages in the order of the plan; their other dependencies are up to date.
        say: called with a message after a failure while other stages are running.

    Returns:
        The errors of failed stages, in the order in which the stages ended.
    """
    left, free, failed = list(stages), list(sessions), list[BaseException]()
    working: dict[Future[None], tuple[str, DvcSession]] = {}
    with ThreadPoolExecutor(len(sessions)) as threads:
        try:
            while True:
                while free and not failed and (stage := _pick(left, [name for name, _ in working.values()], known)):
                    session = free.pop()
                    session.start()  # in this thread, as the process ends with the thread that starts it
                    left.remove(stage)
                    working[threads.submit(copy_context().run, bring, stage, session)] = stage, session
                if not working:
                    return failed
                for ended in wait(working, return_when=FIRST_COMPLETED).done:
                    stage, session = working.pop(ended)
                    free.append(session)
                    if error := ended.exception():
                        failed.append(error)
                        if others := ", ".join(name for name, _ in working.values()):
                            say(f"no more stages start after {stage}; waiting for {others}")
        except BaseException:
            for session in sessions:
                session.end()  # otherwise the pool would wait for its thread
            raise


def _pick(left: Sequence[str], working: Sequence[str], known: Plan) -> str | None:
    """Return the first stage that can start now; None if none can, or a stage with a device waits for others to end."""
    if any(known[stage].uses_device for stage in working):
        return None
    unfinished = {*left, *working}
    ready = (stage for stage in left if unfinished.isdisjoint(known.needs[stage]))
    first = next(ready, None)
    return None if first is not None and working and known[first].uses_device else first


def log_line(text: str) -> None:
    """Write a line about the run to the log and to the terminal."""
    get_run_logger().info(printable(text))
    current_screen().tell(text)


_REPORT_LOCK = threading.Lock()
"""Lock for the report: stages may end at the same time in different threads."""


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
        with _REPORT_LOCK:
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


def _update(stage: Stage, session: DvcSession | None, single: bool, shown: dict[str, str]) -> str:
    """Bring a stage up to date, push its outs to the remote, and return its status."""
    if session is None:
        get_run_logger().info("nothing changed")
        return "skipped"

    def forward(line: str) -> None:
        get_run_logger().info(printable(line))  # on a worker, the log also goes to a terminal
        current_screen().line(stage.name, line)
        if PROGRESS.match(line):
            shown[stage.name] = line

    pull = dvc.has_remote(session.root)
    verdict = session.update(stage.name, forward, _Progress(stage), pull=pull, single=single)
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
