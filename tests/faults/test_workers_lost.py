"""Runs on workers when something is lost: a worker, a whole host, the server; and when a person cancels."""

import pytest

from ipu_model.core.files import read_json
from tests.flows.workers.worker_hosts import is_alive, wait_until
from tests.flows.workers.worker_team import a_team

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    with a_team(tmp_path_factory.mktemp("team")) as team:
        team.host("preparing").start_worker("cpu", "default", "cpu")
        team.host("training").start_worker("cpu", "trainer", "cpu")
        team.host("spare")
        yield team


def test_a_failed_stage_is_not_sent_again(team):
    assert team.run("pretrain.seed=99") == 1, team.sender.said()
    assert "error: loss is not finite" in team.sender.said()
    assert team.statuses()["pretrain@phase1"] == "failed"
    assert team.hosts["training"].ran() == ["pretrain@phase1"]


def test_a_paused_stage_is_sent_again_and_continues(team):
    before = len(team.hosts["training"].ran())
    assert team.run("pretrain.seed=13") == 0, team.sender.said()
    assert "sent again to cpu/trainer" in team.sender.said()
    assert team.hosts["training"].ran()[before:] == ["pretrain@phase1", "pretrain@phase1"]
    assert team.statuses()["pretrain@phase1"] == "ran"


def test_a_cancelled_run_ends_the_stage_on_its_worker(team):
    run, stage = team.start_training("pretrain.seed=6")
    run.terminate()  # what a worker does with a run that a person cancels
    assert run.wait(timeout=240) != 0
    wait_until(lambda: not is_alive(stage), "the stage's end")
    wait_until(lambda: not team.runs("RUNNING", "CANCELLING").get("pretrain@phase1"), "the run's end")
    assert "by SIGTERM" in team.report()["error"]


def test_a_server_that_is_away_costs_a_run_nothing(team):
    run, stage = team.start_training("pretrain.seed=7")
    count = len(team.hosts["training"].ran())
    team.server.stop()
    team.sender.hold.unlink()  # training ends while no one can be told
    wait_until(lambda: not is_alive(stage), "training's end")
    wait_until(lambda: "the Prefect server does not answer" in team.sender.said(), "the loss was noticed", alive=run)
    team.server.start()
    assert run.wait(timeout=400) == 0, team.sender.said()
    assert "the Prefect server is back" in team.sender.said()
    assert team.statuses()["pretrain@phase1"] == "ran"
    assert len(team.hosts["training"].ran()) == count


def test_when_the_training_host_is_lost_another_one_finishes(team):
    run, stage = team.start_training("pretrain.seed=8")
    team.hosts["training"].lose()
    wait_until(lambda: not is_alive(stage), "the stage's end")
    team.lost("pretrain@phase1")
    team.sender.hold.unlink()
    spare = team.hosts["spare"]
    spare.start_worker("cpu", "trainer", "cpu")
    assert run.wait(timeout=400) == 0, team.sender.said()
    assert "sent again (1 of 3)" in team.sender.said()
    assert spare.ran() == ["pretrain@phase1"]


def test_a_run_whose_own_worker_is_killed_is_run_again_and_finds_its_stages_at_work(team):
    spare, leading = team.hosts["spare"], team.host("leading")
    leading.start_worker("flows", "default", "cpu")
    spare.hold.touch()
    before = spare.ran().count("pretrain@phase1")
    run = team.start_deployment(overrides=["pretrain.seed=9"], device_queue="cpu/trainer")
    wait_until(lambda: spare.ran().count("pretrain@phase1") > before, "training", alive=leading.worker)
    stage = spare.processes()[-1]
    leading.worker.kill()
    wait_until(lambda: team.states(run)[-1].is_crashed(), "the run is known to be lost")
    assert is_alive(stage)
    leading.start_worker("flows", "default", "cpu")
    wait_until(lambda: team.states(run)[-1].is_running(), "its second start")
    spare.hold.unlink()
    wait_until(lambda: team.states(run)[-1].is_final(), "its end")
    states = team.states(run)
    assert (states[-1].name, states[-1].message) == ("Completed", "published")
    assert [state.name for state in states].count("Crashed") == 1
    assert spare.ran().count("pretrain@phase1") == before + 1
    (report,) = leading.project.glob("runs/checkouts/*/reports/run.json")
    words = read_json(report)["command"].split(" --name ")
    assert words[0] == "podium run --set pretrain.seed=9"
    assert words[1].endswith(" --on-workers")
