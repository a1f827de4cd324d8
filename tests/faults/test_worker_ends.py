"""What becomes of a run on a worker, by what is killed or asked to end: a real server, a real worker, toy stages."""

import os
import signal

import pytest

from tests.flows.workers.worker_hosts import is_alive, kill_tree, wait_until
from tests.flows.workers.worker_team import Training, a_team
from tests.places import ROOT

pytestmark = pytest.mark.faults
DEAF = 77
"""The seed of a training that does not hear SIGTERM (tests/flows/workers/worker_hosts.py)."""


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    with a_team(tmp_path_factory.mktemp("team")) as team:
        team.host("worker")
        yield team


@pytest.fixture
def worker(team, request):
    """A host with a worker, which gives a stage 20 s to end, not 10 minutes; a parameter in place of END_REPORT_S."""
    host = team.hosts["worker"]
    seconds = getattr(request, "param", 50.0)
    for name, line, other in (
        ("runs/stopping", "STOP_TIMEOUT_S = 600\n", "STOP_TIMEOUT_S = 20\n"),
        ("workers/worker", "END_REPORT_S = 50.0\n", f"END_REPORT_S = {seconds}\n"),
    ):
        text = (ROOT / f"flows/{name}.py").read_text()
        assert line in text
        (host.project / f"flows/{name}.py").write_text(text.replace(line, other))
    host.start_worker("cpu", "default", "cpu", "--limit", "1")
    host.hold.touch()
    yield host
    host.lose()


@pytest.mark.parametrize(("number", "ending"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "exit code 0")])
def test_a_killed_flow_crashes_once_its_stage_has_ended(worker, number, ending):
    run = Training(worker, 1)
    os.kill(run.flow, number)
    run.ends_as("Crashed")
    assert f"its process ended with {ending}" in run.state().message


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
    wait_until(lambda: not [pid for pid in run.processes if is_alive(pid)], "the end of all that was killed")
    assert run.state().is_running()


def test_a_stopped_worker_ends_its_run_and_then_itself(worker):
    run = Training(worker, 5)
    worker.worker.terminate()
    run.ends_as("Crashed")
    assert "its worker was stopped" in run.state().message
    worker.worker.wait(timeout=60)


def test_a_cancelled_run_is_cancelled_once_its_stage_has_ended(worker):
    run = Training(worker, 6)
    run.cancel()
    run.ends_as("Cancelling", "Cancelled")
    again = Training(worker, 7)  # the worker has room for one run at a time, and has it again
    again.cancel()
    again.ends_as("Cancelling", "Cancelled")


@pytest.mark.parametrize("worker", [0.0], indirect=True)
def test_a_stage_that_hears_no_signal_is_killed_and_the_server_is_told_before_it_misses_heartbeats(worker):
    run = Training(worker, DEAF)
    run.cancel()
    run.went_through("Cancelling", "Cancelled")
    assert is_alive(run.stage)
    wait_until(lambda: not is_alive(run.stage), "the stage's end")


def test_a_server_that_is_away_costs_a_run_nothing_and_it_can_be_cancelled_afterwards(team, worker):
    run = Training(worker, 8)
    team.server.stop()
    worker.hold.unlink()
    wait_until(lambda: not is_alive(run.stage), "training's end")
    team.server.start()
    run.went_through("Completed")
    assert "Traceback" not in (worker.folder / "worker.log").read_text()
    worker.hold.touch()
    run = Training(worker, 9)
    team.server.stop()
    team.server.start()
    run.cancel()
    run.ends_as("Cancelling", "Cancelled")
