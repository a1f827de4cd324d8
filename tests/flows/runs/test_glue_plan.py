"""Which stages tasks of GLUE add to a run, and what the run says of several entries."""

import pytest

from flows.dvc import releases
from flows.dvc.engine import Engine
from flows.dvc.session import PlanStatus
from flows.runs import report
from flows.views import run_page, run_view
from flows.views.run_view import RunView
from ipu_model.core.files import write_json, write_text
from tests import plans
from tests.places import ROOT
from tests.plans import values_with
from tests.tasks.downstream.entries import write_parameters


def stages_of(part, *tasks):
    return plans.stages_of(with_tasks(*tasks), part)


def with_tasks(*tasks):
    return values_with(*(f"downstream.glue-{task}={{kind: glue, task: {task}}}" for task in tasks))


def in_checkout(folder, *tasks):
    """Make `folder` one of these tasks."""
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
    write_json(tmp_path / "metrics/glue-sst2-finetune.json", {"packing_factor": 3.0, "packing_efficiency": 0.9})
    run = report.RunReport(".", stages=[report.StageRecord(name, "ran", 1.0) for name in stages_of("glue", "sst2")])
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
    assert "evaluation/glue-sst2/report.html" in text
    assert run.packing["finetune@glue-sst2"]["packing_factor"] == 3.0
    assert "held-out rows" not in run_page.render_run(RunView(run, tmp_path)), "no rows were held out"
    write_text(tmp_path / "plots/glue-sst2-finetune.csv", "step,loss\n10,1.0\n20,0.6\n")
    write_text(tmp_path / "plots/glue-sst2-finetune-held-out.csv", "step,loss\n20,0.5\n")
    assert "held-out rows" in run_page.render_run(RunView(run, tmp_path))


@pytest.mark.soak
def test_each_accepting_gate_publishes_its_own_model_and_no_other_does(tmp_path, monkeypatch):
    for task, accepted in (("sst2", True), ("rte", False)):
        write_json(tmp_path / f"metrics/glue-{task}-gate.json", {"accepted": accepted, "reasons": []})
    write_json(tmp_path / "metrics/squad-gate.json", {"accepted": True, "reasons": []})
    monkeypatch.setattr(Engine, "check_plan", lambda engine, plan, released: PlanStatus(plan, True))
    monkeypatch.setattr(
        releases, "publish_release", lambda gate, root, say: {"folder": f"published/x-{gate.item}", "unchanged": True}
    )
    in_checkout(tmp_path, "sst2", "rte")
    run = report.RunReport(".")
    with Engine(tmp_path, run) as engine:
        engine.run_plan(stages_of("all", "sst2", "rte"), publish=True)
    assert {gate: result["published"] for gate, result in run.results.items()} == {
        "gate@squad": {"folder": "published/x-squad", "unchanged": True},
        "gate@glue-sst2": {"folder": "published/x-glue-sst2", "unchanged": True},
        "gate@glue-rte": None,
    }
    assert report.run_outcome(run) == "rejected"
    alone = report.RunReport(".")
    with Engine(tmp_path, alone) as engine:
        engine.run_plan(stages_of("all"), publish=False)
    assert {gate: result["published"] for gate, result in alone.results.items()} == {"gate@squad": None}
