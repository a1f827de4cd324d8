"""Give a Prefect server what runs on workers need: pools, queues, the automation, and the deployments of prefect.yaml.

    podium deploy [--queue ipu/pod-a ...]

May be run again at any time, from any checkout; what is there stays, and the deployments are brought up to date.
The server may be shared: nothing of anybody else is changed without a word, and no run but Podium's is touched.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.objects import StateType, WorkPool
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.checks.server import require_server
from flows.runs.checkout import require_project
from flows.workers.dispatch import Queue
from tasks.plan.stage_kinds import KINDS
from tasks.stage.errors import ParamsError, PodiumError
from tasks.stage.process import Say

FLOWS_POOL = "flows"
"""Its workers only send and wait; a pool of its own, so that a run never waits for the stages that wait for it."""
POOLS = (FLOWS_POOL, *KINDS)
POOL_TYPE = "process"
TEMPLATE: dict[str, Any] = {
    "job_configuration": {"command": "python -m flows.commands.worker_entry"},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
"""The template of Podium's pools, in which runs and deployments have no variables to set. `podium worker` does not read
it, and a worker of Prefect's own is held back by it in part only (docs/security.md)."""
SILENT_FOR = timedelta(seconds=90)
"""Three heartbeats of a worker's run (flows/workers/worker.py). Its host or worker died when they stay away."""
ZOMBIES = "podium-lost-runs"
WATCHED = "podium-watched"
"""The tag that prefect.yaml gives each deployment: its runs carry it, and no others do."""
AGAIN = "podium-sent-again"
"""The tag that prefect.yaml gives the deployments whose runs send stages: a crashed one is run again."""


def make_pools(client: SyncPrefectClient, say: Say) -> None:
    """One process pool per kind, and one for the flows that send, each with Podium's template.

    A pool that is there with Prefect's own template gets it, too; one that somebody gave another stays as it is.

    Raises:
        PodiumError: a pool of that name is there, of another type; nothing was made.
    """
    found = client.read_work_pools(work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=list(POOLS))))
    if others := [f"{pool.name} of type {pool.type}" for pool in found if pool.type != POOL_TYPE]:
        raise PodiumError(
            f"the Prefect server at {client.api_url} has the work pool {', '.join(others)}; Podium needs it of "
            f"type {POOL_TYPE}: delete it if nobody uses it, or name another server in PREFECT_API_URL"
        )
    for pool in found:
        _close(client, pool, say)
    for name in POOLS:
        with contextlib.suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=name, type=POOL_TYPE, base_job_template=TEMPLATE))
            say(f"made the work pool {name}")


def _close(client: SyncPrefectClient, pool: WorkPool, say: Say) -> None:
    """Replace Prefect's own template of a pool by Podium's; a template that somebody set stays."""
    template = pool.base_job_template
    if template == TEMPLATE:
        return
    if template and template != ProcessWorker.get_default_base_job_template():
        say(
            f"the work pool {pool.name} keeps the template that somebody gave it: its runs may set what that lets them "
            "set; workers that `podium worker` starts do not read it"
        )
        return
    client.update_work_pool(pool.name, WorkPoolUpdate(base_job_template=TEMPLATE))
    say(f"the work pool {pool.name} takes no command, environment or folder from runs any more")


def make_queue(client: SyncPrefectClient, queue: Queue, say: Say, asked: bool) -> None:
    """A queue of limit 1: two runs never share its pod.

    Args:
        asked: somebody named this queue, so that it gets this limit even where it was given another before.
    """
    try:
        found = client.read_work_queue_by_name(queue.name, work_pool_name=queue.pool)
    except ObjectNotFound:
        client.create_work_queue(queue.name, concurrency_limit=1, work_pool_name=queue.pool)
        say(f"made the queue {queue}, one run at a time")
        return
    limit = found.concurrency_limit
    if limit == 1:
        return
    if limit is not None and not asked:
        say(f"the queue {queue} keeps its limit of {limit} runs at a time; --queue {queue} makes it one")
        return
    client.update_work_queue(found.id, concurrency_limit=1)
    say(f"the queue {queue} takes one run at a time now, before {'any number' if limit is None else limit}")


def lost_runs(silent_for: timedelta = SILENT_FOR) -> AutomationCore:
    """Runs of Podium's deployments whose heartbeats stay away become Crashed: they are sent again and block no queue.

    Nobody else's run may match: heartbeats of other flows, and of Podium's in a shell, come every 180 s by default. The
    tags of a run are in its heartbeats and in the events of its states, also when its deployment was made anew or is
    gone; names of deployments are not in heartbeats, and ids change.
    """
    final = {
        f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Rejected")
    }
    return AutomationCore(
        name=ZOMBIES,
        description="A run of Podium's deployments without heartbeats lost its worker or host.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{WATCHED}"},
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *final},
            threshold=1,
            within=silent_for,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, name=None, message="no heartbeat: its host or worker was lost", force=False
            )
        ],
    )


def make_automation(client: SyncPrefectClient, automation: AutomationCore, say: Say) -> None:
    """The server has this automation, once; another of its name is replaced."""
    found = client.read_automations_by_name(automation.name)
    for other in found[1:]:  # two hosts made it at the same moment
        client.delete_automation(other.id)
    if not found:
        client.create_automation(automation)
        say(f"made the automation {automation.name}")
    elif AutomationCore.model_validate(found[0].model_dump()) != automation:
        # Only then: an automation that is written anew forgets the runs it was about to find lost.
        client.update_automation(found[0].id, automation)
        say(f"replaced the automation {automation.name}")


def deploy(project: Path) -> None:
    """Bring the deployments of prefect.yaml up to date.

    Raises:
        PodiumError: Prefect refused; the message is its own.
    """
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(
        command, cwd=project, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise PodiumError(f"prefect deploy failed:\n{done.stdout}")


def deploy_everything(project: Path, queues: Sequence[Queue], say: Say) -> None:
    """Make what is missing on the server that PREFECT_API_URL names, and bring the rest up to date.

    Args:
        project: its prefect.yaml has the deployments.
        queues: of pods, each of limit 1; the queue `default` of each device's pool is always looked after.
        say: takes a line for each thing that changes.

    Raises:
        PodiumError: no server is named, it has a pool of another type, a queue is of no pool of Podium's, or Prefect
            refused.
    """
    if elsewhere := [str(queue) for queue in queues if queue.pool not in KINDS]:
        raise ParamsError(
            f"--queue {', '.join(elsewhere)}: no pool of Podium's runs stages; state {'|'.join(KINDS)}/QUEUE"
        )
    require_server()
    require_project(project)
    with get_client(sync_client=True) as client:
        make_pools(client, say)
        for kind in KINDS:
            if kind != "cpu":
                make_queue(client, Queue(kind, "default"), say, asked=Queue(kind, "default") in queues)
        for queue in queues:
            make_queue(client, queue, say, asked=True)
        make_automation(client, lost_runs(), say)
    deploy(project)
    say("the deployments of prefect.yaml are up to date")
