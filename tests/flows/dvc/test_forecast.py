"""`podium plan`: what it forecasts is what a run then does, and it leaves everything as it was."""

import json
import os
import shutil

from flows.checks import preflight
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tasks.plan.dvc_records import LOST
from tests.flows.checks.conftest import tree
from tests.flows.toy_runs import podium, run, statuses


def told(project, *overrides):
    """Stage -> status and reasons, as podium plan finds them."""
    found = resolve_request(project, RunOptions(None, overrides)).forecast
    return {one.stage: (one.status, one.why) for one in found}


def done(project, *overrides):
    """Stage -> status, as a run reports it."""
    run(*overrides, publish=False)
    return statuses(project)


def test_what_is_forecast_is_what_a_run_then_does(request, toy_project):
    found = told(toy_project)
    assert found["first"] == ("runs", ("never ran here",))
    assert found["gate@squad"] == ("runs", ("after second",))
    request.getfixturevalue("rejected")
    assert set(told(toy_project).values()) == {("skipped", ())}

    rate = "downstream.squad.finetune.learning_rate=3e-5"
    found = told(toy_project, rate)
    assert found["first"][0] == "restored"
    assert found["second"] == ("runs", ("downstream.squad.finetune.learning_rate 0.001 -> 3e-05",))
    assert found["gate@squad"][1] == ("after second",), "what second makes is not known; DVC may find it unchanged"
    ran = done(toy_project, rate)
    assert (ran["first"], ran["second"]) == ("restored", "ran")
    assert {status for status, _ in told(toy_project, rate).values()} == {"skipped"}

    (toy_project / "stage.py").write_text((toy_project / "stage.py").read_text() + "# a change\n")
    assert told(toy_project)["first"][1] == ("stage.py changed",)
    assert done(toy_project)["first"] == "ran"
    (toy_project / "data" / "first").unlink()
    assert told(toy_project)["first"] == ("restored", ("data/first is missing",))
    shutil.rmtree(toy_project / ".dvc" / "cache" / "files")
    assert told(toy_project)["first"] == ("runs", (LOST,))
    found = preflight.check_cache(resolve_request(toy_project, RunOptions()))
    [said] = [one for one in found if one.level == "warning"]
    assert said.text.startswith("data/first")


def test_the_command_changes_nothing_and_names_the_run_it_speaks_of(rejected, toy_project, capsys):
    before = tree(toy_project)
    code, said = podium(capsys, "plan", "--set", "downstream.squad.gate.min_f1=80.0")
    assert "gate@squad  to run    downstream.squad.gate.min_f1 85.0 -> 80.0" in said.out
    assert (code, said.err) == (0, "next: podium run --set downstream.squad.gate.min_f1=80.0\n")
    stages = json.loads(podium(capsys, "plan", "--json")[1].out)["stages"]
    assert [one["status"] for one in stages] == ["skipped"] * 3
    assert tree(toy_project) == before
    assert os.getcwd() == str(toy_project)


def test_a_given_folder_that_cannot_be_looked_at_is_refused_by_its_name(toy_project, capsys):
    (toy_project / "inputs" / "corpus" / "lost.txt").symlink_to("nowhere.txt")
    code, said = podium(capsys, "plan")
    assert (code, "corpus.path=" in said.err, "lost.txt" in said.err) == (2, True, True)
