"""Runs on workers: a real server, hosts and a remote for all tests, in order; each takes what the one before left."""

import asyncio
import json

import pytest
from prefect.client.orchestration import get_client
from prefect.states import Pending

from flows.server.api import LOCK_PREFIX
from flows.workers import worker
from tests.flows.workers.worker_hosts import ALL, wait_until
from tests.flows.workers.worker_team import a_team, parameters_of_training, read_states, start_deployment

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """Two hosts that have done a whole run together."""
    with a_team(tmp_path_factory.mktemp("team")) as team:
        team.host("preparing").start_worker("cpu", "default", "cpu")
        team.host("training").start_worker("cpu", "trainer", "cpu,cuda")
        assert team.run() == 0, team.sender.said()
        yield team


def test_each_stage_runs_on_the_worker_of_its_queue_and_the_results_come_back(team):
    assert team.hosts["preparing"].ran() == ["corpus", "validate@corpus", "evaluate@squad", "gate@squad"]
    assert team.hosts["training"].ran() == ["pretrain@phase1"], "what the first host made is restored, not made again"
    assert team.sender.ran() == []
    assert team.statuses() == dict.fromkeys((*ALL, "publish@squad"), "ran")
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
    run = start_deployment("podium/podium", parameters=asked, state=Pending())
    names = []
    for seconds in (worker.PENDING_S, 0.0):
        monkeypatch.setattr(worker, "PENDING_S", seconds)
        asyncio.run(look_for_lost_runs())
        names.append(read_states(run)[-1].name)
    assert names == ["Pending", "Scheduled"]
    leading = team.host("leading")
    leading.start_worker("flows", "default", "cpu")
    wait_until(lambda: read_states(run)[-1].is_final(), "its end")
    state = read_states(run)[-1]
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
    preparing, second = hosts = team.hosts["preparing"], team.host("second")
    preparing.lose()
    for host in hosts:
        host.start_worker("cpu", "default", "cpu", "--limit", "1")
    preparing.hold.touch()

    def trained():
        return [*preparing.ran(), *second.ran()].count("pretrain@phase1")

    def waits():
        logs = ((host.folder / "worker.log").read_text() for host in hosts)
        return any("stage pretrain@phase1: another host is running the same stage" in log for log in logs)

    before, parameters = trained(), parameters_of_training(preparing, 61)
    runs = [start_deployment("podium-stages/cpu", parameters=parameters) for _ in range(2)]
    wait_until(waits, "the second run waits", alive=second.worker)
    preparing.hold.unlink()
    for run in runs:
        wait_until(lambda run=run: read_states(run)[-1].is_completed(), "its end")
    with get_client(sync_client=True) as client:
        variables = [variable.name for variable in client.read_variables()]
    assert [name for name in variables if name.startswith(LOCK_PREFIX)] == [], "no lock is left"
    assert trained() == before + 1
    for host in hosts:
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
