"""The flow on a toy plan: report, states, exit codes, overrides in a checkout of their own."""

import errno
import json
import shutil
import sys

import pytest
from prefect.client.schemas.objects import StateType

from flows import cli, pipeline
from flows.dvc.session import StageFailed
from flows.runs import checkout, report
from flows.views import run_page, run_view
from flows.views.run_view import RunView
from tasks.plan.plan_file import Plan
from tasks.stage.errors import ParamsError
from tests.places import ROOT
from tests.plans import prepare_own, resolved_params
from tests.tasks.hostile import without_own_script

ACCEPTED = ["downstream.squad.gate.min_f1=80.0"]


def run_json(project):
    return json.loads((project / "reports" / "run.json").read_text())


def statuses(project):
    return {stage["name"]: stage["status"] for stage in run_json(project)["stages"]}


def run(*overrides, **options):
    return pipeline.pipeline(None, list(overrides), return_state=True, **options)


def test_a_rejected_model_ends_in_the_state_rejected_and_is_not_published(prefect_session, toy_project):
    state = run()
    assert (state.name, state.type, state.message) == (
        "Rejected",
        StateType.FAILED,
        "f1 80.50 is under the floor 85.00",
    )
    values = run_json(toy_project)
    assert values["results"] == {
        "gate@squad": {
            "name": "squad",
            "scores": {"exact_match": 70.0, "f1": 80.5},
            "leading": [],
            "intervals": {},
            "checks": [],
            "published": None,
            "decision": {"accepted": False, "reasons": ["f1 80.50 is under the floor 85.00"]},
        }
    }
    assert not (toy_project / "reports" / "publish-squad.json").exists()


def test_an_accepted_model_is_published_and_the_report_has_the_promised_layout(prefect_session, toy_project):
    state = run(*ACCEPTED)
    assert state.name == "Completed"
    values = run_json(toy_project)
    assert [set(stage) for stage in values["stages"]] == [{"name", "status", "seconds", "began"}] * 4
    assert statuses(toy_project) == {"first": "ran", "second": "ran", "gate@squad": "ran", "publish@squad": "ran"}
    assert values["folder"].startswith("runs/checkouts/")
    published = values["results"]["gate@squad"]["published"]
    assert published == {"folder": "published/podium-demo", "unchanged": False}, "from the project's folder"


def test_without_publish_the_run_stops_after_the_gate(prefect_session, toy_project):
    run(*ACCEPTED, publish=False)
    assert run_json(toy_project)["results"]["gate@squad"]["published"] is None
    assert "publish@squad" not in statuses(toy_project)


def test_publish_takes_the_module_that_the_gate_names_and_refuses_a_task_that_has_none(prefect_session, toy_project):
    run()
    with pytest.raises(ParamsError, match="--task sst2 not found"):
        cli.cli.main(["publish", "--task", "sst2"], standalone_mode=False, prog_name="podium")
    assert not (toy_project / "reports" / "publish-squad.json").exists()
    cli.cli.main(["publish"], standalone_mode=False, prog_name="podium")
    assert (toy_project / "reports" / "publish-squad.json").exists()


def test_a_second_run_skips_every_stage(prefect_session, toy_project, ran):
    run()
    run()
    assert statuses(toy_project) == {"first": "skipped", "second": "skipped", "gate@squad": "skipped"}
    assert ran() == ["first", "second"]


def test_overrides_run_in_a_checkout_restore_what_they_do_not_change_and_leave_params_alone(
    prefect_session, toy_project, ran
):
    before = (toy_project / "params.yaml").read_bytes()
    run()
    run("downstream.squad.finetune.learning_rate=3e-5")
    assert statuses(toy_project) == {"first": "restored", "second": "ran", "gate@squad": "restored"}
    assert (toy_project / "params.yaml").read_bytes() == before
    folder = toy_project / run_json(toy_project)["folder"]
    assert folder.parent == toy_project / "runs" / "checkouts"
    assert "learning_rate: 3.0e-05" in (folder / "params.yaml").read_text()
    assert json.loads((folder / "reports" / "run.json").read_text()) == run_json(toy_project)
    run("downstream.squad.finetune.learning_rate=3e-5")
    assert set(statuses(toy_project).values()) == {"skipped"}


def test_a_failed_stage_fails_the_run_and_the_report_says_which(prefect_session, toy_project, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "second")
    state = run()
    assert state.is_failed()
    assert statuses(toy_project) == {"first": "ran", "second": "failed"}
    assert "told to fail" in run_json(toy_project)["error"]
    monkeypatch.delenv("TOY_FAILS")
    assert run().name == "Rejected"
    assert statuses(toy_project) == {"first": "skipped", "second": "ran", "gate@squad": "ran"}


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            RuntimeError("can't start new thread"),
            "by RuntimeError: can't start new thread (see its log). This user has",
        ),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "unavailable (see its log). This user has"),
        (KeyError("a defect"), "by KeyError: 'a defect' (see its log)"),
    ],
)
def test_a_run_that_ends_unexpectedly_names_the_cause(prefect_session, toy_project, monkeypatch, cause, said):
    def fail(*arguments):
        raise cause

    monkeypatch.setattr(pipeline.Engine, "run_plan", fail)
    assert run().is_failed()
    assert said in run_json(toy_project)["error"]


def test_a_failed_publish_fails_the_run(prefect_session, toy_project, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "publish")
    state = run(*ACCEPTED)
    assert state.is_failed()
    assert "the hub is not there" in state.message
    assert statuses(toy_project)["publish@squad"] == "failed"


@pytest.mark.parametrize(
    ("overrides", "code"),
    [([], 3), (ACCEPTED, 0), (["downstream.squad.gate.min_f1=eighty"], 2), (["gate.minf1=80"], 2)],
)
def test_exit_codes_of_the_command_line(prefect_session, toy_project, monkeypatch, capsys, overrides, code):
    monkeypatch.setattr(sys, "argv", ["podium", "run", *[word for o in overrides for word in ("--set", o)]])
    try:
        cli.main()
        found = 0
    except SystemExit as end:
        found = end.code
    assert found == code
    assert (toy_project / "reports" / "run.json").exists() == (code != 2), "wrong parameters run nothing"


def test_a_paused_run_ends_with_exit_code_4_and_says_how_it_continues(
    prefect_session, toy_project, monkeypatch, capsys
):
    pauses = "import sys\nfrom tasks.stage.events import report\nreport('paused', text='time is up')\nsys.exit(4)\n"
    (toy_project / "stage.py").write_text(pauses)
    monkeypatch.setattr(sys, "argv", ["podium", "run"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 4
    assert "stage first paused: time is up; run it again to continue" in capsys.readouterr().err
    assert statuses(toy_project) == {"first": "paused"}


def test_an_exit_code_of_a_failed_stage_is_1(prefect_session, toy_project, monkeypatch, capsys):
    monkeypatch.setenv("TOY_FAILS", "first")
    monkeypatch.setattr(sys, "argv", ["podium", "run"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: stage first failed (exit code 1): the toy stage was told to fail\n"


def test_a_path_that_is_not_there_is_refused_with_its_parameter(toy_project):
    values = resolved_params(toy_project, None, ["corpus.path=nowhere/text.txt"])
    with pytest.raises(ParamsError, match=r"corpus\.path='nowhere/text\.txt' does not exist"):
        checkout.check_inputs(toy_project, values, Plan(()))


def test_relative_paths_mean_the_same_place_from_a_checkout(toy_project):
    (toy_project.parent / "mine.txt").write_text("text")
    values = resolved_params(toy_project, None, ["corpus.path=../mine.txt"])
    folder = prepare_own(toy_project, values, "mine")
    from tasks.params.schema import load_params

    params = load_params(folder / "params.yaml")
    assert (folder / params.corpus.path).resolve() == toy_project.parent / "mine.txt"
    assert (folder / params.downstream["squad"].publish.folder).resolve() == toy_project / "published" / "podium-demo"
    assert params.downstream["squad"].data.train_path == "inputs/questions", (
        "inputs is linked, so it keeps its name and its cache"
    )


def test_the_summary_names_stages_scores_gate_and_place():
    run = report.RunReport(".", stages=[report.StageRecord("corpus", "ran", 1.25)])
    run.results["gate@squad"] = {
        "name": "squad",
        "scores": {"exact_match": 91.5, "f1": 93.25},
        "decision": {"accepted": True, "reasons": []},
        "published": {"folder": "published/podium-demo", "unchanged": True},
    }
    text = run_view.format_end(RunView(run, ROOT))
    assert "Podium run: published" in text
    assert "squad: exact_match 91.50, f1 93.25" in text
    assert "published: published/podium-demo (unchanged)" in text


def test_a_pull_request_is_called_a_proposal_and_not_a_publication():
    receipt = {"url": "http://hub/user/demo/discussions/1", "pull_request": 1, "unchanged": False}
    accepted = {"name": "squad", "scores": {}, "decision": {"accepted": True, "reasons": []}, "published": receipt}
    run = report.RunReport(".", results={"gate@squad": accepted})
    assert run_view.format_end(RunView(run, ROOT)).startswith("Podium run: proposed\n")
    assert "proposed: http://hub/user/demo/discussions/1" in run_view.format_end(RunView(run, ROOT))


def copy_plan(folder):
    shutil.copy(ROOT / "dvc.yaml", folder)


def test_the_page_draws_the_curves_and_escapes_what_it_is_told(tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "squad-finetune.csv").write_text("step,loss,learning_rate\n10,4.0,0.1\n20,1.0,0.0\n")
    (tmp_path / "plots" / "pretrain-phase2.csv").write_text("step,loss,learning_rate\n6,5.5,0.1\n")
    run = report.RunReport(".", stages=[report.StageRecord("corpus", "failed", 2.0)], error="<script>alert(1)</script>")
    copy_plan(tmp_path)
    run.stages += [report.StageRecord(name, "ran", 1.0) for name in ("pretrain@phase2", "finetune@squad")]
    text = without_own_script(run_page.render_run(RunView(run, tmp_path)))
    assert "loss 1.000 after 20 updates" in text
    assert "loss 5.500 after 6 updates" in text, "a run too short for a line was a run"
    assert ">host</th>" not in text, "there is one host only"
    run.stages.append(report.StageRecord("pretrain@phase1", "ran", 3.0, "pod-<a>"))
    assert '<td class="wide">pod-&lt;a&gt;</td>' in run_page.render_run(RunView(run, tmp_path))
    assert "<script>" not in text
    assert '<span class="badge bad">failed</span>' in text


def test_a_stage_failure_is_no_defect_of_ours_and_shows_no_traceback_of_its_own():
    failure = StageFailed("finetune", "exit code 1", "no space left", ["update 1", "error: no space left"])
    assert str(failure) == "stage finetune failed (exit code 1): no space left"
    failure = StageFailed("finetune", "SIGKILL", None, ["one", "two"])
    assert str(failure) == "stage finetune failed (SIGKILL). Its last lines:\n  one\n  two"


def test_the_run_says_how_its_stages_came_by_their_programs(tmp_path):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "measurements").mkdir()
    copy_plan(tmp_path)
    for name, how in (
        ("pretrain-phase1", "restored from executables/phase1"),
        ("squad-finetune", "built: no executable yet"),
        ("squad-predict", "loaded from the cache"),
    ):
        (tmp_path / "measurements" / f"{name}.json").write_text(json.dumps({"program": how}))
    (tmp_path / "metrics" / "pretrain-phase2.json").write_text(json.dumps({"runtime": "cpu"}))
    states = {"pretrain@phase1": "ran", "pretrain@phase2": "ran", "finetune@squad": "ran", "predict@squad": "skipped"}
    run = report.RunReport(".", stages=[report.StageRecord(name, status, 1.0) for name, status in states.items()])
    run.read_results(tmp_path)
    run.write(tmp_path)
    assert run_json(tmp_path)["programs"] == {
        "pretrain@phase1": "restored from executables/phase1",
        "finetune@squad": "built: no executable yet",
    }
    assert "program of finetune@squad: built: no executable yet\n" in run_view.format_end(RunView(run, tmp_path))
    assert "Program of pretrain@phase1: restored from executables/phase1." in run_page.render_run(
        RunView(run, tmp_path)
    )


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


def test_a_program_reads_the_report_of_a_run_from_standard_output(prefect_session, toy_project, monkeypatch, capsys):
    words = ["podium", "run", "--json", *[word for o in ACCEPTED for word in ("--set", o)]]
    monkeypatch.setattr(sys, "argv", words)
    cli.main()
    said = capsys.readouterr()
    assert json.loads(said.out) == run_json(toy_project)
    assert "Podium run: published" in said.err
