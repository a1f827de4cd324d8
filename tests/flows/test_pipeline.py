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
from tests.flows.toy_runs import ACCEPTED, FASTER, podium, require_end, run, run_json, statuses
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


def test_publish_takes_the_module_that_the_gate_names_and_refuses_a_task_that_has_none(rejected, toy_project, capsys):
    require_end(capsys, 2, "--task sst2 not found", "publish", "--task", "sst2")
    assert not (toy_project / "reports" / "publish-squad.json").exists()
    podium(capsys, "publish")
    assert (toy_project / "reports" / "publish-squad.json").exists()


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
    ("cause", "said"),
    [
        (RuntimeError("can't start new thread"), r"RuntimeError: can't start new thread .*This user has"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "unavailable .*This user has"),
        (KeyError("a defect"), r"by KeyError: 'a defect' \(see its log\)$"),
    ],
)
def test_a_run_that_ends_unexpectedly_names_the_cause(prefect_session, toy_project, monkeypatch, cause, said):
    monkeypatch.setattr(pipeline.Engine, "run_plan", mock.Mock(side_effect=cause))
    assert run().is_failed()
    assert re.search(said, run_json(toy_project)["error"])


def test_a_failed_publish_fails_the_run(prefect_session, toy_project, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "publish")
    state = run(*ACCEPTED)
    assert state.is_failed()
    assert "the hub is not there" in state.message
    assert statuses(toy_project)["publish@squad"] == "failed"


def test_a_pull_request_is_called_a_proposal_and_not_a_publication():
    receipt = {"url": "http://hub/user/demo/discussions/1", "pull_request": 1, "unchanged": False}
    accepted = {"name": "squad", "scores": {}, "decision": {"accepted": True, "reasons": []}, "published": receipt}
    said = run_view.format_end(RunView(report.RunReport(".", results={"gate@squad": accepted}), ROOT))
    assert said.startswith("Podium run: proposed\n")
    assert "proposed: http://hub/user/demo/discussions/1" in said


def test_a_secret_of_config_local_is_linked_and_not_copied_into_a_checkout(toy_project):
    local = toy_project / ".dvc" / "config.local"
    local.write_text("['remote \"far\"']\n    url = ssh://me@host/store\n    password = hush\n")
    values = resolved_params(toy_project, None, ["downstream.squad.finetune.learning_rate=3e-5"])
    folder = prepare_own(toy_project, values, "faster")
    assert "hush" not in (folder / ".dvc" / "config").read_text()
    assert (folder / ".dvc" / "config.local").resolve() == local
    local.write_text("['remote \"far\"']\n    url = ../store\n    password = hush\n")
    with pytest.raises(ParamsError, match=r"contains a secret.*relative path url = \.\./store"):
        prepare_own(toy_project, values, "faster")


def test_a_program_reads_the_report_of_an_accepted_run_from_standard_output(prefect_session, toy_project, capsys):
    code, said = podium(capsys, "run", "--json", "--set", *ACCEPTED)
    values = run_json(toy_project)
    assert (code, json.loads(said.out)) == (0, values)
    assert "Podium run: published" in said.err
    assert [set(stage) for stage in values["stages"]] == [{"name", "status", "seconds", "began"}] * 4
    assert statuses(toy_project) == {"first": "ran", "second": "ran", "gate@squad": "ran", "publish@squad": "ran"}
    assert values["folder"].startswith("runs/checkouts/")
    published = values["results"]["gate@squad"]["published"]
    assert published == {"folder": "published/podium-demo", "unchanged": False}, "from the project's folder"


def with_tasks(*tasks):
    return values_with(*(f"downstream.glue-{task}={{kind: glue, task: {task}}}" for task in tasks))


def in_checkout(folder, *tasks):
    (folder / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
    write_parameters(folder, with_tasks(*tasks))


@pytest.mark.parametrize("accepted", [True, False])
def test_the_report_tells_scores_gate_and_place_of_each_task_and_no_older_answers(tmp_path, accepted):
    in_checkout(tmp_path, "sst2")
    write_json(tmp_path / "metrics/squad.json", {"exact_match": 1.0, "f1": 2.0})
    write_json(tmp_path / "metrics/squad-gate.json", {"accepted": False, "reasons": ["of another run"]})
    scores = {"accuracy": 91.5, "accuracy_low": 90.0, "score": 91.5, "score_low": 90}
    write_json(tmp_path / "metrics/glue-sst2.json", scores)
    reasons = [] if accepted else ["score 91.5 is under the floor 95 (downstream.glue-sst2.gate.min_score)."]
    write_json(tmp_path / "metrics/glue-sst2-gate.json", {"accepted": accepted, "reasons": reasons})
    run = report.RunReport(
        ".", stages=[report.StageRecord(name, "ran", 1.0) for name in stages_of(with_tasks("sst2"), "glue")]
    )
    run.read_results(tmp_path)
    if accepted:
        run.add_receipt({"folder": "published/podium-glue-sst2", "unchanged": False}, "gate@glue-sst2")
    run.write(tmp_path)
    text = run_view.format_end(RunView(run, tmp_path))
    assert text == run_view.format_end(RunView(report.read_report(tmp_path, tmp_path), tmp_path))
    assert "glue-sst2: accuracy 91.50, score 91.50\n" in text
    assert ("published: published/podium-glue-sst2" in text) == accepted
    assert ("  - score 91.5 is under" in text) != accepted
    assert "exact match" not in text


@pytest.mark.soak
def test_each_accepting_gate_publishes_its_own_model_and_no_other_does(tmp_path, monkeypatch):
    def publish(gate, root, say):
        return {"folder": f"published/x-{gate.item}", "unchanged": True}

    def published(plan, wanted):
        record = report.RunReport(".")
        with Engine(tmp_path, record) as engine:
            engine.run_plan(plan, publish=wanted)
        folders = {gate: result["published"] for gate, result in record.results.items()}
        return {gate: folder and folder["folder"] for gate, folder in folders.items()}, report.run_outcome(record)

    for entry, accepted in (("glue-sst2", True), ("glue-rte", False), ("squad", True)):
        write_json(tmp_path / f"metrics/{entry}-gate.json", {"accepted": accepted, "reasons": []})
    monkeypatch.setattr(Engine, "check_plan", lambda engine, plan, released: PlanStatus(plan, True))
    monkeypatch.setattr(releases, "publish_release", publish)
    in_checkout(tmp_path, "sst2", "rte")
    assert published(stages_of(with_tasks("sst2", "rte")), True) == (
        {"gate@squad": "published/x-squad", "gate@glue-sst2": "published/x-glue-sst2", "gate@glue-rte": None},
        "rejected",
    )
    assert published(stages_of(values_with()), False)[0] == {"gate@squad": None}


def test_nothing_changed_is_said_at_once_and_the_report_stays_that_of_the_run_that_made_things(
    toy_project, request, command, ran
):
    assert command() is None, "nothing was made yet"
    request.getfixturevalue("rejected")
    report = (toy_project / "reports" / "run.json").read_bytes()
    ran()
    code, said = command()
    assert code == 3, "the gate rejected, and still does"
    assert said.out.startswith("nothing changed: ")
    assert (toy_project / "reports" / "run.json").read_bytes() == report
    assert ran() == []
    assert command("--to", "second") is None, "another plan"
    (toy_project / "data" / "second").unlink()
    assert command() is None
    assert statuses(toy_project)["second"] == "ran", "the report of before"


def test_what_was_published_is_looked_at_and_published_again_where_it_is_gone(
    accepted, toy_project, command, monkeypatch
):
    made = run_json(toy_project)
    code, said = command("--set", *ACCEPTED)
    assert (code, "published: published/podium-demo (unchanged)" in said.out) == (0, True)
    run(FASTER)
    assert command("--set", *ACCEPTED)[0] == 0
    assert run_json(toy_project) == made, "the report of the run that was asked for"
    (toy_project / "published" / "podium-demo").rmdir()
    code, said = command("--set", *ACCEPTED)
    assert (code, "published: published/podium-demo\n" in said.out) == (0, True)
    assert (toy_project / "published" / "podium-demo").is_dir()
    assert list(statuses(toy_project).values()) == ["skipped", "skipped", "skipped", "ran"]
    monkeypatch.setenv("TOY_FAILS", "publish")
    code, said = command("--set", *ACCEPTED)
    assert (code, "the hub is not there" in said.err) == (1, True)
    assert command("--set", *ACCEPTED) is None, "the report is of a run that failed"


def test_a_run_that_is_to_be_seen_elsewhere_goes_the_whole_way(rejected, toy_project, command, monkeypatch):
    def nothing_changed():
        ended = command()  # one that goes on ends at a server that does not answer
        return ended is not None and "nothing changed" in ended[1].out

    monkeypatch.delenv("PREFECT_PROFILES_PATH", raising=False)
    assert nothing_changed()
    with monkeypatch.context() as patch:
        patch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        assert not nothing_changed()
    home = toy_project.parent / "home"
    home.mkdir(exist_ok=True)
    (home / "profiles.toml").write_text('[profiles.ours]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n')
    assert not nothing_changed(), "named in a profile of Prefect"
    (home / "profiles.toml").rename(home / "others.toml")
    assert nothing_changed()
    with monkeypatch.context() as patch:
        patch.setenv("PREFECT_PROFILES_PATH", str(home / "others.toml"))
        assert not nothing_changed()
    with (toy_project / ".dvc" / "config").open("a") as config:
        config.write("    remote = far\n['remote \"far\"']\n    url = /nowhere\n")
    assert not nothing_changed(), "other hosts may lack what is here"
