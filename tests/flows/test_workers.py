"""Runs on workers: a real server, worker processes on hosts of their own, one remote. The stages are toys.

One server and the same hosts serve all tests, in order; each takes what the one before left.
"""

import json
import re

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Crashed

from flows import workers
from tasks.errors import ParamsError
from tests.flows.worker_hosts import Host, Server, is_alive, wait_until

ALL = ["corpus", "validate@corpus", "pretrain@phase1", "evaluate", "gate"]

pytestmark = pytest.mark.slow


class Team:
    """The server, the hosts made so far, and one that starts runs."""

    def __init__(self, folder):
        self.folder, self.remote = folder, folder / "remote"
        self.server = Server(folder / "server")
        self.hosts = {}
        self.office = self.host("office")
        deploy = self.office.start("flows.deploy", "--queue", "cpu/trainer")
        said, _ = deploy.communicate(timeout=120)
        assert deploy.returncode == 0, said

    def host(self, name):
        self.hosts[name] = Host(self.folder / name, self.server, self.remote)
        return self.hosts[name]

    def start(self, *overrides):
        words = [word for override in overrides for word in ("--set", override)]
        return self.office.start("flows.pipeline", "--on-workers", "--device-queue", "cpu/trainer", *words)

    def run(self, *overrides):
        run = self.start(*overrides)
        said, _ = run.communicate(timeout=180)
        return run.returncode, said

    def report(self):
        return json.loads((self.office.project / "reports" / "run.json").read_text())

    def statuses(self):
        return {stage["name"]: stage["status"] for stage in self.report()["stages"]}

    def runs(self, *states):
        wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))))
        with get_client(sync_client=True) as client:
            return {run.name: run for run in client.read_flow_runs(flow_run_filter=wanted)}


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    team = Team(tmp_path_factory.mktemp("team"))
    with temporary_settings({PREFECT_API_URL: team.server.url}):
        yield team
    for host in team.hosts.values():
        if host.worker is not None:
            host.lose()
    team.server.stop()


def test_each_stage_runs_on_the_worker_of_its_queue_and_the_results_come_back(team):
    preparing, training = team.host("preparing"), team.host("training")
    preparing.start_worker("cpu", "default", "cpu")
    training.start_worker("cpu", "trainer", "cpu,cuda")
    code, said = team.run()
    assert code == 0, said
    assert preparing.ran() == ["corpus", "validate@corpus", "evaluate", "gate"]
    assert training.ran() == ["pretrain@phase1"], "what the first host made is restored, not made again"
    assert team.office.ran() == []
    assert team.statuses() == {**dict.fromkeys(ALL, "ran"), "publish": "ran"}
    report = team.report()
    assert report["metrics"] == {"exact_match": 90.0, "f1": 91.0}
    assert report["published"]["folder"] == "published/podium-demo"
    folder = team.office.project / report["folder"]
    assert json.loads((folder / "metrics" / "pretrain-phase1.json").read_text()) == {"steps": 7}
    assert (folder / "evaluation" / "report.html").read_text() == "<p>answers</p>"
    assert not (folder / "models").exists(), "models stay where they are used"


def test_other_code_on_a_worker_is_refused_before_anything_runs(team):
    module = team.hosts["training"].project / "tasks" / "toy.py"
    text = module.read_text()
    module.write_text(text + "# newer\n")
    code, said = team.run("pretrain.seed=5")
    module.write_text(text)
    assert code == 1
    assert re.search(r"tasks of the checkout \S+ differ from those of the run", said), said


def test_a_failed_stage_is_not_sent_again(team):
    before = team.hosts["training"].ran()
    code, said = team.run("pretrain.seed=99")
    assert code == 1
    assert "error: loss is not finite" in said
    assert team.statuses()["pretrain@phase1"] == "failed"
    assert team.hosts["training"].ran() == [*before, "pretrain@phase1"]


def test_a_queue_that_is_not_there_is_refused_with_what_makes_it(team):
    with pytest.raises(ParamsError, match="python -m flows.deploy --queue ipu/pod-z"):
        workers.require_deployment(workers.Queue("ipu", "pod-z"))


def test_a_cancelled_run_ends_the_stage_on_its_worker(team):
    training = team.hosts["training"]
    team.office.hold.touch()
    run = team.start("pretrain.seed=6")
    seen = len(training.ran())
    wait_until(lambda: len(training.ran()) > seen, "training", alive=run)
    stage = training.processes()[-1]
    [podium] = [found for found in team.runs(StateType.RUNNING).values() if found.parent_task_run_id is None]
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(podium.id, Cancelling())
    run.terminate()  # what a worker does with a run of its own that is cancelled
    assert run.wait(timeout=60) != 0
    wait_until(lambda: not is_alive(stage), "the stage's end")
    wait_until(lambda: not team.runs(StateType.RUNNING, StateType.CANCELLING), "the runs' end")
    team.office.hold.unlink()
    assert "the run ended early" in team.report()["error"]


def test_a_server_that_is_away_costs_a_run_nothing(team):
    training = team.hosts["training"]
    team.office.hold.touch()
    run = team.start("pretrain.seed=7")
    seen = len(training.ran())
    wait_until(lambda: len(training.ran()) > seen, "training", alive=run)
    team.server.stop()
    team.office.hold.unlink()  # training ends while nobody can be told
    wait_until(lambda: list(training.project.glob("runs/checkouts/*/metrics/pretrain-phase1.json")), "training's end")
    team.server.start()
    said, _ = run.communicate(timeout=180)
    assert run.returncode == 0, said
    assert "the Prefect server is back" in said
    assert team.statuses()["pretrain@phase1"] == "ran"
    assert len(training.ran()) == seen + 1


def test_when_the_training_host_is_lost_another_one_finishes(team):
    training = team.hosts["training"]
    team.office.hold.touch()
    run = team.start("pretrain.seed=8")
    seen = len(training.ran())
    wait_until(lambda: len(training.ran()) > seen, "training", alive=run)
    stage = training.processes()[-1]
    training.lose()
    assert not is_alive(stage)
    lost = team.runs(StateType.RUNNING)["pretrain@phase1"]
    with get_client(sync_client=True) as client:  # what the automation does 90 s after the last heartbeat
        client.set_flow_run_state(lost.id, Crashed(message="no heartbeat: its host or worker was lost"))
    team.office.hold.unlink()
    spare = team.host("spare")
    spare.start_worker("cpu", "trainer", "cuda,cpu")
    said, _ = run.communicate(timeout=180)
    assert run.returncode == 0, said
    assert "sent again, 1 of 3 times" in said
    assert spare.ran() == ["pretrain@phase1"]


def test_the_same_parameters_on_a_third_host_run_nothing(team):
    for name in ("preparing", "spare"):
        team.hosts[name].lose()
    third = team.host("third")
    third.start_worker("cpu", "default", "cpu")
    run = third.start("flows.pipeline", "--on-workers", "--device-queue", "cpu/default")
    said, _ = run.communicate(timeout=180)
    assert run.returncode == 0, said
    assert third.ran() == []
    report = json.loads((third.project / "reports" / "run.json").read_text())
    assert {stage["name"]: stage["status"] for stage in report["stages"]} == {
        **dict.fromkeys(ALL, "restored"), "publish": "ran",
    }  # fmt: skip
    weights = next(third.project.glob("runs/checkouts/*/models/phase1/weights"))
    assert weights.read_text() == "text 1 learned"
