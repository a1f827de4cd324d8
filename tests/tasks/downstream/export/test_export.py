"""Exported files of every kind of task, answered by onnxruntime and decided on by the gate."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tasks.downstream.export import export as export_stage
from tasks.downstream.export import onnx_files, speed
from tasks.downstream.gate.exports import decide_export, gather_exports
from tasks.downstream.gate.subject import hash_files, make_subject
from tasks.downstream.inference.onnx_answers import open_session
from tasks.params.entries import find_entry
from tasks.params.schema import load_params
from tasks.stage.errors import InputError
from tests.tasks.downstream.entries import part_of
from tests.tasks.downstream.inference.applied_models import applied, staged

FILES = ["onnx/model.onnx", "onnx/model_quantized.onnx"]


@pytest.fixture(autouse=True)
def _short(jobs_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    monkeypatch.setattr(speed, "LENGTHS", (8,))


@pytest.mark.parametrize("case", ["squad", pytest.param("ner", marks=pytest.mark.soak), "mine"])
def test_files_are_judged_as_they_ship(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, described = applied(case, tmp_path)
    staged(tmp_path / "checkout", {**described, "export": {"formats": ["onnx", "int8"]}}, model.folder, monkeypatch)
    params = load_params()
    task: Any = part_of(find_entry(params, "plan"), "scores")
    metrics = export_stage.export(task)
    assert [one["name"] for one in metrics["exports"]] == FILES
    plain, small = metrics["exports"]
    assert plain["transformers_difference"] <= 1e-4
    assert plain["logit_difference"] <= 1e-4
    assert small["bytes"] < plain["bytes"]
    assert small["transformers_difference"] > plain["transformers_difference"]
    answers = Path("exports/plan/predictions/model.json").read_text()
    assert json.loads(answers) == json.loads(Path("evaluation/plan/predictions.json").read_text())
    page = Path("measurements/export/plan/report.html").read_text()
    assert "onnx/model_quantized.onnx" in page
    assert "<svg" in page
    if case == "squad":
        before = {path: path.read_bytes() for path in Path("exports").rglob("*") if path.is_file()}
        assert export_stage.export(task) == metrics
        assert {path: path.read_bytes() for path in Path("exports").rglob("*") if path.is_file()} == before

    subject = make_subject(task.entry, params)
    task, examples = task.read_all()
    own = task.outcomes_of(examples, task.read_predictions(Path("evaluation/plan/predictions.json"), examples))
    judged = subject.judged(Path("none"), Path())
    assert {f"exports/plan/{name}" for name in FILES} < {*judged}
    found = gather_exports(task, subject, examples, own, hash_files(judged), Path())
    checks = {check["name"]: check["ok"] for check in decide_export(task, found[FILES[0]])["checks"]}
    assert checks["logits"]
    assert checks["scores_belong"]
    assert checks["predictions_complete"]
    assert all(ok for name, ok in checks.items() if name.startswith("drop_"))

    # Each of these was accepted, or ended in a traceback.
    for change in ({"parity": None}, {"parity": 2e-4}, {"belongs": False}, {"answered": 1}):
        verdict = decide_export(task, dataclasses.replace(found[FILES[0]], **change))
        assert not verdict["accepted"], change
        assert verdict["reasons"], change
        json.dumps(verdict, allow_nan=False)
    lead = task.limits[0].metric
    fallen = dataclasses.replace(found[FILES[1]].differences[lead], mean=-9.0, low=-12.0, high=-5.0, mcnemar=None)
    worse = dataclasses.replace(found[FILES[1]], differences={**found[FILES[1]].differences, lead: fallen})
    assert any("max_export_drop.int8" in reason for reason in decide_export(task, worse)["reasons"])
    Path("exports/plan", FILES[0]).write_bytes(b"other")
    other = gather_exports(task, subject, examples, own, hash_files(judged), Path())
    assert not other[FILES[0]].belongs
    assert other[FILES[1]].belongs
    with pytest.raises(InputError, match="is not an ONNX model"):
        open_session(Path("exports/plan", FILES[0]))


def quantize_to_nan(source: Path, target: Path) -> None:
    """A file of which one output is never a number."""
    import onnx

    model = onnx.load(str(source))
    name = model.graph.output[0].name
    [last] = [node for node in model.graph.node if name in node.output]
    last.output[list(last.output).index(name)] = "before"
    model.graph.initializer.append(onnx.helper.make_tensor("nan", onnx.TensorProto.FLOAT, [], [float("nan")]))
    model.graph.node.append(onnx.helper.make_node("Add", ["before", "nan"], [name]))
    onnx.save(model, str(target))


@pytest.mark.parametrize(
    "case", ["squad", "value", *(pytest.param(case, marks=pytest.mark.soak) for case in ("ner", "mine"))]
)
def test_a_file_with_logits_that_are_not_finite_is_rejected_alone(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, described = applied(case, tmp_path)
    staged(tmp_path / "checkout", {**described, "export": {"formats": ["onnx", "int8"]}}, model.folder, monkeypatch)
    monkeypatch.setattr(onnx_files, "quantize", quantize_to_nan)
    params = load_params()
    task: Any = part_of(find_entry(params, "plan"), "scores")
    plain, small = export_stage.export(task)["exports"]
    for difference in ("logit_difference", "transformers_difference"):
        assert (plain[difference] <= 1e-4, small[difference]) == (True, None)
    assert "onnx/model_quantized.onnx" in Path("measurements/export/plan/report.html").read_text()
    subject, (task, examples) = make_subject(task.entry, params), task.read_all()
    own = task.outcomes_of(examples, task.read_predictions(Path("evaluation/plan/predictions.json"), examples))
    hashes = hash_files(subject.judged(Path("none"), Path()))
    verdicts = {
        name: decide_export(task, one)
        for name, one in gather_exports(task, subject, examples, own, hashes, Path()).items()
    }
    failed = {name: [check["name"] for check in one["checks"] if not check["ok"]] for name, one in verdicts.items()}
    assert {"logits", "predictions_complete"} <= {*failed[FILES[1]]}
    assert not {"logits", "predictions_complete", "scores_belong"} & {*failed[FILES[0]]}
    assert "scores_belong" not in failed[FILES[1]]
    json.dumps(verdicts, allow_nan=False)


@pytest.mark.parametrize(
    ("calls", "known"), [(5, {"p50_ms"}), (20, {"p50_ms", "p95_ms"}), (100, {"p50_ms", "p95_ms", "p99_ms"})]
)
def test_a_percentile_takes_the_calls_that_it_needs(calls: int, known: set[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(speed, "MAX_CALLS", calls)
    monkeypatch.setattr(speed, "SECONDS", 1e9)
    monkeypatch.setattr(speed, "MOST_SECONDS", 1e9)
    [found] = speed.measure(lambda ids: ids, [8], 100)
    assert found["calls"] == calls
    assert {name for name, value in found.items() if name.endswith("_ms") and value is not None} == known
