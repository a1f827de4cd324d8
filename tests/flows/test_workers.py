"""Runs on workers: a real server, worker processes on hosts of their own, one remote. The stages are toys.

One server and the same hosts serve all tests, in order; each takes what the one before left.
"""

import json
import re

import pytest

from flows import workers
from tasks.errors import ParamsError
from tests.flows.worker_hosts import ALL
from tests.flows.worker_team import a_team

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    with a_team(tmp_path_factory.mktemp("team")) as team:
        yield team


def test_each_stage_runs_on_the_worker_of_its_queue_and_the_results_come_back(team):
    preparing, training = team.host("preparing"), team.host("training")
    preparing.start_worker("cpu", "default", "cpu")
    training.start_worker("cpu", "trainer", "cpu,cuda")
    code = team.run()
    assert code == 0, team.office.said()
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
    code = team.run("pretrain.seed=5")
    module.write_text(text)
    assert code == 1
    assert re.search(r"tasks of the checkout \S+ differ from those of the run", team.office.said())


def test_a_queue_that_is_not_there_is_refused_with_what_makes_it(team):
    with pytest.raises(ParamsError, match="python -m flows.deploy --queue ipu/pod-z"):
        workers.require_deployment(workers.Queue("ipu", "pod-z"))


def test_the_same_parameters_on_a_third_host_run_nothing(team):
    for name in ("preparing", "training"):
        team.hosts[name].lose()
    third = team.host("third")
    third.start_worker("cpu", "default", "cpu")
    assert third.run("flows.pipeline", "--on-workers", "--device-queue", "cpu/default") == 0, third.said()
    assert third.ran() == []
    report = json.loads((third.project / "reports" / "run.json").read_text())
    assert {stage["name"]: stage["status"] for stage in report["stages"]} == {
        **dict.fromkeys(ALL, "restored"), "publish": "ran",
    }  # fmt: skip
    weights = next(third.project.glob("runs/checkouts/*/models/phase1/weights"))
    assert weights.read_text() == "text 1 learned"
