"""`podium plan`: what it forecasts is what a run then does, and it leaves everything as it was."""

import json
import os
import shutil

import pytest

from flows import cli, pipeline
from flows.checks import preflight
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tasks.plan.dvc_records import LOST
from tasks.stage.errors import ParamsError


def told(project, *overrides):
    """Stage -> status and reasons, as podium plan finds them."""
    return {one.stage: one for one in resolve_request(project, RunOptions(None, overrides)).forecast}


def done(project, *overrides):
    """Stage -> status, as a run reports it."""
    pipeline.pipeline(None, list(overrides), publish=False, return_state=True)
    stages = json.loads((project / "reports" / "run.json").read_text())["stages"]
    return {stage["name"]: stage["status"] for stage in stages}


def tree(project):
    return {
        path.relative_to(project): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in project.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def statuses(found):
    return {stage: one.status for stage, one in found.items()}


def test_what_is_forecast_is_what_a_run_then_does(request, toy_project):
    assert statuses(told(toy_project)) == dict.fromkeys(("first", "second", "gate@squad"), "runs")
    assert told(toy_project)["first"].why == ("never ran here",)
    assert told(toy_project)["gate@squad"].why == ("after second",)
    request.getfixturevalue("rejected")
    assert statuses(told(toy_project)) == dict.fromkeys(("first", "second", "gate@squad"), "skipped")

    rate = "downstream.squad.finetune.learning_rate=3e-5"
    found = told(toy_project, rate)
    assert (found["first"].status, found["second"].status) == ("restored", "runs")
    assert found["second"].why == ("downstream.squad.finetune.learning_rate 0.001 -> 3e-05",)
    assert found["gate@squad"].why == ("after second",), "what second makes is not known; DVC may find it unchanged"
    ran = done(toy_project, rate)
    assert (ran["first"], ran["second"]) == ("restored", "ran")
    assert set(statuses(told(toy_project, rate)).values()) == {"skipped"}

    (toy_project / "stage.py").write_text((toy_project / "stage.py").read_text() + "# a change\n")
    assert told(toy_project)["first"].why == ("stage.py changed",)
    assert done(toy_project)["first"] == "ran"
    (toy_project / "data" / "first").unlink()
    found = told(toy_project)["first"]
    assert (found.status, found.why) == ("restored", ("data/first is missing",))
    shutil.rmtree(toy_project / ".dvc" / "cache" / "files")
    found = told(toy_project)["first"]
    assert (found.status, found.why) == ("runs", (LOST,))
    found = preflight.check_cache(resolve_request(toy_project, RunOptions()))
    [said] = [one for one in found if one.level == "warning"]
    assert said.text.startswith("data/first")
    assert "`dvc gc`" in said.text


def test_the_command_changes_nothing_and_names_the_run_it_speaks_of(rejected, toy_project, capsys):
    before = tree(toy_project)
    cli.cli.main(["plan", "--set", "downstream.squad.gate.min_f1=80.0"], prog_name="podium", standalone_mode=False)
    said = capsys.readouterr()
    assert "gate@squad  to run    downstream.squad.gate.min_f1 85.0 -> 80.0" in said.out
    assert "0 stages up to date, 2 restored, 1 to run" in said.out
    assert said.err == "next: podium run --set downstream.squad.gate.min_f1=80.0\n"
    cli.cli.main(["plan", "--json"], prog_name="podium", standalone_mode=False)
    assert [one["status"] for one in json.loads(capsys.readouterr().out)["stages"]] == ["skipped"] * 3
    assert tree(toy_project) == before
    assert os.getcwd() == str(toy_project)


def test_a_given_folder_that_cannot_be_looked_at_is_refused_by_its_name(toy_project):
    (toy_project / "inputs" / "corpus" / "lost.txt").symlink_to("nowhere.txt")
    with pytest.raises(ParamsError, match=r"corpus.path=.*lost.txt"):
        cli.cli.main(["plan"], prog_name="podium", standalone_mode=False)
