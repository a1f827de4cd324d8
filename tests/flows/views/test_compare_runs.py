"""`podium compare` of runs, on three questions whose scores are worked out by hand; `podium runs show`."""

import json
import re
import shutil

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from flows.runs import listing, report
from flows.runs.run_before import compare_with_run_before
from flows.views.run_view import RunView
from tasks.downstream.gate.released_scores import scores_json
from tasks.stage import artifacts
from tests.flows.toy_runs import FASTER, podium, require_end
from tests.flows.views.compared_runs import made
from tests.places import ROOT
from tests.plans import prepare_own, resolved_params
from tests.tasks.downstream.entries import task_with
from tests.tasks.hostile import without_own_script
from tests.tasks.release.evaluated_checkout import inputs_of


@pytest.fixture
def project(toy_project):
    shutil.copy(ROOT / "dvc.yaml", toy_project / "dvc.yaml")
    made(toy_project, "slow")
    made(toy_project, "fast", FASTER, q1="two dogs")
    return toy_project


def compared(capsys, *words):
    """What is said of two runs, and of the pair that they are for their entry."""
    code, printed = podium(capsys, "compare", *words, "--json")
    assert code == 0, printed.err
    values = json.loads(printed.out)
    [entry] = values["entries"]
    [pair] = entry["pairs"]
    return values, pair


def test_parameters_scores_and_the_paired_test_against_the_first_on_a_page_that_loads_nothing(project, capsys):
    values, pair = compared(capsys, "slow", "fast")
    [row] = values["parameters"]["rows"]
    assert (row["name"], row["values"][1]) == ("downstream.squad.finetune.learning_rate", 3e-5)
    assert values["entries"][0]["scores"]["slow"]["exact_match"]["value"] == 66.6667
    assert (pair["first"], pair["second"], pair["common"], pair["examples"]) == ("slow", "fast", 3, [3, 3])
    exact, overlap = (pair["differences"][name] for name in ("exact_match", "f1"))
    assert (round(exact["mean"], 4), exact["low"], exact["high"]) == (33.3333, 0.0, 100.0)
    assert round(overlap["mean"], 4) == 11.1111, "a third of a third"
    assert pair["mcnemar"]["exact_match"] == {"first_only": 0, "second_only": 1, "p_value": 1.0}
    page = without_own_script((project / "reports" / "compare-slow-fast.html").read_text())
    for tip in ("slow&#10;update 20&#10;loss (nats) 2", "fast, held-out&#10;update 10&#10;loss (nats) 4"):
        assert page.count(tip) == 1
    assert "<script" not in page
    assert "://" not in page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    _, back = compared(capsys, "fast", "slow")
    assert back["differences"]["exact_match"]["mean"] == -exact["mean"]
    assert back["mcnemar"]["exact_match"] == {"first_only": 1, "second_only": 0, "p_value": 1.0}


def test_runs_on_other_examples_are_compared_on_those_of_both_in_any_order(project, capsys):
    path = inputs_of(made(project, "part", q1="two dogs")).questions
    table = pq.read_table(path)
    pq.write_table(table.filter(pc.not_equal(table["id"], "q0")).take([1, 0]), path)
    _, pair = compared(capsys, "slow", "part")
    assert (pair["common"], pair["examples"]) == (2, [3, 2])
    assert pair["differences"]["exact_match"]["mean"] == 50.0, "q1 of q1 and q2"
    pq.write_table(table.set_column(3, "question", [["Which?"] * 3]), path)
    code, printed = podium(capsys, "compare", "slow", "part")
    assert (code, "part against slow: no paired test" in printed.out) == (0, True), printed
    assert re.search(r"(?m)^part .*  66.67 \(", printed.out), "its scores are shown all the same"


def test_the_scores_of_a_release_stand_for_a_run(project, capsys, tmp_path):
    folder, scores = project / "runs/checkouts/fast", tmp_path / "release/evaluation/scores.json"
    task, examples = task_with("squad", "scores").read_all(folder)
    predictions = task.read_predictions(folder / artifacts.predictions_file("squad"), examples)
    scores.parent.mkdir(parents=True)
    scores.write_text(scores_json(task, examples, predictions))
    release = str(tmp_path / "release")
    _, pair = compared(capsys, "slow", release)
    assert (pair["common"], pair["differences"]["exact_match"]["mean"]) == (3, pytest.approx(100 / 3))
    require_end(capsys, 2, "is not a run", "compare", release, "slow")
    scores.unlink()
    assert podium(capsys, "compare", "slow", release)[0] == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["slow", "none"], "run none not found"),
        (["slow", "slow"], "named twice"),
        (["slow", "fast:glue"], "no entry 'glue'"),
        (["slow", "fast", "--confidence", "0.9"], "--confidence"),
        (["a.json", "b.json", "c.json"], "in pairs"),
    ],
)
def test_what_cannot_be_compared_is_said(project, capsys, words, reason):
    require_end(capsys, 2, reason, "compare", *words)


def test_a_run_that_was_not_evaluated_is_named_and_shown(project, capsys):
    prepare_own(project, resolved_params(project, None, []), "new")
    for words in (("slow", "new"), ("new", "slow")):
        code, printed = podium(capsys, "compare", *words)
        assert (code, printed.out.count("new has no scores")) == (0, 1), printed
    require_end(capsys, 0, "new: never started", "runs", "show", "new")
    report.RunReport("runs/checkouts/fast", began="2026-01-01T10:00:00+0000").save(project)
    shown = json.loads(podium(capsys, "runs", "show", "fast", "--json")[1].out)
    assert shown["parameters"]["downstream.squad.finetune.learning_rate"]["run"] == 3e-5


def evaluated(project, name, hour, *overrides, dev="dev.json", **answers):
    """The record of a run that was evaluated, with some other answers than those of `made`."""
    folder = made(project, name, *overrides, **answers)
    record = report.RunReport(str(folder.relative_to(project)), began=f"2026-11-23T{hour}:00:00+0000")
    record.ended = f"2026-11-23T{hour}:10:00+0000"
    score = {"name": "squad", "scores": {"exact_match": 66.7}, "decision": None, "published": None}
    record.results = {"gate@squad": {**score, "leading": ["exact_match"], "intervals": {}, "checks": []}}
    record.details = {"entries": {"squad": "squad"}, "changed": {"downstream.squad.data.dev_path": dev}}
    record.save(project)
    return record


def test_the_score_is_compared_with_the_newest_earlier_run_on_the_same_examples(toy_project):
    shutil.copy(ROOT / "dvc.yaml", toy_project / "dvc.yaml")
    for name, hour in (("oldest", 10), ("slow", 11), ("elsewhere", 12), ("later", 14)):
        evaluated(toy_project, name, hour, dev="other.json" if name == "elsewhere" else "dev.json")
    record = evaluated(toy_project, "fast", 13, FASTER, q1="two dogs")
    compare_with_run_before(record, toy_project)
    before = record.results["gate@squad"]["before"]
    assert (before["run"], before["metric"], round(before["mean"], 4)) == ("slow", "exact_match", 33.3333)
    assert (before["low"], before["high"]) == (0.0, 100.0)
    line = "  no difference from run slow shown: +33.33 (+0.00 to +100.00)"
    assert line in RunView(record, toy_project / record.folder, toy_project).list_lines()
    record.save(toy_project)
    change = listing.find_changes(listing.list_all(toy_project))["fast"]
    assert (change.before, change.text, change.is_better) == ("slow", "+33.33", None)
    del record.results["gate@squad"]["before"]
    for name in ("slow", "oldest"):
        shutil.rmtree(toy_project / "runs/checkouts" / name / "data")
    compare_with_run_before(record, toy_project)
    assert "before" not in record.results["gate@squad"], "their files are gone"
