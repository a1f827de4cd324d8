"""A worker that runs only Podium's two flows, from its own checkout.

Prefect's process worker takes command, environment and folder from the server (`job_variables`, the pool's template)
and runs the pull steps of the deployment, again in its own process when a run crashes or is cancelled, to look for
hooks. Anyone who can reach the server can therefore run commands on its host. Podium's worker takes only the run's id.
It supervises the process group of a run until it is gone, and reports the end of a run that could not do so itself.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import anyio.abc
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed, Scheduled
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorker, BaseWorkerResult

from flows.checks.server import require_server
from flows.runs.stopping import STOP_TIMEOUT_S
from flows.server import api
from flows.workers.deploy import FLOWS_POOL, POOL_TYPE, POOLS, RESTART_TAG
from flows.workers.dispatch import check_name
from flows.workers.versions import state_versions
from tasks.stage.errors import ParamsError, PodiumError
from tasks.stage.parallel import runs_at_once
from tasks.stage.process import STARTED_BY_A_WORKER, describe_exit

ENTRY = "flows.commands.worker_entry"
HEARTBEATS = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
HEARTBEAT_S = 30
"""Seconds between heartbeats of runs on workers; the automation of flows/workers/deploy.py waits for three of them."""
POLL_S = 2.0
"""Seconds between checks for a cancelled run."""
END_REPORT_S = 50.0
"""Seconds that stages get to end before the end is reported anyway: without heartbeats a run soon counts as lost, and
would be sent again."""
LOST_POLL_S = 15.0
"""Seconds between searches for runs of the pool that other workers took and lost."""
PENDING_S = 90.0
"""Seconds after which a run that was taken but not started is lost; workers start runs within seconds."""
MAX_CRASHES = 20
"""Maximum crashes of a run that sends stages. It is high, because such a run computes nothing that could kill its
worker and may lose many workers while it waits; stages have a lower limit (flows/workers/dispatch.py)."""
GROUP_POLL_S = 0.5
"""Seconds between checks for terminated processes."""


class WorkerJob(BaseJobConfiguration):
    """Job configuration that takes nothing from the server."""

    @classmethod
    async def from_template_and_values(
        cls, base_job_template: dict[str, Any], values: dict[str, Any], client: Any = None
    ) -> WorkerJob:
        """Return the same configuration for every run; variables and blocks of the server are ignored."""
        return cls()


class StageWorker(
    BaseWorker[WorkerJob, BaseVariables, BaseWorkerResult], abc.ABC
):  # ABC: not registered in place of Prefect's own
    """Worker of Podium's two flows."""

    type = POOL_TYPE
    job_configuration = WorkerJob
    project: Path
    say: Callable[..., None]
    pool: str
    _away_since: float | None = None
    _looked_at = 0.0

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Start due runs; report once when the server becomes unavailable, and once when it is back.

        Prefect's loop would log a traceback each time, and end the worker and its runs after some minutes.
        """
        try:
            if time.monotonic() >= self._looked_at + LOST_POLL_S:
                self._looked_at = time.monotonic()
                await self._find_unstarted()
                await self._schedule_crashed()
            started = await super().get_and_submit_flow_runs()
        except api.SERVER_ERRORS as error:
            if not api.is_away(error):
                raise
            if self._away_since is None:
                self._away_since = time.monotonic()
                self.say("the Prefect server does not answer; running runs continue, new ones wait until it is back")
            return []
        if self._away_since is not None:
            self.say(f"the Prefect server is back after {time.monotonic() - self._away_since:.0f} s")
            self._away_since = None
        return started

    async def _find_unstarted(self) -> None:
        """Mark runs of this pool as crashed if a worker took but did not start them.

        The newest heartbeat of a worker, such as this one, serves as the server's current time.
        """
        workers = await self.client.read_workers_for_work_pool(self.pool)
        heartbeats = [worker.last_heartbeat_time for worker in workers if worker.last_heartbeat_time is not None]
        if not heartbeats:
            return
        for run in await self.client.read_flow_runs(
            flow_run_filter=_in_state(StateType.PENDING),
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[self.pool])),
        ):
            assert run.state is not None
            if max(heartbeats) - run.state.timestamp > timedelta(seconds=PENDING_S):
                lost: State = Crashed(message=f"a worker took the run but did not start it within {PENDING_S:.0f} s")
                await self.client.set_flow_run_state(run.id, lost, force=True)

    async def _schedule_crashed(self) -> None:
        """Schedule crashed runs that send stages again, because no other process does."""
        if self.pool != FLOWS_POOL:
            return
        wanted = _in_state(StateType.CRASHED, tags=FlowRunFilterTags(all_=[RESTART_TAG]))
        for run in await self.client.read_flow_runs(flow_run_filter=wanted):
            states = await self.client.read_flow_run_states(run.id)
            unwanted = any(state.is_cancelling() for state in states)
            if not unwanted and sum(state.is_crashed() for state in states) <= MAX_CRASHES:
                await self.client.set_flow_run_state(run.id, Scheduled(message="scheduled again: its worker was lost"))

    async def run(
        self, flow_run: FlowRun, configuration: WorkerJob, task_status: anyio.abc.TaskStatus[int] | None = None
    ) -> BaseWorkerResult:
        """Start this checkout's entry point for a run in its own process group, and supervise it until it ends."""
        process = await anyio.open_process(
            [sys.executable, "-m", ENTRY],
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
            cwd=self.project,
            env={**os.environ, STARTED_BY_A_WORKER: str(flow_run.id), HEARTBEATS: str(HEARTBEAT_S)},
            start_new_session=True,
        )
        stopped = True
        try:
            if task_status is not None:
                task_status.started(process.pid)
            await self._wait(process, flow_run.id)
            stopped = False
        finally:
            with anyio.CancelScope(shield=True):
                _signal_group(process.pid, signal.SIGTERM)
                await _wait_for_group(process, END_REPORT_S)
                ended = f"its process ended with {describe_exit(process.returncode or 0)}"
                message, patience = ("its worker was stopped", 0.0) if stopped else (ended, api.PATIENCE_S)
                with contextlib.suppress(*api.SERVER_ERRORS):  # then the run counts as lost when heartbeats stay away
                    await anyio.to_thread.run_sync(
                        api.retry_call, lambda: _report_end(flow_run.id, message), self.say, patience
                    )
                await _wait_for_group(process, STOP_TIMEOUT_S - END_REPORT_S)
                _signal_group(process.pid, signal.SIGKILL)
                await process.wait()
        return BaseWorkerResult(status_code=0, identifier=str(process.pid))  # the server knows how it ended

    async def _wait(self, process: anyio.abc.Process, run: UUID) -> None:
        """Return when the process has ended or its run was cancelled."""
        while process.returncode is None:
            with anyio.move_on_after(POLL_S):
                await process.wait()
                return
            with contextlib.suppress(ObjectNotFound, *api.SERVER_ERRORS):
                state = (await self.client.read_flow_run(run)).state
                if state is not None and (state.is_cancelling() or state.is_cancelled()):
                    return


def _in_state(state: StateType, **more: Any) -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[state])), **more)


async def _wait_for_group(process: anyio.abc.Process, seconds: float) -> None:
    """Return when a process and its group have ended, or after `seconds`."""
    with anyio.move_on_after(seconds):
        await process.wait()
        while _signal_group(process.pid, 0):
            await anyio.sleep(GROUP_POLL_S)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal (0: none) to a process group; return whether it has a process that is not a zombie."""
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                os.killpg(group, number)
                return True
    return False


def _report_end(run: UUID, message: str) -> None:
    """Report the end of a run that did not report it itself: Cancelled if it was being cancelled, else Crashed."""
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectNotFound):
        state = client.read_flow_run(run).state
        if state is not None and state.is_cancelling():
            client.set_flow_run_state(run, Cancelled(message="its worker ended it"))
        elif state is not None and (state.is_pending() or state.is_running()):
            client.set_flow_run_state(run, Crashed(message=message))


def _require_pool(client: SyncPrefectClient, pool: str) -> str:
    try:
        return client.read_work_pool(pool).type
    except ObjectNotFound:
        raise PodiumError(
            f"the Prefect server at {client.api_url} has no pool {pool}. Run `podium deploy` once"
        ) from None


def run_worker(
    project: Path, pool: str, queues: list[str], name: str | None, limit: int | None, say: Callable[..., None]
) -> None:
    """Run a worker until a signal ends it.

    Args:
        queues: queues of the pool; empty: all.
        name: name of this worker; None: Prefect generates one.
        limit: maximum runs at a time; None: derived from cores and memory of this host.

    Raises:
        ParamsError: pool or queue is invalid.
        PodiumError: the server does not answer, or has no such pool.
    """
    if pool not in POOLS:
        raise ParamsError(f"--pool {pool}: Podium's pools are {', '.join(POOLS)}")
    for queue in queues:
        check_name(queue, "--queue")
    require_server()
    with get_client(sync_client=True) as client:
        kind = _require_pool(client, pool)
    if kind != POOL_TYPE:
        raise PodiumError(f"the pool {pool} has type {kind}; Podium requires type {POOL_TYPE}")
    api.silence_outages()
    if limit is None:
        limit = runs_at_once(pool)
        say(f"{limit} {'run' if limit == 1 else 'runs'} at a time (--limit)")
    worker = StageWorker(
        work_pool_name=pool, work_queues=queues, name=name, limit=limit, create_pool_if_not_found=False
    )
    worker.project, worker.say, worker.pool = project.resolve(), say, pool
    state_versions(worker.project, pool, queues, worker.name)
    # Prefect forwards SIGTERM as SIGINT, which processes that a shell starts with & ignore by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    setup_signal_handlers_worker(os.getpid(), "the worker", say)
    try:
        asyncio.run(worker.start(printer=say))
    except ExceptionGroup:
        with get_client(sync_client=True) as client:
            _require_pool(client, pool)
        raise
