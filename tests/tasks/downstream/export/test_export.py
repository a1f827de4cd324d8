"""`podium export`, `podium predict --backend`, and exported files of every kind decided on by the gate."""

import dataclasses
import json
import resource
from pathlib import Path

import pytest
import torch
import transformers
from click.testing import CliRunner

from flows.cli import cli
from ipu_model.core.files import read_json, write_json
from tasks.downstream.export import export as export_stage
from tasks.downstream.export import onnx_files, speed
from tasks.downstream.export.model_export import draw_sequences
from tasks.downstream.export.onnx_files import compare_with_transformers, load_model, write_formats
from tasks.downstream.gate.exports import decide_export, gather_exports
from tasks.downstream.gate.subject import hash_files, make_subject
from tasks.downstream.inference.onnx_answers import open_session
from tasks.params.entries import find_entry
from tasks.params.schema import load_params
from tasks.stage.errors import InputError
from tests.tasks.downstream.entries import part_of
from tests.tasks.downstream.inference.applied_models import applied, staged
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import WORDS

FILES = ["onnx/model.onnx", "onnx/model_quantized.onnx"]


@pytest.fixture(autouse=True)
def _short(jobs_here, monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    monkeypatch.setattr(speed, "LENGTHS", (8,))


def gathered(task):
    subject, (task, examples) = make_subject(task.entry, load_params()), task.read_all()
    answers = task.outcomes_of(examples, task.read_predictions(Path("evaluation/plan/predictions.json"), examples))
    hashes = hash_files(subject.judged(Path("none"), Path()))
    return task, gather_exports(task, subject, examples, answers, hashes, Path())


def failed_checks(task, evidence):
    decision = decide_export(task, evidence)
    json.dumps(decision, allow_nan=False)
    assert decision["accepted"] is (not decision["reasons"])
    return {check["name"] for check in decision["checks"] if not check["ok"]}


def quantize_to_nan(source, target):
    """A file of which one output is never a number."""
    import onnx

    model = onnx.load(str(source))
    name = model.graph.output[0].name
    [last] = [node for node in model.graph.node if name in node.output]
    last.output[list(last.output).index(name)] = "before"
    model.graph.initializer.append(onnx.helper.make_tensor("nan", onnx.TensorProto.FLOAT, [], [float("nan")]))
    model.graph.node.append(onnx.helper.make_node("Add", ["before", "nan"], [name]))
    onnx.save(model, str(target))


@pytest.mark.parametrize("case", ["squad", pytest.param("ner", marks=pytest.mark.soak), "mine", "value"])
def test_files_are_judged_as_they_ship_and_one_with_logits_of_nan_is_rejected_alone(case, tmp_path, monkeypatch):
    model, _, described = applied(case, tmp_path)
    staged(tmp_path / "checkout", {**described, "export": {"formats": ["onnx", "int8"]}}, model.folder, monkeypatch)
    task = part_of(find_entry(load_params(), "plan"), "scores")
    metrics = export_stage.export(task)
    assert [record["name"] for record in metrics["exports"]] == FILES
    plain, small = metrics["exports"]
    assert max(plain["transformers_difference"], plain["logit_difference"]) <= 1e-4
    assert small["bytes"] < plain["bytes"]
    assert small["transformers_difference"] > plain["transformers_difference"]
    exported = read_json(Path("exports/plan/predictions/model.json"))
    answers = read_json(Path("evaluation/plan/predictions.json"))
    assert exported == ({"dev": pytest.approx(answers["dev"], abs=1e-4)} if case == "value" else answers)
    assert "onnx/model_quantized.onnx" in Path("measurements/export/plan/report.html").read_text()
    if case == "squad":
        before = {path: path.read_bytes() for path in Path("exports").rglob("*") if path.is_file()}
        assert export_stage.export(task) == metrics
        assert {path: path.read_bytes() for path in Path("exports").rglob("*") if path.is_file()} == before

    judged = make_subject(task.entry, load_params()).judged(Path("none"), Path())
    assert {f"exports/plan/{name}" for name in FILES} < {*judged}
    task, evidence = gathered(task)
    plain, small = (evidence[name] for name in FILES)
    names = {check["name"] for check in decide_export(task, plain)["checks"]} - failed_checks(task, plain)
    assert {"logits", "scores_belong", "predictions_complete"} <= names
    assert not [name for name in failed_checks(task, plain) if name.startswith("drop_")]

    # Each of these was accepted, or ended in a traceback.
    for change in ({"parity": None}, {"parity": 2e-4}, {"belongs": False}, {"answered": 1}):
        assert failed_checks(task, dataclasses.replace(plain, **change)), change
    lead = task.limits[0].metric
    fallen = dataclasses.replace(small.differences[lead], mean=-9.0, low=-12.0, high=-5.0, mcnemar=None)
    worse = dataclasses.replace(small, differences={**small.differences, lead: fallen})
    assert any("max_export_drop.int8" in reason for reason in decide_export(task, worse)["reasons"])
    Path("exports/plan", FILES[0]).write_bytes(b"other")
    assert [gathered(task)[1][name].belongs for name in FILES] == [False, True]
    with pytest.raises(InputError, match="is not an ONNX model"):
        open_session(Path("exports/plan", FILES[0]))

    monkeypatch.setattr(onnx_files, "quantize", quantize_to_nan)
    plain, small = export_stage.export(task)["exports"]
    for difference in ("logit_difference", "transformers_difference"):
        assert (plain[difference] <= 1e-4, small[difference]) == (True, None)
    task, evidence = gathered(task)
    plain, small = (failed_checks(task, evidence[name]) for name in FILES)
    assert {"logits", "predictions_complete"} <= small
    assert not {"logits", "predictions_complete", "scores_belong"} & plain
    assert "scores_belong" not in small


@pytest.mark.parametrize(
    ("calls", "known"), [(5, {"p50_ms"}), (20, {"p50_ms", "p95_ms"}), (100, {"p50_ms", "p95_ms", "p99_ms"})]
)
def test_a_percentile_takes_the_calls_that_it_needs(calls, known, monkeypatch):
    monkeypatch.setattr(speed, "MAX_CALLS", calls)
    monkeypatch.setattr(speed, "SECONDS", 1e9)
    monkeypatch.setattr(speed, "MOST_SECONDS", 1e9)
    [measured] = speed.measure(lambda ids: ids, [8], 100)
    assert measured["calls"] == calls
    assert {name for name, value in measured.items() if name.endswith("_ms") and value is not None} == known


@pytest.mark.parametrize(("family", "has_types"), [("electra", True), ("distilbert", False), ("xlm-roberta", False)])
def test_token_types_are_an_input_only_where_the_family_has_them(tmp_path, family, has_types):
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"vocab_size": 60, "max_position_embeddings": 66, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(family, **sizes, **({} if has_types else {"type_vocab_size": 1}))
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    path = write_formats(model, ["onnx"], tmp_path)["onnx"]
    assert ("token_type_ids" in {given.name for given in open_session(path).get_inputs()}) is has_types
    assert compare_with_transformers(model, path, draw_sequences(60, 60, 8)) == pytest.approx(0.0, abs=1e-4)


@pytest.fixture
def model(tmp_path):
    return write_head_model(tmp_path / "model", "sequence_classification", ("good", "short"), WORDS)


def test_a_folder_of_exported_files_predicts_without_weights(model, tmp_path):
    def podium(*words):
        return CliRunner().invoke(cli, [*map(str, words), "--json"])

    exported, words = tmp_path / "exported", ("--text", "word1 word2")
    assert {*json.loads(podium("export", model, "--out", exported).stdout)["bytes"]} == {*FILES}
    assert not list(exported.rglob("*.safetensors"))
    answer = json.loads(podium("predict", model, *words).stdout)
    for backend in ("onnx", "int8"):
        record = json.loads(podium("predict", exported, "--backend", backend, *words).stdout)
        assert record["label"] == answer["label"]
    refused = podium("predict", exported, *words)
    assert "has no weights" in f"{refused.output}{refused.exception}"


def claim(**values):
    return lambda folder: write_json(folder / "config.json", {**read_json(folder / "config.json"), **values})


def pickle_weights(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cut_weights(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (claim(hidden_size=16_384, intermediate_size=65_536), "parameters, the weights have"),
        (claim(vocab_size=2_000_000), "parameters, the weights have"),
        (claim(id2label={str(number): "x" for number in range(100_000)}), "parameters, the weights have"),
        (pickle_weights, "pytorch_model.bin is pickled"),
        (cut_weights, "model.safetensors is missing or damaged"),
    ],
)
def test_a_claim_is_refused_before_memory_is_taken(model, change, message):
    change(model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=message) as refused:
        load_model(model)
    assert "\n" not in str(refused.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10
