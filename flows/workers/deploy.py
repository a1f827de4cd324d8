"""Set up a Prefect server for runs on workers: pools, queues, the automation, and the deployments of prefect.yaml.

    podium deploy [--queue ipu/pod-a ...] [--alarm slack-webhook/team ...]

The command may be repeated at any time, from any checkout: existing objects stay, and deployments are updated. The
server may be shared: every change is reported, and no runs but Podium's are affected.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.checks.server import require_server
from flows.runs.checkout import require_project
from flows.server.stage_tasks import PAUSED_STATE
from flows.workers.dispatch import Queue, read_pools
from flows.workers.stage_flow import FLOW_NAME
from ipu_model.core.files import write_text
from tasks.params.strict_yaml import yaml_text
from tasks.plan.stage_kinds import KINDS
from tasks.stage.errors import InputError, ParamsError, PodiumError
from tasks.stage.process import Say

FLOWS_POOL = "flows"
"""Pool whose workers only dispatch stages and wait. It is separate, so that runs and their stages cannot deadlock."""
POOLS = (FLOWS_POOL, *KINDS)
POOL_TYPE = "process"
TEMPLATE: dict[str, Any] = {
    "job_configuration": {"command": "python -m flows.commands.worker_entry"},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
"""Template of Podium's pools, without variables for runs and deployments. `podium worker` does not read it, and it
restricts Prefect's own workers only in part (docs/security.md)."""
HEARTBEAT_LIMIT = timedelta(seconds=90)
"""Three heartbeats of a worker's run (flows/workers/worker.py); without them its host or worker is lost."""
AUTOMATION = "podium-lost-runs"
WATCH_TAG = "podium-watched"
"""Tag of every deployment in prefect.yaml, and of all its runs."""
RESTART_TAG = "podium-sent-again"
"""Tag of the deployments in prefect.yaml whose runs send stages: crashed ones are scheduled again."""
ALARM = "podium-alarm"
ALARMING = ("Failed", "Crashed", "Rejected", PAUSED_STATE)
"""Names of the states of a run that call someone."""
ADDRESS = "{{ (flow_run | ui_url) or flow_run.id }}"
"""Address of a run's page; its id where the server does not know its own address (PREFECT_UI_URL)."""


def create_pools(client: SyncPrefectClient, say: Say) -> None:
    """Create one process pool per kind, and one for the flows that send stages, each with Podium's template.

    An existing pool with Prefect's default template gets Podium's; a custom template stays.

    Raises:
        PodiumError: a pool of that name has another type; nothing was created.
    """
    pools = read_pools(client, POOLS)
    if others := [f"{pool.name} of type {pool.type}" for pool in pools if pool.type != POOL_TYPE]:
        raise PodiumError(
            f"the Prefect server at {client.api_url} has the work pool {', '.join(others)}; Podium requires type "
            f"{POOL_TYPE}. Delete it if it is unused, or set PREFECT_API_URL to another server"
        )
    theirs = {pool.name: pool.base_job_template for pool in pools}
    for name, template in theirs.items():
        if template in ({}, ProcessWorker.get_default_base_job_template()):
            client.update_work_pool(name, WorkPoolUpdate(base_job_template=TEMPLATE))
            say(f"the work pool {name} no longer takes commands, environments or folders from runs")
        elif template != TEMPLATE:
            say(
                f"the work pool {name} keeps its custom template, which decides what its runs may set; workers started "
                "by `podium worker` do not read it"
            )
    for name in POOLS:
        if name not in theirs:
            with contextlib.suppress(ObjectAlreadyExists):  # another host created it at the same time
                client.create_work_pool(WorkPoolCreate(name=name, type=POOL_TYPE, base_job_template=TEMPLATE))
                say(f"created the work pool {name}")


def create_queue(client: SyncPrefectClient, queue: Queue, say: Say, explicit: bool) -> None:
    """Create a queue with a limit of one run, because two runs must not share its pod.

    A queue that the user named (`explicit`) gets the limit even if it had another one.
    """
    try:
        existing = client.read_work_queue_by_name(queue.name, work_pool_name=queue.pool)
    except ObjectNotFound:
        client.create_work_queue(queue.name, concurrency_limit=1, work_pool_name=queue.pool)
        say(f"created the queue {queue} with a limit of one run")
        return
    limit = existing.concurrency_limit
    if limit is None or (limit != 1 and explicit):
        client.update_work_queue(existing.id, concurrency_limit=1)
        say(f"the queue {queue} now takes one run at a time (before: {'any number' if limit is None else limit})")
    elif limit != 1:
        say(f"the queue {queue} keeps its limit of {limit} runs at a time; pass --queue {queue} to change it to one")


def lost_run_automation(silent_for: timedelta = HEARTBEAT_LIMIT) -> AutomationCore:
    """Return the automation that marks runs of Podium's deployments as Crashed when their heartbeats stop.

    Such runs are scheduled again and block no queue. Other runs must not match: their heartbeats, and those of Podium's
    flows in a shell, come every 180 s by default. The trigger uses tags because heartbeats and state events have them,
    even after a deployment was recreated or deleted; heartbeats have no deployment names, and ids change.
    """
    final = {
        f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Rejected")
    }
    return AutomationCore(
        name=AUTOMATION,
        description="A run of Podium's deployments without heartbeats lost its worker or host.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{WATCH_TAG}"},
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


def alarm_automation(blocks: Sequence[UUID]) -> AutomationCore:
    """Return the automation that notifies through these blocks of every run that is not going on.

    It matches runs of the flow `podium` however they were started; their stages on workers are runs of another flow.
    """
    subject, body = "Podium: {{ flow_run.name }} is {{ flow_run.state.name | lower }}", "{{ flow_run.state.message }}"
    return AutomationCore(
        name=ALARM,
        description="A run of Podium failed, was rejected by its gate, paused, or lost its host.",
        trigger=EventTrigger(
            posture=Posture.Reactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "flow", "prefect.resource.name": "podium"},
            for_each={"prefect.resource.id"},
            expect={f"prefect.flow-run.{state}" for state in ALARMING},
            threshold=1,
        ),
        actions=[
            SendNotification(block_document_id=block, subject=subject, body=f"{body}\n{ADDRESS}") for block in blocks
        ],
    )


def find_block(client: SyncPrefectClient, text: str) -> UUID:
    """Return the id of the block named `type/name`.

    Raises:
        ParamsError: the server has none, or it cannot notify anyone.
    """
    kind, _, name = text.partition("/")
    try:
        document = client.read_block_document_by_name(name, kind)
    except ObjectNotFound:
        raise ParamsError(
            f"--alarm {text}: the Prefect server has no such block. `prefect block ls` lists them, as TYPE/NAME"
        ) from None
    capabilities = document.block_schema.capabilities if document.block_schema is not None else []
    if "notify" not in capabilities:
        raise ParamsError(
            f"--alarm {text}: this block cannot notify: create one such as slack-webhook or sendgrid-email"
        )
    return document.id


def create_automation(client: SyncPrefectClient, automation: AutomationCore, say: Say) -> None:
    """Create an automation, or replace the one of its name; duplicates are deleted."""
    automations = client.read_automations_by_name(automation.name)
    for other in automations[1:]:  # two hosts created it at the same time
        client.delete_automation(other.id)
    if not automations:
        client.create_automation(automation)
        say(f"created the automation {automation.name}")
    elif AutomationCore.model_validate(automations[0].model_dump()) != automation:
        # Only if it differs: an updated automation forgets the runs that it is watching.
        client.update_automation(automations[0].id, automation)
        say(f"replaced the automation {automation.name}")


def update_deployments(client: SyncPrefectClient, project: Path, say: Say) -> None:
    """Update the deployments of prefect.yaml; those that exist keep their schedules, limits and pauses."""
    flows = FlowFilter(name=FlowFilterName(any_=["podium", FLOW_NAME]))
    existing = {deployment.name: deployment for deployment in client.read_deployments(flow_filter=flows)}
    try:
        plan = yaml.safe_load((project / "prefect.yaml").read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InputError(f"{project / 'prefect.yaml'} is not YAML: {error}") from None
    for deployment in plan["deployments"]:
        if (current := existing.get(deployment["name"])) is None:
            continue
        if deployment.pop("schedules", None):
            say(f"the deployment {current.name} keeps its schedules")
        deployment |= {"paused": current.paused, "concurrency_limit": None}
        if (limit := current.global_concurrency_limit) is not None:
            options = current.concurrency_options
            more = {} if options is None else options.model_dump(mode="json", exclude_none=True)
            deployment["concurrency_limit"] = {"limit": limit.limit, **more}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prefect.yaml"
        write_text(file, yaml_text(plan))
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
        done = subprocess.run(
            command, cwd=project, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise PodiumError(f"prefect deploy failed:\n{done.stdout}")


def deploy(project: Path, queues: Sequence[Queue], say: Say, alarms: Sequence[str] = ()) -> None:
    """Create missing objects on the server in PREFECT_API_URL, and update the others.

    Args:
        queues: queues of pods, each limited to one run; the queue `default` of each device pool is always included.
        alarms: blocks that notify of runs that fail, as `type/name`; none: an existing automation stays.

    Raises:
        PodiumError: no server is set, it has a pool of another type, or Prefect failed.
    """
    require_server()
    require_project(project)
    with get_client(sync_client=True) as client:
        blocks = [find_block(client, text) for text in alarms]
        create_pools(client, say)
        for kind in KINDS:
            if kind != "cpu":
                create_queue(client, Queue(kind, "default"), say, explicit=Queue(kind, "default") in queues)
        for queue in queues:
            create_queue(client, queue, say, explicit=True)
        create_automation(client, lost_run_automation(), say)
        if blocks:
            create_automation(client, alarm_automation(blocks), say)
        update_deployments(client, project, say)
    say("the deployments of prefect.yaml are up to date")
