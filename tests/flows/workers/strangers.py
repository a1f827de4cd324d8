"""Someone else's flow on the server that a team shares, and what the server remembers of runs."""

import subprocess
import sys

from prefect.client.orchestration import get_client
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.server.events.schemas.automations import Automation
from prefect.server.events.schemas.events import EventPage

from flows.workers.deploy import AUTOMATION
from tests.flows.workers.worker_hosts import kill_tree, wait_until

THEIRS = """
import sys, time
from pathlib import Path
from prefect import flow

@flow(name="theirs")
def theirs(hold: str):
    while Path(hold).exists():
        time.sleep(0.1)

if __name__ == "__main__":
    if sys.argv[1] == "serve":
        theirs.serve(name="nightly", pause_on_shutdown=False)
    else:
        theirs(sys.argv[1])
"""


class Stranger:
    """Someone who shares the server and knows nothing of Podium: a script, and a deployment that it serves."""

    def __init__(self, team):
        self.folder, self.hold = team.folder / "stranger", team.folder / "hold"
        self.folder.mkdir()
        self.script = self.folder / "theirs.py"
        self.script.write_text(THEIRS)
        self.environment = {
            **team.server.environment(),
            "HOME": str(self.folder),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        }
        self.processes = []

    def _start(self, *words):
        with (self.folder / "said.txt").open("a") as said:
            process = subprocess.Popen(
                [sys.executable, str(self.script), *words],
                cwd=self.folder,
                env=self.environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def run_by_hand(self):
        """Start the flow from a shell; it lasts until `hold` is gone."""
        return self._start(str(self.hold))

    def run_deployment(self):
        """Serve the flow as `theirs/nightly`, and start a run of it that lasts until `hold` is gone."""
        serving = self._start("serve")
        with get_client(sync_client=True) as client:
            deployment = wait_until(lambda: _deployment(client, "theirs/nightly"), "theirs/nightly", alive=serving)
            client.create_flow_run_from_deployment(deployment.id, parameters={"hold": str(self.hold)}, name="nightly")

    def close(self):
        """End all processes."""
        for process in self.processes:
            kill_tree(process)


def _deployment(client, name):
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def histories():
    """The states that each run went through since a worker or a shell took it, the oldest run first.

    Under the run's name, or its flow's where it was started in a shell.
    """
    found = {}
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(sort=FlowRunSort.START_TIME_ASC):
            states = sorted(client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
            name = run.name.rpartition(": ")[2] if run.deployment_id else client.read_flow(run.flow_id).name
            found.setdefault(name, []).append([state.name for state in states if not state.is_scheduled()])
    return found


def events(kind):
    """All events of a kind that the server has kept."""
    wanted = {"filter": {"event": {"name": [f"prefect.flow-run.{kind}"]}}, "limit": 50}
    with get_client(sync_client=True) as client:
        page = EventPage.model_validate(client.request("POST", "/events/filter", json=wanted).json())
    assert page.next_page is None
    return page.events


def automation():
    """The automation as the server itself reads it; there is one."""
    with get_client(sync_client=True) as client:
        (found,) = client.read_automations_by_name(AUTOMATION)
        return Automation.model_validate(client.request("GET", f"/automations/{found.id}").json())
