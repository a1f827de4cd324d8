"""A worker that runs Podium's own two flows from its own checkout, whatever the Prefect server tells it to start.

Prefect's process worker takes command, environment and folder from the server (`job_variables`, the pool's template),
follows the pull steps of the deployment, and does so again in its own process when a run crashes or is cancelled, to
look for hooks: whoever reaches the server runs commands there. This one takes nothing but the run's id. It looks after
what it started until nothing of it is left, and says how the run ended, where the run could not say so itself.
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
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import anyio.abc
import psutil
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import State, StateType, WorkPool
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed, Scheduled
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorker, BaseWorkerResult

from flows.checks.server import require_server
from flows.runs.stopping import PATIENCE_S
from flows.server import api
from flows.workers.deploy import AGAIN, FLOWS_POOL, POOL_TYPE, POOLS
from flows.workers.dispatch import checked_name
from tasks.stage.errors import ParamsError, PodiumError
from tasks.stage.parallel import runs_at_once
from tasks.stage.process import STARTED_BY_A_WORKER, describe_exit

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

ENTRY = "flows.commands.worker_entry"
HEARTBEATS = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
HEARTBEAT_S = 30
"""Seconds between heartbeats of runs on workers; the automation of flows/workers/deploy.py waits for three of them."""
LOOK_S = 2.0
"""Seconds between looks at a run: whether somebody cancelled it."""
TOLD_S = 50.0
"""Seconds that stages have to end until the server is told of it all the same: without heartbeats a run soon counts as
lost, and would be sent again."""
LOST_S = 15.0
"""Seconds between looks of a worker for runs of its pool that others took and lost."""
PENDING_S = 90.0
"""A worker that took a run starts it within seconds; after this it died in between, and nobody would tell."""
MOST_CRASHES = 20
"""A run that crashed more often is left alone. A run that sends stages computes nothing that could kill its worker, so
that workers may be lost often while it waits; stages have a lower limit (flows/workers/dispatch.py)."""
GROUP_S = 0.5
"""Seconds between looks at processes that were asked to end."""


class OwnJob(BaseJobConfiguration):
    """Nothing of it comes from the server."""

    @classmethod
    async def from_template_and_values(
        cls, base_job_template: dict[str, Any], values: dict[str, Any], client: Any = None
    ) -> OwnJob:
        """The same for every run: the variables of pool, deployment and run are not read, nor the blocks they name."""
        return cls()


class OwnWorker(
    BaseWorker[OwnJob, BaseVariables, BaseWorkerResult], abc.ABC
):  # ABC: not registered in place of Prefect's own
    """See the module."""

    type = POOL_TYPE
    job_configuration = OwnJob
    project: Path
    say: Callable[..., None]
    pool: str
    _away_since: float | None = None
    _looked_at = 0.0

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Start the runs that are due; none while the server is away, which is said once, as is that it is back.

        Prefect's loop would say so at length each time, and end the worker and its runs after some minutes.
        """
        try:
            if time.monotonic() >= self._looked_at + LOST_S:
                self._looked_at = time.monotonic()
                await self._find_unstarted()
                await self._schedule_crashed()
            started = await super().get_and_submit_flow_runs()
        except api.UNREACHED as error:
            if not api.is_away(error):
                raise
            if self._away_since is None:
                self._away_since = time.monotonic()
                self.say("the Prefect server does not answer; runs go on, and new ones wait until it does")
            return []
        if self._away_since is not None:
            self.say(f"the Prefect server is back after {time.monotonic() - self._away_since:.0f} s")
            self._away_since = None
        return started

    async def _find_unstarted(self) -> None:
        """Say of each run of this pool that a worker took and did not start that it crashed.

        The heartbeat of a worker that lives, such as this one, is what the server's clock said lately.
        """
        workers = await self.client.read_workers_for_work_pool(self.pool)
        heartbeats = [one.last_heartbeat_time for one in workers if one.last_heartbeat_time is not None]
        if not heartbeats:
            return
        for run in await self.client.read_flow_runs(
            flow_run_filter=_in_state(StateType.PENDING),
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[self.pool])),
        ):
            assert run.state is not None
            if max(heartbeats) - run.state.timestamp > timedelta(seconds=PENDING_S):
                lost: State = Crashed(message=f"a worker took it and did not start it in {PENDING_S:.0f} s")
                await self.client.set_flow_run_state(run.id, lost, force=True)

    async def _schedule_crashed(self) -> None:
        """Schedule the runs again that send stages and crashed; nobody waits for such a run, and would."""
        if self.pool != FLOWS_POOL:
            return
        wanted = _in_state(StateType.CRASHED, tags=FlowRunFilterTags(all_=[AGAIN]))
        for run in await self.client.read_flow_runs(flow_run_filter=wanted):
            states = await self.client.read_flow_run_states(run.id)
            unwanted = any(state.is_cancelling() for state in states)
            if not unwanted and sum(state.is_crashed() for state in states) <= MOST_CRASHES:
                await self.client.set_flow_run_state(run.id, Scheduled(message="sent again, as its worker was lost"))

    async def run(
        self, flow_run: FlowRun, configuration: OwnJob, task_status: anyio.abc.TaskStatus[int] | None = None
    ) -> BaseWorkerResult:
        """Start this checkout's entry for a run, in a process group of its own, and look after it to its end."""
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
                _signal(process.pid, signal.SIGTERM)
                await _gone(process, TOLD_S)
                ended = f"its process ended with {describe_exit(process.returncode or 0)}"
                said, patience = ("its worker was stopped", 0.0) if stopped else (ended, api.PATIENCE_S)
                with contextlib.suppress(*api.UNREACHED):  # then the run counts as lost when heartbeats stay away
                    await anyio.to_thread.run_sync(
                        api.patiently, lambda: _settle(flow_run.id, said), self.say, patience
                    )
                await _gone(process, PATIENCE_S - TOLD_S)
                _signal(process.pid, signal.SIGKILL)
                await process.wait()
        return BaseWorkerResult(status_code=0, identifier=str(process.pid))  # the server knows how it ended

    async def _wait(self, process: anyio.abc.Process, run: UUID) -> None:
        """Return when the process has ended, or somebody cancelled its run."""
        while process.returncode is None:
            with anyio.move_on_after(LOOK_S):
                await process.wait()
                return
            with contextlib.suppress(ObjectNotFound, *api.UNREACHED):
                state = (await self.client.read_flow_run(run)).state
                if state is not None and (state.is_cancelling() or state.is_cancelled()):
                    return


def _in_state(state: StateType, **more: Any) -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[state])), **more)


async def _gone(process: anyio.abc.Process, seconds: float) -> None:
    """Return when nothing of a process and its group is at work, and after so many seconds in any case."""
    with anyio.move_on_after(seconds):
        await process.wait()
        while _signal(process.pid, 0):
            await anyio.sleep(GROUP_S)


def _signal(group: int, number: int) -> bool:
    """Send a process group a signal, 0 being none; whether one of it is at work: one that awaits its parent is not."""
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                os.killpg(group, number)
                return True
    return False


def _settle(run: UUID, said: str) -> None:
    """Tell the server how a run ended that did not say so itself: cancelled, if somebody wanted that, else crashed."""
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectNotFound):
        state = client.read_flow_run(run).state
        if state is not None and state.is_cancelling():
            client.set_flow_run_state(run, Cancelled(message="its worker has ended it"))
        elif state is not None and (state.is_pending() or state.is_running()):
            client.set_flow_run_state(run, Crashed(message=said))


def work(
    project: Path, pool: str, queues: list[str], name: str | None, limit: int | None, say: Callable[..., None]
) -> None:
    """Take runs of a pool until a signal ends the worker.

    Args:
        project: its flows are run, and its stages.
        pool: one of Podium's.
        queues: of the pool; empty: all.
        name: of this worker; None: Prefect gives it one.
        limit: runs at a time; None: what cores and memory of this host allow.
        say: takes what a person should read.

    Raises:
        ParamsError: pool or queue cannot be one.
        PodiumError: the server, or the pool on it, is not there.
    """
    if pool not in POOLS:
        raise ParamsError(f"--pool {pool}: Podium's pools are {', '.join(POOLS)}")
    for queue in queues:
        checked_name(queue, "--queue")
    require_server()
    _require_pool(pool)
    api.quiet_outages()
    if limit is None:
        limit = runs_at_once(pool)
        say(f"{limit} {'run' if limit == 1 else 'runs'} at a time (--limit)")
    worker = OwnWorker(work_pool_name=pool, work_queues=queues, name=name, limit=limit, create_pool_if_not_found=False)
    worker.project, worker.say, worker.pool = project.resolve(), say, pool
    # Prefect passes SIGTERM on as SIGINT, which a shell lets a process that it starts with & ignore.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    setup_signal_handlers_worker(os.getpid(), "the worker", say)
    asyncio.run(worker.start(printer=say))


def _require_pool(name: str) -> None:
    with get_client(sync_client=True) as client:
        try:
            pool: WorkPool = client.read_work_pool(name)
        except ObjectNotFound:
            raise PodiumError(
                f"the Prefect server at {client.api_url} knows no pool {name}: run `podium deploy` once"
            ) from None
    if pool.type != POOL_TYPE:
        raise PodiumError(f"the pool {name} is of type {pool.type}, and Podium's are of type {POOL_TYPE}")
