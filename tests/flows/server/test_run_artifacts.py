"""What a Prefect server knows of runs: names, tags, tables; asked of a real one after runs of the toy project."""

import json
import re
from types import SimpleNamespace

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.sorting import FlowRunSort

from flows import pipeline
from flows.server import run_artifacts
from flows.views import run_view
from tests.flows.toy_runs import run_json

DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d"
CHECKS = [
    {"name": "f1", "ok": True, "found": 80.5, "required": 80.0},
    {"name": "data_corpus", "ok": True, "found": "valid", "required": "valid"},
]


@pytest.fixture
def gate_with_checks(toy_project):
    """The toy's gate writes checks, as real ones do."""
    stage = toy_project / "stage.py"
    said = stage.read_text().replace('"reasons": []', f'"checks": {CHECKS!r}, "reasons": []')
    assert said != stage.read_text()
    stage.write_text(said)


def flow_runs_artifacts(run):
    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
        return client.read_artifacts(artifact_filter=wanted)


def last_run():
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)[0]


def tables_of(run):
    """Key -> the text of each Markdown artifact of a flow run."""
    found = flow_runs_artifacts(run)
    assert all(one.description for one in found), "each says what it is"
    return {one.key: one.data for one in found if one.type == "markdown"}


def run(*overrides, **options):
    pipeline.pipeline(None, list(overrides), return_state=True, **options)
    return last_run()


def row(text, first):
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_a_published_run_is_named_by_its_score_and_has_three_tables(prefect_session, toy_project, gate_with_checks):
    """Space around what is typed into the form counts for nothing."""
    found = run(" downstream.squad.gate.min_f1=80.0\n", name="mine\n")
    assert run_json(toy_project)["folder"] == "runs/checkouts/mine"
    assert re.fullmatch(rf"mine f1 80\.50 {DATE}", found.name)
    assert set(found.tags) == {"task:squad", "device:cpu"}
    tables = tables_of(found)
    assert set(tables) == {"podium-run", "podium-metrics", "podium-gate"}
    summary = tables["podium-run"]
    assert summary.startswith("## Podium run: published\n")
    assert row(summary, "second")[1] == "ran"
    assert f":{toy_project.resolve()}/runs/checkouts/mine/reports/run.html`" in summary
    assert f":{toy_project.resolve()}/published/podium-demo`" in summary
    assert row(tables["podium-metrics"], "squad | f1")[2:] == ["80.50", "none", "80"]
    assert row(tables["podium-gate"], "f1")[1:] == [
        "80.5",
        "80 (lowered from 85)",
        "+0.5",
        "passed with a lowered floor",
    ]
    assert row(tables["podium-gate"], "data_corpus")[1:] == ["valid", "valid", "", "passed"]


def test_runs_that_end_otherwise_are_named_by_that(prefect_session, toy_project, monkeypatch):
    """What the form leaves empty counts as not said."""
    found = run("", " ", to=["\n"], name=" \n", device_queue="")
    assert re.fullmatch(rf"params\.yaml rejected {DATE}", found.name)
    record = run_json(toy_project)
    assert (record["folder"], record["preset"], record["command"]) == (".", None, "podium run")
    monkeypatch.setenv("TOY_FAILS", "second")
    failed = run("downstream.squad.finetune.learning_rate=3e-5")
    assert failed.name.startswith("params.yaml failed ")
    tables = tables_of(failed)
    assert "told to fail" in tables["podium-run"]
    assert row(tables["podium-run"], "second")[1] == "failed"
    assert "podium-gate" not in tables, "no gate decided"


def test_figures_that_somebody_broke_cost_the_run_its_tables_and_nothing_else(
    prefect_session, toy_project, monkeypatch, caplog
):
    for table in ("render_metrics", "render_gates"):
        monkeypatch.setattr(run_view, table, lambda run: json.loads("["))
    found = run("downstream.squad.gate.min_f1=80.0", name="mine")
    assert (toy_project / "runs/checkouts/mine/metrics/squad-gate.json").exists()
    assert set(tables_of(found)) == {"podium-run"}
    assert found.state.is_completed()
    assert "cannot create podium-gate of this run on the server: JSONDecodeError" in caplog.text


@pytest.mark.parametrize(
    ("typed", "tags", "called"),
    [
        ("evening", [], "evening"),
        ("Monday's run", [], "Monday-s-run"),
        ("evening f1 80.50 2026-11-23 14:05", [], "evening"),  # started again
        ("!!!", [], None),
        ("clever-badger", ["auto-scheduled"], None),
    ],
)
def test_a_run_has_the_name_that_was_typed_into_prefects_own_field(monkeypatch, typed, tags, called):
    monkeypatch.setattr(run_artifacts, "flow_run", SimpleNamespace(name=typed, tags=tags, parameters={}))
    assert run_artifacts.read_run_name(None) is None, "a run of a shell has a name of Prefect's"
    monkeypatch.setattr(run_artifacts, "is_sent", lambda: True)
    assert run_artifacts.read_run_name(None) == called
    assert run_artifacts.read_run_name("mine") == "mine"
    assert run_artifacts.format_start_name().startswith(f"{called or 'params.yaml'} 20")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"overrides": ["pretrain.sed=7"]}, "did you mean seed?"),
        ({"preset": "bort"}, "preset 'bort'"),
        ({"preset": "bort", "kind": "classification"}, "kind classification does not use preset bort"),
        # Not the demo's data.
        ({"model": "bert", "train": "a.csv", "columns": ["text=a"]}, "model, train, columns are of a fine-tuning"),
    ],
)
def test_a_bad_value_in_the_form_is_answered_in_our_words(
    prefect_session, toy_project, monkeypatch, caplog, fields, said
):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "17")
    state = pipeline.pipeline(**fields, return_state=True)
    assert state.is_failed()
    assert said in state.message
    (line,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert line.getMessage() == state.message, "who looks for errors in the log of the run finds it"
