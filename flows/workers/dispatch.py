"""Dispatch of stages to workers, from any host that can reach the Prefect server.

Consecutive stages for the same queue form one run of the deployment `podium-stages/<pool>`. It is polled until it has
ended, and sent again if its worker was lost.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, WorkPool, WorkPoolStatus
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, TerminationSignal
from prefect.states import Cancelled, Cancelling

from flows import dvc
from flows.dvc import releases
from flows.dvc.session import restore_outputs
from flows.runs.report import RunReport
from flows.runs.stage_plan import publish_step
from flows.runs.stopping import RunFailed, RunStopped
from flows.server.api import SERVER_ERRORS, is_cancelled, retry_call
from flows.server.stage_tasks import PAUSED_STATE
from flows.workers import reports, stage_flow
from ipu_model.core.files import read_json
from tasks.plan.plan_file import Plan, read_plan
from tasks.plan.stage_kinds import AUTO, KINDS
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError
from tasks.stage.process import Say

REPORT_POLL_S = 10.0
"""Seconds between two fetches of stage reports, which include curves."""
MAX_LOST_WORKERS = 3
"""Maximum retries of a run whose worker was lost; after that its stages are assumed to kill their workers."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Name of a pool or a queue."""
WAIT_NOTICE_S = 60.0
"""Seconds in a queue after which the run reports that it is waiting."""
POLL_S = 2.0


def check_name(text: str, parameter: str) -> str:
    """Return the name of a pool or queue, which is also part of URLs; refuse an invalid one."""
    if not NAME.fullmatch(text):
        raise ParamsError(f"{parameter}: {text!r} is not a name of a pool or queue; use letters, digits, '.', '_', '-'")
    return text


@dataclass(frozen=True)
class Queue:
    """Queue of a work pool."""

    pool: str
    name: str

    @classmethod
    def parse(cls, text: str, parameter: str) -> Queue:
        """Return the queue named `pool/queue`; refuse text of another form, and other pools than those of stages."""
        pool, _, name = text.partition("/")
        if not pool or not name or "/" in name:
            raise ParamsError(f"{parameter}={text!r}: must be pool/queue, for example ipu/pod-a")
        if pool not in KINDS:
            raise ParamsError(f"{parameter}={text!r}: not in a pool that runs stages; pass {'|'.join(KINDS)}/QUEUE")
        return cls(check_name(pool, parameter), check_name(name, parameter))

    def __str__(self) -> str:
        return f"{self.pool}/{self.name}"

    @property
    def deployment(self) -> str:
        """Name of the deployment that runs its stages."""
        return f"{stage_flow.FLOW_NAME}/{self.pool}"


class RemoteRun:
    """Run of consecutive stages on a worker of a queue; sent by the constructor."""

    def __init__(
        self, dispatcher: Dispatcher, client: SyncPrefectClient, queue: Queue, names: Sequence[str], publish: bool
    ) -> None:
        self._dispatcher, self._client, self._queue = dispatcher, client, queue
        self._names, self._publish = list(names), publish
        self._sent, self._lost, self._paused = 0, 0, ""
        self._send()

    def _send(self) -> None:
        dispatcher, names = self._dispatcher, self._names
        parameters = {**dispatcher.parameters, "names": names, "publish": self._publish}
        stages = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
        run, kind = dispatcher.report.name, self._queue.pool
        title = f"{run} on {kind}: {stages}"
        send = partial(
            run_deployment,
            self._queue.deployment,
            parameters=parameters,
            work_queue_name=self._queue.name,
            timeout=0,
            flow_run_name=title,
            tags=[f"run:{run}", f"kind:{kind}"],
        )
        while True:
            self._sent += 1
            # With this key a flow that is restarted after the loss of its worker finds the runs that it sent before.
            key = f"{dispatcher.run_id} {' '.join(names)} {self._sent}"
            sent = cast(FlowRun, retry_call(partial(send, idempotency_key=key), dispatcher.say))
            if sent.state is None or not sent.state.is_final() or _is_complete(sent.state):
                break
        self._run = sent.id
        self._entered: set[UUID] = set()
        self._sent_at = self._looked_at = time.monotonic()
        self._said_waiting = False

    def poll(self) -> bool:
        """Check the state of the run once and react to it; return whether all its stages are up to date.

        Raises:
            RunFailed: a stage failed, or workers were lost too often.
            RunStopped: the run was cancelled.
        """
        say = self._dispatcher.say
        try:
            state = retry_call(lambda: self._client.read_flow_run(self._run), say).state
        except ObjectNotFound:
            raise RunFailed(f"the Prefect server lost the run sent to {self._queue}: was its database reset?") from None
        assert state is not None
        if not state.is_final():
            now = time.monotonic()
            if now - self._looked_at > REPORT_POLL_S:
                self._fetch_reports()
                if state.is_scheduled():
                    self._require_queue()
                self._looked_at = now
            if state.is_scheduled() and not self._said_waiting and now - self._sent_at > WAIT_NOTICE_S:
                self._said_waiting = True
                say(f"still waiting in {self._queue}: its pod is busy, or it has no worker (prefect work-pool ls)")
            return False
        self._fetch_reports()
        if _is_complete(state):
            if missing := set(self._names) - {stage.name for stage in self._dispatcher.report.stages}:
                raise RunFailed(
                    f"{self._queue} reports that {', '.join(sorted(missing))} succeeded, but no record arrived. Start "
                    "the run again; if this repeats, check who else writes to this Prefect server"
                )
            return True
        self._require_retriable(state)
        self._send()
        return False

    def cancel(self) -> None:
        """Cancel the run, unless it has ended."""
        with contextlib.suppress(*SERVER_ERRORS):
            state = self._client.read_flow_run(self._run).state
            if state is None or not state.is_final():
                # No worker would end a run that none has taken.
                ending = Cancelled if state is not None and state.is_scheduled() else Cancelling
                self._client.set_flow_run_state(self._run, ending(message="the run that sent it has ended"))

    def _require_queue(self) -> None:
        try:
            retry_call(lambda: require_deployment(self._queue), self._dispatcher.say)
        except ParamsError as error:
            raise RunFailed(f"{error}, then start the run again") from None

    def _require_retriable(self, state: State) -> None:
        """Report why the run is sent again; raise if another attempt would not help."""
        say, queue = self._dispatcher.say, self._queue
        if state.is_completed():  # paused
            if state.message == self._paused:
                raise RunFailed(
                    f"{self._paused}; it paused at the same point before and makes no progress. Raise its time limit"
                )
            self._paused = str(state.message)
            say(f"{state.message}; sent again to {queue}")
        elif state.is_crashed() and self._lost < MAX_LOST_WORKERS:
            self._lost += 1
            say(f"the worker of {queue} was lost ({state.message}); sent again ({self._lost} of {MAX_LOST_WORKERS})")
        elif state.is_crashed():
            stages = ", ".join(self._names)
            raise RunFailed(f"{stages}: workers of {queue} were lost {self._lost + 1} times: {state.message}")
        elif state.is_cancelled():
            raise RunStopped(" and stage ".join(self._names))
        else:
            raise RunFailed(state.message or f"{', '.join(self._names)} ended as {state.name} on {queue}")

    def _fetch_reports(self) -> None:
        wanted = ArtifactFilter(
            flow_run_id=ArtifactFilterFlowRunId(any_=[self._run]), key=ArtifactFilterKey(any_=[stage_flow.REPORT_KEY])
        )
        batch = retry_call(lambda: self._client.read_artifacts(artifact_filter=wanted, limit=200), self._dispatcher.say)
        for artifact in sorted(batch, key=lambda artifact: str(artifact.created)):
            if artifact.id in self._entered:
                continue
            self._entered.add(artifact.id)
            root = self._dispatcher.root
            # Prefect stores an artifact's data as JSON text.
            record, files = reports.parse_report(str(artifact.data), self._names, root)
            reports.write_files(files, root)
            if record is not None:
                self._dispatcher.say(f"{record.name} {record.status} on {record.host} in {record.seconds:.1f} s")
                self._dispatcher.report.add_stage(record)


def _is_complete(state: State) -> bool:
    """Return whether all stages of a run are up to date; a paused run has the state Completed as well."""
    return state.is_completed() and state.name != PAUSED_STATE


def resolve_queues(runtime: str, cpu_queue: str, device_queue: str | None) -> tuple[Queue, Queue]:
    """Return the queues of CPU stages and of device stages.

    The latter is by default `<runtime>/default`; with runtime auto, that of the only pool of accelerators that has
    workers, or cpu/default if none has.

    Raises:
        ParamsError: a queue is invalid, or the device queue cannot be derived.
    """
    if device_queue is None:
        device_queue = f"{find_device_pool() if runtime == AUTO else runtime}/default"
    return Queue.parse(cpu_queue, "cpu_queue"), Queue.parse(device_queue, "device_queue")


def read_pools(client: SyncPrefectClient, names: Sequence[str]) -> list[WorkPool]:
    """Return the work pools of these names that the server has."""
    return client.read_work_pools(work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=list(names))))


def find_device_pool() -> str:
    """Return the pool for device stages with runtime auto, from the pools that have workers now.

    Raises:
        ParamsError: no pool has one, or several pools of accelerators have.
    """
    with get_client(sync_client=True) as client:
        online = sorted(pool.name for pool in read_pools(client, KINDS) if pool.status == WorkPoolStatus.READY)
    pools = [name for name in online if name != "cpu"] or online
    if len(pools) != 1:
        which = f"the pools {' and '.join(pools)} have workers" if pools else "no pool has workers"
        raise ParamsError(f"device.runtime=auto: {which}; set device_queue, for example {(*pools, 'cpu')[0]}/default")
    return pools[0]


def group_by_queue(plan: Sequence[str], known: Plan, cpu: Queue, device: Queue) -> Iterator[tuple[Queue, list[str]]]:
    """Yield groups of consecutive stages for the same queue, in the order of the plan."""
    for queue, names in itertools.groupby(plan, lambda stage: device if known[stage].uses_device else cpu):
        yield queue, list(names)


def require_deployment(queue: Queue) -> None:
    """Require that the server has the queue and its deployment.

    Raises:
        ParamsError: it does not; names the command that creates them.
    """
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(queue.deployment)
            client.read_work_queue_by_name(queue.name, work_pool_name=queue.pool)
        except ObjectNotFound:
            raise ParamsError(
                f"the Prefect server at {client.api_url} has no queue {queue} with the deployment "
                f"{queue.deployment}. Run `podium deploy --queue {queue}` once"
            ) from None


@dataclass
class Dispatcher:
    """Dispatcher of stage runs to queues, and receiver of their reports."""

    root: Path
    """Orchestrating checkout, which receives figures of the stages and dvc.lock."""
    parameters: dict[str, Any]
    """Arguments of `run_stages`, without `names` and `publish`."""
    report: RunReport
    say: Say
    run_id: str | None
    """Id of the sending flow run."""

    def run_plan(self, plan: list[str], cpu: Queue, device: Queue, publish: bool) -> None:
        """Run the stages of `plan` on their queues, then restore the pages in this checkout.

        Raises:
            RunFailed: see `run`.
        """
        known = read_plan(self.root)
        self.parameters["released"] = releases.select_releases(plan, self.root)
        gates = [stage for stage in plan if known[stage].is_gate]
        for queue, names in group_by_queue(plan, known, cpu, device):
            self.run(queue, names, publish and not set(gates).isdisjoint(names))
        self.report.read_results(self.root)
        entered = {stage.name for stage in self.report.stages}
        for gate in (known[name] for name in gates if publish_step(known[name]) in entered):
            receipt = read_json(self.root / artifacts.receipt_file(gate.item))
            self.report.add_receipt(receipt, gate.name)
        pages = [stage for stage in plan if "page" in known[stage].meta]
        if dvc.has_remote(self.root) and (reason := restore_outputs(pages, self.root, self.say)) is not None:
            self.say(f"the pages of {', '.join(pages)} could not be restored here: {reason}")

    def run(self, queue: Queue, names: Sequence[str], publish: bool = False) -> None:
        """Send a run of consecutive stages to `queue`; send it again if it lost its worker or paused.

        Raises:
            RunFailed, RunStopped: see `RemoteRun.poll`.
            TerminationSignal: this process was terminated on a worker. Stages continue unless a user cancelled this
                run, because the run of a lost or stopped worker is scheduled again.
        """
        with get_client(sync_client=True) as client:
            remote = RemoteRun(self, client, queue, names, publish)
            try:
                while not remote.poll():
                    time.sleep(POLL_S)
            except BaseException as error:  # cancelled, interrupted or failed: pods must not compute unused results
                if not isinstance(error, TerminationSignal) or is_cancelled(self.run_id):
                    remote.cancel()
                raise
