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
from tests.flows.workers.worker_team import a_team, read_states, start_deployment

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


@contextlib.contextmanager
def stranger(team):
    """The process of a script that knows nothing of Podium; a deployment's run lasts as long, until `hold` is gone."""
    folder, hold = team.folder / "stranger", str(team.folder / "hold")
    folder.mkdir()
    (folder / "theirs.py").write_text(THEIRS)
    homes = {"HOME": str(folder), "PREFECT_HOME": str(folder / "prefect"), "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    with contextlib.ExitStack() as stack, (folder / "said.txt").open("a") as output:

        def start(word):
            command = [sys.executable, str(folder / "theirs.py"), word]
            process = start_process(command, {**team.server.environment(), **homes}, output, folder)
            stack.callback(kill_tree, process)
            return process

        by_hand, serving = start(hold), start("serve")

        def start_nightly():
            with contextlib.suppress(ObjectNotFound):
                return start_deployment("theirs/nightly", parameters={"hold": hold}, name="nightly")

        wait_until(start_nightly, "theirs/nightly", alive=serving)
        yield by_hand


def histories():
    """Name of a run, or of its flow in a shell -> the states that it went through since it was taken."""
    names = {}
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(sort=FlowRunSort.START_TIME_ASC):
            name = run.name.rpartition(": ")[2] if run.deployment_id else client.read_flow(run.flow_id).name
            states = [state.name for state in read_states(run.id) if not state.is_scheduled()]
            names.setdefault(name, []).append(states)
    return names


def running():
    """Names of the runs that are running now, or were until someone changed their state."""
    return {name for name, runs in histories().items() if any(states[-1:] == ["Running"] for states in runs)}


@pytest.fixture
def team(tmp_path):
    with a_team(tmp_path) as team, get_client(sync_client=True) as client:
        create_automation(client, lost_run_automation(WINDOW), print)
        team.host("preparing").start_worker("cpu", "default", "cpu")
        team.host("training").start_worker("cpu", "trainer", "cpu")
        yield team


def test_runs_of_others_and_a_plain_run_are_left_alone_and_a_killed_workers_run_is_found_and_sent_again(team):
    sending, _ = team.start_training()
    plain = team.host("plain").start("flows", "run", "--set", "pretrain.seed=21")
    with stranger(team) as theirs:
        wait_until(lambda: "pretrain@phase1" in team.hosts["plain"].ran(), "the plain run's training", alive=plain)
        wait_until(lambda: {"theirs", "nightly"} <= running(), "the runs of someone else", alive=theirs)
        began = time.monotonic()
        team.hosts["training"].lose()
        wait_until(lambda: [*TAKEN, "Crashed"] in histories()["pretrain@phase1"], "the lost run", alive=sending)
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
