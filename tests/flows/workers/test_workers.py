"""Runs on workers: a real server, hosts and a remote for all tests, in order; each takes what the one before left."""

import asyncio
import json
import re

import pytest
from prefect.client.orchestration import get_client
from prefect.states import Pending

from flows.server.api import LOCK_PREFIX
from flows.workers import worker
from tests.flows.workers.worker_hosts import ALL, wait_until
from tests.flows.workers.worker_team import a_team, parameters_of_training

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """Two hosts that have done a whole run together."""
    with a_team(tmp_path_factory.mktemp("team")) as team:
        team.host("preparing").start_worker("cpu", "default", "cpu")
        team.host("training").start_worker("cpu", "trainer", "cpu,cuda")
        code = team.run()
        assert code == 0, team.sender.said()
        yield team


def test_each_stage_runs_on_the_worker_of_its_queue_and_the_results_come_back(team):
    preparing, training = team.hosts["preparing"], team.hosts["training"]
    assert preparing.ran() == ["corpus", "validate@corpus", "evaluate@squad", "gate@squad"]
    assert training.ran() == ["pretrain@phase1"], "what the first host made is restored, not made again"
    assert team.sender.ran() == []
    assert team.statuses() == {**dict.fromkeys(ALL, "ran"), "publish@squad": "ran"}
    report = team.report()
    result = report["results"]["gate@squad"]
    assert result["scores"] == {"exact_match": 90.0, "f1": 91.0}
    assert result["published"]["folder"] == "published/podium-demo"
    folder = team.sender.project / report["folder"]
    assert json.loads((folder / "metrics" / "pretrain-phase1.json").read_text()) == {"steps": 7}
    assert (folder / "evaluation" / "squad" / "report.html").read_text() == "<p>answers</p>"
    assert not (folder / "models").exists(), "models stay where they are used"


def test_a_run_of_a_deployment_that_a_worker_took_and_never_started_is_started_by_another(team, monkeypatch):
    asked = {"overrides": ["pretrain.seed=31"], "device_queue": "cpu/trainer"}
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("podium/podium")
        run = client.create_flow_run_from_deployment(deployment.id, parameters=asked, state=Pending()).id
        states = []
        for seconds in (worker.PENDING_S, 0.0):
            monkeypatch.setattr(worker, "PENDING_S", seconds)
            asyncio.run(look_for_lost_runs())
            states.append(client.read_flow_run(run).state.name)
        assert states == ["Pending", "Scheduled"]
        leading = team.host("leading")
        leading.start_worker("flows", "default", "cpu")
        state = wait_until(lambda: (found := client.read_flow_run(run).state).is_final() and found, "its end")
    assert (state.name, state.message) == ("Completed", "published")
    assert leading.ran() == [], "its stages were sent"
    leading.lose()


async def look_for_lost_runs():
    """As a worker of the pool `flows` does each time when it asks for runs."""
    options = {"work_pool_name": "flows", "work_queues": ["none"], "create_pool_if_not_found": False}
    async with worker.StageWorker(**options) as looking:
        looking.pool, looking.say = "flows", print
        await looking.sync_with_backend()
        await looking.get_and_submit_flow_runs()


def test_equal_stages_on_two_hosts_run_once_and_the_other_host_restores_them(team):
    preparing, second = team.hosts["preparing"], team.host("second")
    preparing.lose()
    for host in (preparing, second):
        host.start_worker("cpu", "default", "cpu", "--limit", "1")
    preparing.hold.touch()
    before = [*preparing.ran(), *second.ran()].count("pretrain@phase1")

    def waits():
        logs = (host.folder / "worker.log" for host in (preparing, second))
        return any("stage pretrain@phase1: another host is running the same stage" in log.read_text() for log in logs)

    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("podium-stages/cpu")
        parameters = parameters_of_training(preparing, 61)
        runs = [client.create_flow_run_from_deployment(deployment.id, parameters=parameters).id for _ in range(2)]
        wait_until(waits, "the second run waits", alive=second.worker)
        preparing.hold.unlink()
        for run in runs:
            wait_until(lambda run=run: client.read_flow_run(run).state.is_completed(), "its end")
        left = [one.name for one in client.read_variables() if one.name.startswith(LOCK_PREFIX)]
        assert left == [], "no lock is left"
    assert [*preparing.ran(), *second.ran()].count("pretrain@phase1") == before + 1
    for host in (preparing, second):
        host.lose()
    preparing.start_worker("cpu", "default", "cpu")


def test_a_run_to_a_stage_sends_what_that_needs_and_nothing_else_and_works_under_its_name(team):
    before = team.report()["folder"]
    words = ("flows", "run", "--on-workers", "--device-queue", "cpu/trainer", "--to", "pretrain")
    for name, folder, status in (((), before, "skipped"), (("--name", "ours"), "runs/checkouts/ours", "restored")):
        assert team.sender.run(*words, *name) == 0, team.sender.said()
        assert team.statuses() == dict.fromkeys(("corpus", "validate@corpus", "pretrain@phase1"), status)
        assert (team.report()["folder"], team.report()["results"]) == (folder, {})
    for name in ("preparing", "training"):
        (folder,) = team.hosts[name].project.glob("runs/checkouts/ours-*")
        assert json.loads((folder / "reports/run.json").read_text())["command"] == "sent by another run"


def test_other_code_on_a_worker_is_refused_before_anything_runs(team):
    module = team.hosts["training"].project / "tasks" / "toy.py"
    text = module.read_text()
    module.write_text(text + "# newer\n")
    code = team.run("pretrain.seed=5")
    module.write_text(text)
    assert code == 1
    assert re.search(r"tasks of the checkout \S+ differs from the code of the run", team.sender.said())


def test_the_same_parameters_on_a_third_host_run_nothing(team):
    for name in ("preparing", "training"):
        team.hosts[name].lose()
    third = team.host("third")
    third.start_worker("cpu", "default", "cpu")
    assert third.run("flows", "run", "--on-workers", "--device-queue", "cpu/default") == 0, third.said()
    assert third.ran() == []
    report = json.loads((third.project / "reports" / "run.json").read_text())
    assert {stage["name"]: stage["status"] for stage in report["stages"]} == {
        **dict.fromkeys(ALL, "restored"),
        "publish@squad": "ran",
    }
    weights = next(third.project.glob("runs/checkouts/*/models/phase1/weights"))
    assert weights.read_text() == "text 1 learned"
