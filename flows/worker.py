"""A worker that runs Podium's own two flows from its own checkout, whatever the Prefect server tells it to start.

Prefect's process worker takes command, environment and folder from the server (`job_variables`, the pool's template),
follows the pull steps of the deployment, and does so again in its own process when a run crashes or is cancelled, to
look for hooks: whoever reaches the server runs commands there. This one takes nothing but the run's id.
"""

from __future__ import annotations

import abc
import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import WorkPool
from prefect.exceptions import ObjectNotFound
from prefect.runner._flow_run_executor import FlowRunExecutorContext
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.utilities.processutils import command_to_string, setup_signal_handlers_worker
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

from flows.deploy import CHECKOUT, POOL_TYPE, POOLS, TEMPLATE
from flows.preflight.server import require_server
from flows.sent_runs import checked_name
from tasks.project.errors import ParamsError, PodiumError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import State

ENTRY = "flows.worker_entry"


class OwnJob(ProcessJobConfiguration):
    """Nothing of it comes from the server."""

    @classmethod
    async def from_template_and_values(
        cls, base_job_template: dict[str, Any], values: dict[str, Any], client: Any = None
    ) -> OwnJob:
        """The same for every run: the variables of pool, deployment and run are not read, nor the blocks they name."""
        return cls()


class NoHooks:
    """Podium's flows have no hooks; those of a deployment would be code of a stranger."""

    async def run_cancellation_hooks(self, flow_run: FlowRun, state: State) -> None:
        """Nothing."""

    async def run_crashed_hooks(self, flow_run: FlowRun, state: State) -> None:
        """Nothing."""


class OwnWorker(ProcessWorker, abc.ABC):  # ABC: Prefect does not register it in place of its own type `process`
    """See the module."""

    type = POOL_TYPE
    job_configuration = OwnJob
    project: Path

    @classmethod
    def get_default_base_job_template(cls) -> dict[str, Any]:
        """The template for a pool that has none yet."""
        return TEMPLATE

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        """Start this checkout's flow for a run, and wait for its end; Prefect's own, without what it loads."""
        async with FlowRunExecutorContext() as context:
            command = command_to_string([sys.executable, "-m", ENTRY])
            env, channel = {**configuration.env, CHECKOUT: str(self.project)}, context.control_channel
            starter = EngineCommandStarter(command=command, cwd=self.project, env=env, control_channel=channel)
            executor = context.create_executor(flow_run, starter, propose_submitting=False, hook_runner=NoHooks())
            async with anyio.create_task_group() as group:
                ended: list[Any] = []

                async def execute(*, task_status: anyio.abc.TaskStatus[Any]) -> None:
                    ended.append(await executor.submit(task_status=task_status))

                handle = await group.start(execute)
                if task_status is not None:
                    task_status.started(handle.pid)
        if not ended or ended[0] is None or ended[0].status_code is None:
            raise RuntimeError("the process of the run could not be started")
        return ProcessWorkerResult(status_code=ended[0].status_code, identifier=str(handle.pid))


def work(
    project: Path, pool: str, queues: list[str], name: str | None, limit: int | None, say: Callable[..., None]
) -> None:
    """Take runs of a pool until a signal ends the worker.

    Args:
        project: its flows are run, and its stages.
        pool: one of Podium's.
        queues: of the pool; empty: all.
        name: of this worker; None: Prefect gives it one.
        limit: runs at a time.
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
    worker = OwnWorker(work_pool_name=pool, work_queues=queues, name=name, limit=limit, create_pool_if_not_found=False)
    worker.project = project.resolve()
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
