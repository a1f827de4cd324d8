"""A Prefect server that a team shares: runs of others are left alone, and a killed worker's run is still found."""

import contextlib
import sys
import time
from datetime import timedelta

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from flows.workers.deploy import create_automation, lost_run_automation
from tests.flows.workers.worker_hosts import kill_tree, start_process, wait_until
from tests.flows.workers.worker_team import a_team

pytestmark = pytest.mark.soak

WINDOW = timedelta(seconds=45)
"""One and a half heartbeats of a deployment's run (Prefect takes none shorter than 30 s), in place of three."""
IN_A_SHELL = ["Pending", "Running", "Completed"]
TAKEN = ["Pending", "Submitting", "Running"]  # by a worker, or by the process that serves a deployment


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
            command = [sys.executable, str(self.script), *words]
            self.processes.append(start_process(command, self.environment, said, self.folder))
        return self.processes[-1]

    def run_by_hand(self):
        return self._start(str(self.hold))

    def run_deployment(self):
        """Serve the flow as `theirs/nightly`, and start a run of it that lasts until `hold` is gone."""
        serving = self._start("serve")
        with get_client(sync_client=True) as client:
            deployment = wait_until(lambda: _deployment(client, "theirs/nightly"), "theirs/nightly", alive=serving)
            client.create_flow_run_from_deployment(deployment.id, parameters={"hold": str(self.hold)}, name="nightly")

    def close(self):
        for process in self.processes:
            kill_tree(process)


def _deployment(client, name):
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def histories():
    """Name of a run, or of its flow in a shell -> the states that it went through since it was taken."""
    found = {}
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(sort=FlowRunSort.START_TIME_ASC):
            states = sorted(client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
            name = run.name.rpartition(": ")[2] if run.deployment_id else client.read_flow(run.flow_id).name
            found.setdefault(name, []).append([state.name for state in states if not state.is_scheduled()])
    return found


@pytest.fixture
def team(tmp_path):
    with a_team(tmp_path) as team, get_client(sync_client=True) as client:
        create_automation(client, lost_run_automation(WINDOW), print)
        team.host("preparing").start_worker("cpu", "default", "cpu")
        team.host("training").start_worker("cpu", "trainer", "cpu")
        yield team


def test_runs_of_others_and_a_plain_run_are_left_alone_and_a_killed_workers_run_is_found_and_sent_again(team):
    with contextlib.closing(Stranger(team)) as stranger:
        sending, _ = team.start_training()
        plain = team.host("plain").start("flows", "run", "--set", "pretrain.seed=21")
        theirs = stranger.run_by_hand()
        stranger.run_deployment()
        wait_until(lambda: "pretrain@phase1" in team.hosts["plain"].ran(), "the plain run's training", alive=plain)
        wait_until(lambda: {"theirs", "nightly"} <= running(), "the runs of someone else", alive=theirs)
        began = time.monotonic()
        team.hosts["training"].lose()
        wait_until(
            lambda: [*TAKEN, "Crashed"] in histories()["pretrain@phase1"], "the lost run was found", alive=sending
        )
        team.host("spare").start_worker("cpu", "trainer", "cpu")
        time.sleep(max(0.0, began + 2 * WINDOW.total_seconds() + 20 - time.monotonic()))
        team.sender.hold.unlink()
        assert (theirs.wait(60), plain.wait(240), sending.wait(240)) == (0, 0, 0)
        wait_until(lambda: "nightly" not in running(), "the end of someone else's deployment's run")
    assert histories() == {
        "podium": [IN_A_SHELL, IN_A_SHELL],  # the one that sends, and the plain one
        "theirs": [IN_A_SHELL],
        "nightly": [[*TAKEN, "Completed"]],
        "corpus .. validate@corpus": [[*TAKEN, "Completed"]],
        "pretrain@phase1": [[*TAKEN, "Crashed"], [*TAKEN, "Completed"]],
        "evaluate@squad .. gate@squad": [[*TAKEN, "Completed"]],
    }
    assert "sent again (1 of 3)" in team.sender.said()


def running():
    """Names of the runs that are running now, or were until someone changed their state."""
    return {name for name, runs in histories().items() if any(states[-1:] == ["Running"] for states in runs)}
