"""The flow on a toy plan: report, states, exit codes, overrides in a checkout of their own."""

import errno
import json
import re
from unittest import mock

import pytest
from prefect.client.schemas.objects import StateType

from flows import pipeline
from flows.dvc import releases
from flows.dvc.engine import Engine
from flows.dvc.session import PlanStatus
from flows.runs import report
from flows.views import run_view
from flows.views.run_view import RunView
from ipu_model.core.files import write_json
from tasks.stage.errors import ParamsError
from tests.flows.toy_runs import ACCEPTED, FASTER, podium, run, run_json, statuses
from tests.places import ROOT
from tests.plans import prepare_own, resolved_params, stages_of, values_with
from tests.tasks.downstream.entries import write_parameters


def test_a_rejected_model_ends_in_the_state_rejected_and_is_not_published(rejected, toy_project):
    assert set(statuses(toy_project).values()) == {"ran"}
    state, reason = run(), "f1 80.50 is under the floor 85.00"
    assert (state.name, state.type, state.message) == ("Rejected", StateType.FAILED, reason)
    result = run_json(toy_project)["results"]["gate@squad"]
    assert result["scores"] == {"exact_match": 70.0, "f1": 80.5}
    assert (result["decision"], result["published"]) == ({"accepted": False, "reasons": [reason]}, None)
    assert not (toy_project / "reports" / "publish-squad.json").exists()
    assert set(statuses(toy_project).values()) == {"skipped"}


def test_overrides_run_in_a_checkout_restore_what_they_do_not_change_and_leave_params_alone(rejected, toy_project):
    before = (toy_project / "params.yaml").read_bytes()
    run(FASTER)
    assert statuses(toy_project) == {"first": "restored", "second": "ran", "gate@squad": "restored"}
    assert (toy_project / "params.yaml").read_bytes() == before
    folder = toy_project / run_json(toy_project)["folder"]
    assert folder.parent == toy_project / "runs" / "checkouts"
    assert "learning_rate: 3.0e-05" in (folder / "params.yaml").read_text()
    assert json.loads((folder / "reports" / "run.json").read_text()) == run_json(toy_project)
    run(FASTER)
    assert set(statuses(toy_project).values()) == {"skipped"}


@pytest.mark.parametrize(
    ("cause", "pattern"),
    [
        (RuntimeError("can't start new thread"), r"RuntimeError: can't start new thread .*This user has"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "unavailable .*This user has"),
        (KeyError("a defect"), r"by KeyError: 'a defect' \(see its log\)$"),
    ],
)
def test_a_run_that_ends_unexpectedly_names_the_cause(prefect_session, toy_project, monkeypatch, cause, pattern):
    monkeypatch.setattr(pipeline.Engine, "run_plan", mock.Mock(side_effect=cause))
    assert run().is_failed()
    assert re.search(pattern, run_json(toy_project)["error"])


def test_a_failed_publish_fails_the_run(prefect_session, toy_project, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "publish")
    state = run(*ACCEPTED)
    assert (state.is_failed(), "the hub is not there" in state.message) == (True, True)
    assert statuses(toy_project)["publish@squad"] == "failed"


def test_a_pull_request_is_called_a_proposal_and_not_a_publication():
    receipt = {"url": "http://hub/user/demo/discussions/1", "pull_request": 1, "unchanged": False}
    accepted = {"name": "squad", "scores": {}, "decision": {"accepted": True, "reasons": []}, "published": receipt}
    text = run_view.format_end(RunView(report.RunReport(".", results={"gate@squad": accepted}), ROOT))
    assert text.startswith("Podium run: proposed\n")
    assert "proposed: http://hub/user/demo/discussions/1" in text


def test_a_secret_of_config_local_is_linked_and_not_copied_into_a_checkout(toy_project):
    local = toy_project / ".dvc" / "config.local"
    config = "['remote \"far\"']\n    url = {}\n    password = hush\n"
    local.write_text(config.format("ssh://me@host/store"))
    values = resolved_params(toy_project, None, [FASTER])
    folder = prepare_own(toy_project, values, "faster")
    assert "hush" not in (folder / ".dvc" / "config").read_text()
    assert (folder / ".dvc" / "config.local").resolve() == local
    local.write_text(config.format("../store"))
    with pytest.raises(ParamsError, match=r"contains a secret.*relative path url = \.\./store"):
        prepare_own(toy_project, values, "faster")


def test_a_program_reads_the_report_of_an_accepted_run_from_standard_output(prefect_session, toy_project, capsys):
    code, printed = podium(capsys, "run", "--json", "--set", *ACCEPTED)
    values = run_json(toy_project)
    assert (code, json.loads(printed.out)) == (0, values)
    assert "Podium run: published" in printed.err
    assert [set(stage) for stage in values["stages"]] == [{"name", "status", "seconds", "began"}] * 4
    assert statuses(toy_project) == dict.fromkeys(("first", "second", "gate@squad", "publish@squad"), "ran")
    assert values["folder"].startswith("runs/checkouts/")
    published = values["results"]["gate@squad"]["published"]
    assert published == {"folder": "published/podium-demo", "unchanged": False}, "from the project's folder"


def with_tasks(*tasks):
    return values_with(*(f"downstream.glue-{task}={{kind: glue, task: {task}}}" for task in tasks))


def write_project(folder, *tasks):
    (folder / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
    write_parameters(folder, with_tasks(*tasks))


def test_the_report_tells_scores_gate_and_place_of_each_task_that_ran_and_no_older_answers(tmp_path):
    write_project(tmp_path, "sst2")
    for name, values in {
        "squad": {"exact_match": 1.0, "f1": 2.0},
        "squad-gate": {"accepted": False, "reasons": ["of another run"]},
        "glue-sst2": {"accuracy": 91.5, "accuracy_low": 90.0, "score": 91.5, "score_low": 90},
        "glue-sst2-gate": {"accepted": True, "reasons": []},
    }.items():
        write_json(tmp_path / f"metrics/{name}.json", values)
    stages = [report.StageRecord(name, "ran", 1.0) for name in stages_of(with_tasks("sst2"), "glue")]
    record = report.RunReport(".", stages=stages)
    record.read_results(tmp_path)
    record.add_receipt({"folder": "published/podium-glue-sst2", "unchanged": False}, "gate@glue-sst2")
    record.write(tmp_path)
    text = run_view.format_end(RunView(record, tmp_path))
    assert text == run_view.format_end(RunView(report.read_report(tmp_path, tmp_path), tmp_path))
    assert "glue-sst2: accuracy 91.50, score 91.50\n" in text
    assert "published: published/podium-glue-sst2" in text
    assert "exact match" not in text


@pytest.mark.soak
def test_each_accepting_gate_publishes_its_own_model_and_no_other_does(tmp_path, monkeypatch):
    def published(plan, wanted):
        record = report.RunReport(".")
        with Engine(tmp_path, record) as engine:
            engine.run_plan(plan, publish=wanted)
        return {gate: result["published"] for gate, result in record.results.items()}, report.run_outcome(record)

    for entry, accepted in (("glue-sst2", True), ("glue-rte", False), ("squad", True)):
        write_json(tmp_path / f"metrics/{entry}-gate.json", {"accepted": accepted, "reasons": []})
    monkeypatch.setattr(Engine, "check_plan", lambda engine, plan, released: PlanStatus(plan, True))
    monkeypatch.setattr(releases, "publish_release", lambda gate, root, say: {"folder": gate.item})
    write_project(tmp_path, "sst2", "rte")
    assert published(stages_of(with_tasks("sst2", "rte")), True) == (
        {"gate@squad": {"folder": "squad"}, "gate@glue-sst2": {"folder": "glue-sst2"}, "gate@glue-rte": None},
        "rejected",
    )
    assert published(stages_of(values_with()), False)[0] == {"gate@squad": None}


def test_nothing_changed_is_said_at_once_and_the_report_stays_that_of_the_run_that_made_things(
    toy_project, request, command, ran
):
    assert command() is None, "nothing was made yet"
    request.getfixturevalue("rejected")
    before = run_json(toy_project)
    ran()
    code, printed = command()
    assert (code, printed.out.startswith("nothing changed: ")) == (3, True), "the gate rejected, and still does"
    assert (run_json(toy_project), ran()) == (before, [])
    assert command("--to", "second") is None, "another plan"
    (toy_project / "data" / "second").unlink()
    assert command() is None
    assert statuses(toy_project)["second"] == "ran", "the report of before"


def test_what_was_published_is_looked_at_and_published_again_where_it_is_gone(
    prefect_session, toy_project, command, monkeypatch
):
    run(*ACCEPTED)
    before, words = run_json(toy_project), ("--set", *ACCEPTED)
    code, printed = command(*words)
    assert (code, "published: published/podium-demo (unchanged)" in printed.out) == (0, True)
    run(FASTER)
    assert command(*words)[0] == 0
    assert run_json(toy_project) == before, "the report of the run that was asked for"
    (toy_project / "published" / "podium-demo").rmdir()
    code, printed = command(*words)
    assert (code, "published: published/podium-demo\n" in printed.out) == (0, True)
    assert (toy_project / "published" / "podium-demo").is_dir()
    assert list(statuses(toy_project).values()) == ["skipped", "skipped", "skipped", "ran"]
    monkeypatch.setenv("TOY_FAILS", "publish")
    code, printed = command(*words)
    assert (code, "the hub is not there" in printed.err) == (1, True)
    assert command(*words) is None, "the report is of a run that failed"


@pytest.mark.parametrize("seen_by", ["nobody", "server", "profile", "profiles of another path", "remote"])
def test_a_run_that_is_to_be_seen_elsewhere_goes_the_whole_way(rejected, toy_project, command, monkeypatch, seen_by):
    monkeypatch.delenv("PREFECT_PROFILES_PATH", raising=False)
    home = toy_project.parent / "home"
    home.mkdir(exist_ok=True)
    profiles = home / ("profiles.toml" if seen_by == "profile" else "others.toml")
    profiles.write_text('[profiles.ours]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n')
    if seen_by == "server":
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    elif seen_by == "profiles of another path":
        monkeypatch.setenv("PREFECT_PROFILES_PATH", str(profiles))
    elif seen_by == "remote":
        with (toy_project / ".dvc" / "config").open("a") as config:
            config.write("    remote = far\n['remote \"far\"']\n    url = /nowhere\n")
    ended = command()
    assert (ended is not None and "nothing changed" in ended[1].out) == (seen_by == "nobody")
