"""Give a Prefect server what runs on workers need: pools, queues, the automation, and the deployments of prefect.yaml.

    python -m flows.deploy [--queue ipu/pod-a ...]

May be run again at any time, from any checkout; what is there stays, and the deployments are brought up to date.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from flows.checkout import require_project
from flows.sent_runs import Queue
from tasks.common.errors import PodiumError, run_main
from tasks.common.stage_kinds import KINDS

FLOWS_POOL = "flows"
"""Its workers only send and wait; a pool of its own, so that a run never waits for the stages that wait for it."""
CHECKOUT = "PODIUM_CHECKOUT"
SILENT_FOR = timedelta(seconds=90)
"""Three heartbeats of a flow run (prefect.yaml). Its host or worker died when they stay away."""
ZOMBIES = "podium-lost-runs"


def make_pools(client: SyncPrefectClient) -> None:
    """One process pool per kind, and one for the flows that send; those that exist stay as they are."""
    for name in (FLOWS_POOL, *KINDS):
        try:
            client.create_work_pool(WorkPoolCreate(name=name, type="process"))
        except ObjectAlreadyExists:
            continue
        print(f"made the work pool {name}")


def make_queue(client: SyncPrefectClient, queue: Queue) -> None:
    """A queue of limit 1: two runs never share its pod. An existing queue gets that limit, too."""
    try:
        found = client.read_work_queue_by_name(queue.name, work_pool_name=queue.pool)
    except ObjectNotFound:
        client.create_work_queue(queue.name, concurrency_limit=1, work_pool_name=queue.pool)
        print(f"made the queue {queue}, one run at a time")
        return
    if found.concurrency_limit != 1:
        client.update_work_queue(found.id, concurrency_limit=1)
        print(f"the queue {queue} takes one run at a time now")


def make_automation(client: SyncPrefectClient) -> None:
    """Runs whose heartbeats stay away become Crashed, so that they are sent again and block no queue."""
    final = {
        f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Rejected")
    }
    automation = AutomationCore(
        name=ZOMBIES,
        description="A run without heartbeats lost its worker or host.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *final},
            threshold=1,
            within=SILENT_FOR,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, name=None, message="no heartbeat: its host or worker was lost", force=False
            )
        ],
    )
    found = client.read_automations_by_name(ZOMBIES)
    if found:
        client.update_automation(found[0].id, automation)
    else:
        client.create_automation(automation)
        print(f"made the automation {ZOMBIES}")


def deploy(project: Path) -> None:
    """Bring the deployments of prefect.yaml up to date.

    Raises:
        PodiumError: Prefect refused; the message is its own.
    """
    # A checkout of this machine must not get into the deployments: each worker names its own.
    environment = {name: value for name, value in os.environ.items() if name != CHECKOUT}
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=project, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise PodiumError(f"prefect deploy failed:\n{done.stdout}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make pools, queues, automation and deployments; run it again freely.")
    parser.add_argument("--queue", action="append", default=[], metavar="POOL/QUEUE", help="also a queue for this pod")
    arguments = parser.parse_args()
    pods = [Queue(kind, "default") for kind in KINDS if kind != "cpu"]
    pods += [Queue.parse(text, "--queue") for text in arguments.queue]
    if not os.environ.get("PREFECT_API_URL"):
        raise PodiumError("PREFECT_API_URL is not set: name the server, for example http://127.0.0.1:4200/api")
    require_project(Path.cwd())
    with get_client(sync_client=True) as client:
        make_pools(client)
        for queue in pods:
            make_queue(client, queue)
        make_automation(client)
    deploy(Path.cwd())
    print("the deployments of prefect.yaml are up to date")


if __name__ == "__main__":
    run_main(main)
