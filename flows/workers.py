"""The side of a run that sends stages to workers and waits: any host that reaches the Prefect server will do.

Consecutive stages for the same queue go together, as one run of the deployment `podium-stages/<pool>`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Crashed

from flows import dvc, on_worker
from flows.api import UNREACHED, patiently
from flows.report import RunReport, StageRecord
from flows.stages import PAUSED_STATE, PUBLISH, RunFailed, is_gate
from tasks import artifacts
from tasks.errors import ParamsError
from tasks.stage_kinds import AUTO, is_device_stage

POLL_S = 2.0
RECORDS_S = 10.0
"""Seconds between looks at what the stages have sent; curves come along each time."""
WORKERS_LOST = 3
"""How often a run of stages is sent again after its worker was lost; more often, the stages kill their workers."""
PENDING_S = 180.0
"""A worker that took a run starts it within seconds; after this it died in between, and nobody would tell."""
UNSEEN_S = 60.0
"""After this long in a queue, the run says that it waits."""
CPU_QUEUE = "cpu/default"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Queue:
    """Where stages are sent: a work pool, and one of its queues."""

    pool: str
    name: str

    @classmethod
    def parse(cls, text: str, parameter: str) -> Queue:
        """A queue stated as `pool/queue`.

        Raises:
            ParamsError: it is stated otherwise.
        """
        pool, _, name = text.partition("/")
        if not pool or not name or "/" in name:
            raise ParamsError(f"{parameter}={text!r}: state pool/queue, for example ipu/pod-a")
        return cls(pool, name)

    def __str__(self) -> str:
        return f"{self.pool}/{self.name}"


def queues_of(runtime: str, cpu_queue: str, device_queue: str | None) -> tuple[Queue, Queue]:
    """The queue of stages without a device and that of the others; the latter is `<runtime>/default` unless stated.

    Raises:
        ParamsError: a queue is misstated, or the device's cannot be known.
    """
    if device_queue is None and runtime == AUTO:
        raise ParamsError("device.runtime=auto does not say whose workers train: state device_queue, such as ipu/pod-a")
    cpu = Queue.parse(cpu_queue, "cpu_queue")
    return cpu, Queue.parse(device_queue or f"{runtime}/default", "device_queue")


def groups(plan: Sequence[str], cpu: Queue, device: Queue) -> Iterator[tuple[Queue, list[str]]]:
    """Consecutive stages that go to the same queue, in the order of the plan."""
    names: list[str] = []
    queue = cpu
    for stage in plan:
        wanted = device if is_device_stage(stage) else cpu
        if names and wanted != queue:
            yield queue, names
            names = []
        queue = wanted
        names.append(stage)
    if names:
        yield queue, names


def require_deployment(queue: Queue) -> None:
    """The server must know the deployment and the queue before anything is sent.

    Raises:
        ParamsError: it does not; says how to make it.
    """
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(_deployment(queue))
            client.read_work_queue_by_name(queue.name, work_pool_name=queue.pool)
        except ObjectNotFound:
            raise ParamsError(
                f"the Prefect server at {client.api_url} knows no queue {queue} with the deployment "
                f"{_deployment(queue)}: run `python -m flows.deploy --queue {queue}` once"
            ) from None


def _deployment(queue: Queue) -> str:
    return f"{on_worker.FLOW}/{queue.pool}"


@dataclass
class Sender:
    """Sends runs of stages to queues and brings back what they say."""

    root: Path
    """The orchestrating checkout; figures of the stages and dvc.lock are written there."""
    parameters: dict[str, Any]
    """Of `run_stages`, without its names and publish."""
    report: RunReport
    say: Say

    def run_plan(self, plan: list[str], cpu: Queue, device: Queue, publish: bool) -> None:
        """Run the stages of `plan` on their queues, then restore here what a person reads.

        Raises:
            RunFailed: see `run`.
        """
        for queue, names in groups(plan, cpu, device):
            self.run(queue, names, publish and any(is_gate(name) for name in names))
        if any(is_gate(stage) for stage in plan):
            self.report.read_results(self.root)
        for name in [stage.name for stage in self.report.stages if stage.name.partition("@")[0] == PUBLISH]:
            task = name.partition("@")[2]
            receipt = (self.root / artifacts.publish_receipt(task)).read_text(encoding="utf-8")
            self.report.enter_receipt(json.loads(receipt), task)
        shown = ("validate", "validate_glue", "validate_glue_rows", "evaluate", "glue_evaluate")
        pages = [stage for stage in plan if stage.partition("@")[0] in shown]
        if dvc.has_remote(self.root) and (said := dvc.pull(pages, self.root, self.say)) is not None:
            self.say(f"the pages of {', '.join(pages)} could not be restored here: {said}")

    def run(self, queue: Queue, names: list[str], publish: bool) -> None:
        """Run consecutive stages on a worker of `queue`, again when a worker is lost or a stage paused.

        Raises:
            RunFailed: a stage failed, the run was cancelled, or workers were lost too often.
        """
        lost, paused = 0, ""
        while True:
            state = self._once(queue, names, publish)
            if state.is_completed() and state.name == PAUSED_STATE:
                if state.message == paused:
                    raise RunFailed(f"{paused}; it paused there before, so it makes no progress: raise its time limit")
                paused = str(state.message)
                self.say(f"{state.message}; sent again to {queue}")
            elif state.is_completed():
                entered = {stage.name for stage in self.report.stages}
                assert entered.issuperset(names), f"no record of {set(names) - entered} came from {queue}"
                return
            elif state.is_crashed() and lost < WORKERS_LOST:
                lost += 1
                self.say(
                    f"the worker of {queue} was lost ({state.message}); sent again, {lost} of {WORKERS_LOST} times"
                )
            elif state.is_crashed():
                raise RunFailed(f"{', '.join(names)}: workers of {queue} were lost {lost + 1} times: {state.message}")
            else:
                raise RunFailed(state.message or f"{', '.join(names)} ended as {state.name} on {queue}")

    def _once(self, queue: Queue, names: list[str], publish: bool) -> State:
        parameters = {**self.parameters, "names": names, "publish": publish}
        title = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
        sent = cast(
            FlowRun,
            patiently(
                lambda: run_deployment(
                    _deployment(queue),
                    parameters=parameters,
                    work_queue_name=queue.name,
                    timeout=0,
                    flow_run_name=title,
                ),
                self.say,
            ),
        )
        try:
            return self._wait(sent.id, queue)
        except BaseException:  # cancelled, interrupted or failed here: the pod must not work on for nobody
            with contextlib.suppress(*UNREACHED), get_client(sync_client=True) as client:
                client.set_flow_run_state(sent.id, Cancelling(message="the run that sent it has ended"))
            raise

    def _wait(self, run: UUID, queue: Queue) -> State:
        """Follow a run of stages to its end; enters its records as they come."""
        entered: set[UUID] = set()
        started_at = looked_at = time.monotonic()
        pending_since: float | None = None
        said_waiting = False
        with get_client(sync_client=True) as client:
            while True:
                state = patiently(lambda: client.read_flow_run(run), self.say).state
                assert state is not None
                if state.is_final():
                    self._take_records(client, run, entered)
                    return state
                now = time.monotonic()
                if now - looked_at > RECORDS_S:
                    self._take_records(client, run, entered)
                    looked_at = now
                pending_since = (pending_since or now) if state.is_pending() else None
                if pending_since is not None and now - pending_since > PENDING_S:
                    lost: State = Crashed(message=f"a worker took it and did not start it in {PENDING_S:.0f} s")
                    client.set_flow_run_state(run, lost, force=True)
                if state.is_scheduled() and not said_waiting and now - started_at > UNSEEN_S:
                    said_waiting = True
                    self.say(f"still waiting in {queue}: its pod is busy, or no worker polls it (prefect work-pool ls)")
                time.sleep(POLL_S)

    def _take_records(self, client: SyncPrefectClient, run: UUID, entered: set[UUID]) -> None:
        wanted = ArtifactFilter(
            flow_run_id=ArtifactFilterFlowRunId(any_=[run]), key=ArtifactFilterKey(any_=[on_worker.RECORD])
        )
        found = patiently(lambda: client.read_artifacts(artifact_filter=wanted, limit=200), self.say)
        for artifact in sorted(found, key=lambda artifact: str(artifact.created)):
            if artifact.id in entered:
                continue
            entered.add(artifact.id)
            sent = json.loads(str(artifact.data))  # Prefect keeps an artifact's data as JSON text
            for name, text in sent["files"].items():
                artifacts.write_text(self.root / _inside(name), text)
            if "record" not in sent:
                continue
            record = StageRecord(**sent["record"])
            self.say(f"{record.name} {record.status} on {record.host} in {record.seconds:.1f} s")
            self.report.enter(record)


def _inside(name: str) -> Path:
    """A file's name as a worker sent it; it must stay in the checkout, in a folder of figures."""
    path = Path(name)
    figures = path.parts[:1] in (("metrics",), ("plots",)) and len(path.parts) == 2
    receipt = path == artifacts.publish_receipt(path.stem.removeprefix("publish-glue-").replace("publish", ""))
    if ".." in path.parts or not (figures or receipt or path == on_worker.LOCK):
        raise RunFailed(f"a worker sent a file named {name!r}; expected metrics, plots, dvc.lock or the receipt")
    return path
