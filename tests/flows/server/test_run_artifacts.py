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
from tests.flows import toy_runs
from tests.flows.toy_runs import ACCEPTED, FASTER, run_json

DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d"
CHECKS = [
    {"name": "f1", "ok": True, "found": 80.5, "required": 80.0},
    {"name": "data_corpus", "ok": True, "found": "valid", "required": "valid"},
]


def run(*overrides, **options):
    """The flow run of a run, and by key the text of each of its Markdown artifacts."""
    toy_runs.run(*overrides, **options)
    with get_client(sync_client=True) as client:
        [run] = client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)
        wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
        artifacts = client.read_artifacts(artifact_filter=wanted)
    assert all(artifact.description for artifact in artifacts), "each says what it is"
    return run, {artifact.key: artifact.data for artifact in artifacts if artifact.type == "markdown"}


def row(text, first):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_a_published_run_is_named_by_its_score_and_has_three_tables(prefect_session, toy_project):
    """Space around what is typed into the form counts for nothing; the toy's gate writes checks, as real ones do."""
    stage = toy_project / "stage.py"
    stage.write_text(stage.read_text().replace('"reasons": []', f'"checks": {CHECKS!r}, "reasons": []'))
    flow_run, tables = run(f" {ACCEPTED[0]}\n", name="mine\n")
    assert run_json(toy_project)["folder"] == "runs/checkouts/mine"
    assert re.fullmatch(rf"mine f1 80\.50 {DATE}", flow_run.name)
    assert set(flow_run.tags) == {"task:squad", "device:cpu"}
    assert set(tables) == {"podium-run", "podium-metrics", "podium-gate"}
    summary, gate = tables["podium-run"], tables["podium-gate"]
    assert summary.startswith("## Podium run: published\n")
    assert row(summary, "second")[1] == "ran"
    for place in ("runs/checkouts/mine/reports/run.html", "published/podium-demo"):
        assert f":{toy_project.resolve()}/{place}`" in summary
    assert row(tables["podium-metrics"], "squad | f1")[2:] == ["80.50", "none", "80"]
    assert row(gate, "f1")[1:] == ["80.5", "80 (lowered from 85)", "+0.5", "passed with a lowered floor"]
    assert row(gate, "data_corpus")[1:] == ["valid", "valid", "", "passed"]


def test_runs_that_end_otherwise_are_named_by_that(prefect_session, toy_project, monkeypatch):
    """What the form leaves empty counts as not said."""
    flow_run, _ = run("", " ", to=["\n"], name=" \n", device_queue="")
    assert re.fullmatch(rf"params\.yaml rejected {DATE}", flow_run.name)
    record = run_json(toy_project)
    assert (record["folder"], record["preset"], record["command"]) == (".", None, "podium run")
    monkeypatch.setenv("TOY_FAILS", "second")
    flow_run, tables = run(FASTER)
    assert flow_run.name.startswith("params.yaml failed ")
    assert "told to fail" in tables["podium-run"]
    assert row(tables["podium-run"], "second")[1] == "failed"
    assert "podium-gate" not in tables, "no gate decided"


def test_figures_that_somebody_broke_cost_the_run_its_tables_and_nothing_else(
    prefect_session, toy_project, monkeypatch, caplog
):
    for table in ("render_metrics", "render_gates"):
        monkeypatch.setattr(run_view, table, lambda run: json.loads("["))
    flow_run, tables = run(*ACCEPTED, name="mine")
    assert (toy_project / "runs/checkouts/mine/metrics/squad-gate.json").exists()
    assert (set(tables), flow_run.state.is_completed()) == ({"podium-run"}, True)
    assert "cannot create podium-gate of this run on the server: JSONDecodeError" in caplog.text


@pytest.mark.parametrize(
    ("typed", "tags", "name"),
    [
        ("Monday's run", [], "Monday-s-run"),
        ("evening f1 80.50 2026-11-23 14:05", [], "evening"),  # started again
        ("!!!", [], None),
        ("clever-badger", ["auto-scheduled"], None),
    ],
)
def test_a_run_has_the_name_that_was_typed_into_prefects_own_field(monkeypatch, typed, tags, name):
    monkeypatch.setattr(run_artifacts, "flow_run", SimpleNamespace(name=typed, tags=tags, parameters={}))
    assert run_artifacts.read_run_name(None) is None, "a run of a shell has a name of Prefect's"
    monkeypatch.setattr(run_artifacts, "is_sent", lambda: True)
    assert run_artifacts.read_run_name(None) == name
    assert run_artifacts.read_run_name("mine") == "mine"
    assert run_artifacts.format_start_name().startswith(f"{name or 'params.yaml'} 20")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"overrides": ["pretrain.sed=7"]}, "did you mean seed?"),
        ({"preset": "bort", "kind": "classification"}, "kind classification does not use preset bort"),
        ({"model": "bert", "train": "a.csv", "columns": ["text=a"]}, "model, train, columns are of a fine-tuning"),
    ],
)
def test_a_bad_value_in_the_form_is_answered_in_our_words(
    prefect_session, toy_project, monkeypatch, caplog, fields, reason
):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "17")
    state = pipeline.pipeline(**fields, return_state=True)
    assert (state.is_failed(), reason in state.message) == (True, True)
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert message == state.message, "who looks for errors in the log of the run finds it"
