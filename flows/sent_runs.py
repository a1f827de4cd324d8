"""A run of stages that was sent to a queue: looked after until it has ended, sent again when its worker was lost."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.states import Cancelling, Crashed

from flows import on_worker, received
from flows.api import UNREACHED, patiently
from flows.report import RunReport
from flows.stages import PAUSED_STATE, RunFailed, RunStopped
from tasks.project.errors import ParamsError
from tasks.project.plan_file import read_plan

RECORDS_S = 10.0
"""Seconds between looks at what the stages have sent; curves come along each time."""
WORKERS_LOST = 3
"""How often a run of stages is sent again after its worker was lost; more often, the stages kill their workers."""
PENDING_S = 180.0
"""A worker that took a run starts it within seconds; after this it died in between, and nobody would tell."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Of a pool, or of a queue."""
UNSEEN_S = 60.0
"""After this long in a queue, the run says that it waits."""

Say = Callable[[str], None]


def checked_name(text: str, parameter: str) -> str:
    """Return the name of a pool or queue, which is also a part of addresses.

    Raises:
        ParamsError: it cannot be one.
    """
    if not NAME.fullmatch(text):
        raise ParamsError(f"{parameter}: {text!r} is not a name of a pool or queue; use letters, digits, '.', '_', '-'")
    return text


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
        return cls(checked_name(pool, parameter), checked_name(name, parameter))

    def __str__(self) -> str:
        return f"{self.pool}/{self.name}"


def deployment_of(queue: Queue) -> str:
    """The deployment that runs stages of a queue."""
    return f"{on_worker.FLOW}/{queue.pool}"


@dataclass
class Dispatch:
    """What the runs that one flow sends have in common."""

    root: Path
    """The orchestrating checkout; figures of the stages and dvc.lock are written there."""
    parameters: dict[str, Any]
    """Arguments of `run_stages`, without `names` and `publish`."""
    report: RunReport
    say: Say


class SentRun:
    """Consecutive stages on their way to a worker of a queue; sent when made.

    Args:
        publish: after the gate, if it accepts.
    """

    def __init__(
        self, dispatch: Dispatch, client: SyncPrefectClient, queue: Queue, names: Sequence[str], publish: bool
    ) -> None:
        self._dispatch, self._client, self._queue = dispatch, client, queue
        self._names, self._publish = list(names), publish
        self._lost, self._paused = 0, ""
        self._send()

    def _send(self) -> None:
        names = self._names
        parameters = {**self._dispatch.parameters, "names": names, "publish": self._publish}
        title = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
        to, queue, say = deployment_of(self._queue), self._queue.name, self._dispatch.say
        sent = patiently(
            lambda: run_deployment(to, parameters=parameters, work_queue_name=queue, timeout=0, flow_run_name=title),
            say,
        )
        self._run = cast(FlowRun, sent).id
        self._entered: set[UUID] = set()
        self._sent_at = self._looked_at = time.monotonic()
        self._pending_since: float | None = None
        self._said_waiting = False

    def look(self) -> bool:
        """Look at the run once, and do what its state asks for; whether all its stages are up to date.

        Raises:
            RunFailed: a stage failed, or workers were lost too often.
            RunStopped: the run was cancelled.
        """
        state = patiently(lambda: self._client.read_flow_run(self._run), self._dispatch.say).state
        assert state is not None
        if not state.is_final():
            self._watch(state)
            return False
        self._take_records()
        if state.is_completed() and state.name != PAUSED_STATE:
            entered = {stage.name for stage in self._dispatch.report.stages}
            missing = set(self._names) - entered
            if missing:
                raise RunFailed(
                    f"{self._queue} says that {', '.join(sorted(missing))} ended well, and no record of that came: "
                    "start the run again; if it happens again, look who else writes to this Prefect server"
                )
            return True
        self._require_hope(state)
        self._send()
        return False

    def cancel(self) -> None:
        """Tell the worker that nobody waits for it any more; of a run that has ended this changes nothing."""
        with contextlib.suppress(*UNREACHED):
            state = self._client.read_flow_run(self._run).state
            if state is None or not state.is_final():
                self._client.set_flow_run_state(self._run, Cancelling(message="the run that sent it has ended"))

    def _require_hope(self, state: State) -> None:
        """Say why the run is sent again; raise where that would not help."""
        say, queue = self._dispatch.say, self._queue
        if state.is_completed():  # paused
            if state.message == self._paused:
                raise RunFailed(
                    f"{self._paused}; it paused there before, so it makes no progress: raise its time limit"
                )
            self._paused = str(state.message)
            say(f"{state.message}; sent again to {queue}")
        elif state.is_crashed() and self._lost < WORKERS_LOST:
            self._lost += 1
            say(f"the worker of {queue} was lost ({state.message}); sent again, {self._lost} of {WORKERS_LOST} times")
        elif state.is_crashed():
            stages = ", ".join(self._names)
            raise RunFailed(f"{stages}: workers of {queue} were lost {self._lost + 1} times: {state.message}")
        elif state.is_cancelled():
            raise RunStopped(" and stage ".join(self._names))
        else:
            raise RunFailed(state.message or f"{', '.join(self._names)} ended as {state.name} on {queue}")

    def _watch(self, state: State) -> None:
        """Take what the stages have sent from time to time; notice a worker that died before it began."""
        now = time.monotonic()
        if now - self._looked_at > RECORDS_S:
            self._take_records()
            self._looked_at = now
        self._pending_since = (self._pending_since or now) if state.is_pending() else None
        if self._pending_since is not None and now - self._pending_since > PENDING_S:
            lost: State = Crashed(message=f"a worker took it and did not start it in {PENDING_S:.0f} s")
            self._client.set_flow_run_state(self._run, lost, force=True)
        if state.is_scheduled() and not self._said_waiting and now - self._sent_at > UNSEEN_S:
            self._said_waiting = True
            self._dispatch.say(
                f"still waiting in {self._queue}: its pod is busy, or no worker polls it (prefect work-pool ls)"
            )

    def _take_records(self) -> None:
        wanted = ArtifactFilter(
            flow_run_id=ArtifactFilterFlowRunId(any_=[self._run]), key=ArtifactFilterKey(any_=[on_worker.RECORD])
        )
        found = patiently(lambda: self._client.read_artifacts(artifact_filter=wanted, limit=200), self._dispatch.say)
        for artifact in sorted(found, key=lambda artifact: str(artifact.created)):
            if artifact.id in self._entered:
                continue
            self._entered.add(artifact.id)
            root = self._dispatch.root
            plan = list(read_plan(root))
            # Prefect keeps an artifact's data as JSON text.
            sent = received.read(str(artifact.data), self._names, plan, root)
            received.write(sent, root)
            if sent.record is not None:
                record = sent.record
                self._dispatch.say(f"{record.name} {record.status} on {record.host} in {record.seconds:.1f} s")
                self._dispatch.report.enter(record)
