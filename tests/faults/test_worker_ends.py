"""What becomes of a run on a worker, by what is killed or asked to end: a real server, a real worker, toy stages.

In every case the run has an end, said once nothing of it is at work any more, and by whoever is left to say it.
"""

import os
import signal

import pytest

from tests.flows.worker_hosts import is_alive, kill_tree, wait_until
from tests.flows.worker_team import Training, a_team

pytestmark = pytest.mark.faults
DEAF = 77
"""The seed of a training that does not hear SIGTERM (tests/flows/worker_hosts.py)."""


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    with a_team(tmp_path_factory.mktemp("team")) as team:
        team.host("worker")
        yield team


@pytest.fixture
def worker(team):
    """A host with a worker, which gives a stage 3 s to end in place of 10 minutes."""
    host = team.hosts["worker"]
    stopping = host.project / "flows" / "stopping.py"
    stopping.write_text(stopping.read_text().replace("PATIENCE_S = 600", "PATIENCE_S = 3"))
    host.start_worker("cpu", "default", "cpu", "--limit", "1")
    host.hold.touch()
    yield host
    host.lose()


@pytest.mark.parametrize("seed", [1, DEAF])
def test_a_killed_flow_crashes_once_its_stage_has_ended(worker, seed):
    run = Training(worker, seed)
    os.kill(run.flow, signal.SIGKILL)
    run.ends_as("Crashed")
    assert "its process ended with SIGKILL" in run.state().message


def test_a_flow_that_is_killed_with_its_stage_crashes(worker):
    run = Training(worker, 2)
    for pid in run.processes:
        os.kill(pid, signal.SIGSTOP)
    for pid in run.processes:
        os.kill(pid, signal.SIGKILL)
    run.ends_as("Crashed")


def test_a_killed_worker_takes_its_run_along_which_says_so_itself(worker):
    run = Training(worker, 3)
    worker.worker.kill()
    run.went_through("Crashed")
    wait_until(lambda: not is_alive(run.stage), "the stage's end")


def test_a_lost_host_leaves_a_run_that_only_its_heartbeats_can_tell_of(worker):
    run = Training(worker, 4)
    kill_tree(worker.worker)
    assert not [pid for pid in run.processes if is_alive(pid)]
    assert run.state().is_running()


def test_a_stopped_worker_ends_its_run_and_then_itself(worker):
    run = Training(worker, 5)
    worker.worker.terminate()
    run.ends_as("Crashed")
    assert "its worker was stopped" in run.state().message
    worker.worker.wait(timeout=60)


@pytest.mark.parametrize("seed", [6, DEAF])
def test_a_cancelled_run_is_cancelled_once_its_stage_has_ended(worker, seed):
    run = Training(worker, seed)
    run.cancel()
    run.ends_as("Cancelling", "Cancelled")
    again = Training(worker, 7)  # the worker has room for one run at a time, and has it again
    again.cancel()
    again.ends_as("Cancelling", "Cancelled")


def test_a_server_that_is_away_costs_a_run_nothing_and_it_can_be_cancelled_afterwards(team, worker):
    run = Training(worker, 8)
    team.server.stop()
    worker.hold.unlink()
    wait_until(lambda: not is_alive(run.stage), "training's end")
    team.server.start()
    run.went_through("Completed")
    worker.hold.touch()
    run = Training(worker, 9)
    team.server.stop()
    team.server.start()
    run.cancel()
    run.ends_as("Cancelling", "Cancelled")
