"""A run is compared, paired, with the run before it of the same task."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from flows.runs import listing
from flows.runs.report import RunReport, read_report
from flows.runs.run_before import compare_with_run_before
from flows.views.run_view import RunView
from tests.flows.toy_runs import FASTER
from tests.flows.views.compared_runs import made
from tests.places import ROOT


def evaluated(project, name, hour, *overrides, dev="dev.json", **answers):
    """The record of a run that was evaluated, with some other answers than those of `made`."""
    folder = made(project, name, *overrides, **answers)
    record = RunReport(str(folder.relative_to(project)), began=f"2026-11-23T{hour}:00:00+0000")
    record.ended = f"2026-11-23T{hour}:10:00+0000"
    score = {"name": "squad", "scores": {"exact_match": 66.7}, "decision": None, "published": None}
    record.results = {"gate@squad": {**score, "leading": ["exact_match"], "intervals": {}, "checks": []}}
    record.details = {"entries": {"squad": "squad"}, "changed": {"downstream.squad.data.dev_path": dev}}
    record.save(project)
    return record


@pytest.fixture
def project(toy_project):
    shutil.copy(ROOT / "dvc.yaml", toy_project / "dvc.yaml")
    return toy_project


def test_the_score_is_compared_with_the_newest_earlier_run_on_the_same_examples(project):
    evaluated(project, "oldest", 10)
    evaluated(project, "slow", 11)
    evaluated(project, "elsewhere", 12, dev="other.json")
    evaluated(project, "later", 14)
    record = evaluated(project, "fast", 13, FASTER, q1="two dogs")
    compare_with_run_before(record, project)
    before: dict[str, Any] = record.results["gate@squad"]["before"]
    assert (before["run"], before["metric"], round(before["mean"], 4)) == ("slow", "exact_match", 33.3333)
    assert (before["low"], before["high"]) == (0.0, 100.0)
    line = "no difference from run slow shown: +33.33 (+0.00 to +100.00)"
    assert f"  {line}" in RunView(record, project / record.folder, project).list_lines()
    record.save(project)
    change = listing.find_changes(listing.list_all(project))["fast"]
    assert (change.before, change.text, change.is_better) == ("slow", "+33.33", None)


def test_a_run_before_without_its_files_is_not_compared(project):
    evaluated(project, "slow", 11)
    record = evaluated(project, "fast", 13)
    shutil.rmtree(project / "runs/checkouts/slow/data")
    compare_with_run_before(record, project)
    assert "before" not in record.results["gate@squad"]


@pytest.mark.parametrize(
    ("before", "spent"),
    [
        ({"options": {"to": ["first"]}, "plan": ["first"], "ended": "2026-11-23T10:00:40+0000"}, 42.0),
        ({"options": {"to": ["first"]}, "plan": ["first", "second"], "ended": "2026-11-23T10:00:40+0000"}, 0.0),
        ({"paused": "at a checkpoint", "ended": "2026-11-23T10:00:40+0000"}, 42.0),
        ({"details": {"changed": {"a": "1"}}, "options": {"to": ["first"]}, "plan": ["first"], "seconds": 40.0}, 0.0),
        ({"plan": ["first", "second"], "ended": "2026-11-23T10:00:40+0000"}, 0.0),
    ],
    ids=["a part", "the whole again", "paused", "other parameters", "done"],
)
def test_the_time_of_the_starts_that_a_run_continues_counts(tmp_path, before, spent):
    values = {"began": "2026-11-23T10:00:00+0000", "ended": "2026-11-23T10:00:40+0000", **before}
    RunReport(".", earlier_seconds=2.0, **values).save(tmp_path)
    run = RunReport(".", plan=["first", "second"])
    run.begin(tmp_path)
    assert run.earlier_seconds == spent
    run.end()
    assert run.seconds is not None
    run.save(tmp_path)
    assert read_report(tmp_path, tmp_path) is not None
    listed = listing.Run(".", tmp_path, run, False)
    assert listed.seconds == pytest.approx(spent + run.seconds)
