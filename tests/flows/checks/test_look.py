"""One look at what changed: which stages DVC would not run, and whether a plan makes all that it needs."""

import pytest

from flows.dvc.session import DvcSession, Listener, PlanStatus
from tasks.params.overlays import resolve
from tasks.params.strict_yaml import read_yaml
from tests.flows.dvc.toy_repro import repro
from tests.places import ROOT
from tests.plans import stages_of
from tests.tasks.downstream.entries import write_parameters


def look(root, plan):
    with DvcSession(root) as session:
        return session.check_plan(plan)


def test_up_to_date_are_stages_before_the_first_that_changed(toy_project):
    plan = ["first", "second", "gate@squad"]
    with DvcSession(toy_project) as session:
        for done in range(4):
            assert session.check_plan(plan) == PlanStatus(plan[:done], True)
            if done < 3:
                session.update(plan[done], Listener(print))
        params = toy_project / "params.yaml"
        params.write_text(params.read_text().replace("learning_rate: ", "learning_rate: 1"))
        assert session.check_plan(plan) == PlanStatus(["first"], True)
        assert session.check_plan(["gate@squad"]) == PlanStatus([], False), "second, which it needs, changed"
        for stage in plan:
            session.update(stage, Listener(print))
        (toy_project / "data" / "second").unlink()
        assert session.check_plan(plan) == PlanStatus(["first"], True)
        text = (toy_project / "dvc.yaml").read_text()
        (toy_project / "dvc.yaml").write_text(
            text.replace("cmd: python stage.py first", "cmd: env python stage.py first")
        )
        assert session.update("first", Listener(print)) == "ran", "the plan changed meanwhile"
        (toy_project / "dvc.yaml").write_text("stages: nonsense")
        assert session.check_plan(plan) == PlanStatus([], False), "DVC says what is wrong"


@pytest.mark.soak
def test_a_plan_is_complete_where_it_makes_all_that_it_needs_or_that_is_up_to_date(toy_project):
    assert look(toy_project, ["second", "gate@squad"]) == PlanStatus([], False), "first has never run"
    repro("first", toy_project)
    assert look(toy_project, ["second", "gate@squad"]) == PlanStatus([], True)
    assert look(toy_project, ["gate@squad"]) == PlanStatus([], False), "second has never run"
    repro("second", toy_project)
    plan = toy_project / "dvc.yaml"
    plan.write_text(plan.read_text().replace("cmd: python stage", "cmd: env python stage"))
    assert look(toy_project, ["gate@squad"]) == PlanStatus([], False), "its command changed"
    repro("gate@squad", toy_project)
    assert look(toy_project, ["first", "gate@squad"]) == PlanStatus(["first", "gate@squad"], True)
    plan.write_text(plan.read_text().replace("env python stage.py first", "python stage.py first"))
    assert look(toy_project, ["first", "second"]) == PlanStatus([], True)
    assert look(toy_project, ["first", "gate@squad"]) == PlanStatus([], False), "second may change when first has run"


@pytest.mark.parametrize("part", ["all", "pretraining", "glue", "squad", "finetuning"])
def test_every_part_but_fine_tuning_makes_all_that_it_needs(part, tmp_path):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n")
    (tmp_path / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
    values = resolve(read_yaml(ROOT / "params.yaml"), None, ["downstream.glue-sst2={kind: glue, task: sst2}"])
    write_parameters(tmp_path, values)
    assert look(tmp_path, stages_of(values, part)) == PlanStatus([], part != "finetuning")
