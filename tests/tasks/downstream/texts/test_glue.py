"""GLUE from files to a published classifier: SST-2 as it is, and tasks of every other kind on generated examples."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.downstream import evaluate, examples, parity, rows
from tasks.downstream.jobs import entry_jobs
from tasks.downstream.texts.task_table import TASKS
from tasks.release import publish
from tasks.stage.errors import GateRejected
from tests.places import ROOT, SHARED
from tests.tasks.downstream.texts.glue_checkout import (
    change,
    make_checkout,
    read_json,
    run_entry,
    run_stage,
    word_vocabulary,
    write_examples,
)

REAL = SHARED / "data"
JOBS = ("compile", "finetune", "predict")
pytestmark = pytest.mark.usefixtures("jobs_here")


@pytest.fixture
def sst2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a part of the real training sentences and all of the real development set."""
    if not REAL.is_dir():
        pytest.skip(f"needs the public development data in {REAL}")
    data = tmp_path / "data" / "sst2"
    data.mkdir(parents=True)
    lines = (REAL / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()
    (data / "train.tsv").write_text("\n".join(lines[:1600]), encoding="utf-8")
    (data / "dev.tsv").write_bytes((REAL / "sst2" / "dev.tsv").read_bytes())
    vocabulary, tuning = REAL / "vocab" / "bert-base-uncased.txt", {"epochs": 2, "learning_rate": 3e-3}
    folder = make_checkout(tmp_path / "checkout", data.parent, "sst2", vocabulary, **tuning)
    monkeypatch.chdir(folder)
    return folder


def test_sst2_beats_the_majority_class_is_published_and_loads_in_transformers(
    sst2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    metrics = run_entry(sst2, "sst2", monkeypatch)
    said = capsys.readouterr().out
    assert "1,600 train, 872 dev examples" in said
    assert metrics["examples"] == 872
    assert metrics["constant_score"] == pytest.approx(100 * 444 / 872, abs=1e-4)
    assert metrics["accuracy_low"] > metrics["constant_score"], "of the real development set"
    gate = read_json(sst2 / "metrics/sst2-gate.json")
    assert gate["accepted"], gate["reasons"]
    assert {check["name"] for check in gate["checks"]} >= {"beats_constant_answer", "data_sst2-rows"}
    assert read_json(sst2 / "metrics/sst2-finetune.json")["packing_factor"] > 2
    run_stage(publish, "sst2")
    published = sst2 / "published/sst2"
    card = (published / "README.md").read_text(encoding="utf-8")
    assert "text-classification" in card
    assert f"| accuracy | {metrics['accuracy']:.2f} |" in card
    tokenizer = AutoTokenizer.from_pretrained(published)
    model = AutoModelForSequenceClassification.from_pretrained(published).eval()
    assert model.config.id2label == {0: "negative", 1: "positive"}
    lines = (REAL / "sst2" / "dev.tsv").read_text(encoding="utf-8").splitlines()
    predicted = read_json(sst2 / "evaluation/sst2/predictions.json")["dev"]
    assert len(predicted) == 872
    for number in (0, 1, 500, 871):
        encoded = tokenizer(lines[number].split("\t")[0], truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            assert int(model(**encoded).logits.argmax()) == predicted[number], number


def test_values_of_pairs_run_from_rows_to_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_examples(tmp_path / "data", "stsb")
    folder = make_checkout(tmp_path / "checkout", tmp_path / "data", "stsb", word_vocabulary(tmp_path / "vocab.txt"))
    metrics = run_entry(folder, "stsb", monkeypatch)
    assert_scores(folder, "stsb", metrics, {"pearson", "spearman"})
    assert metrics["score_low"] > metrics["constant_score"], "the first word says it all"


def assert_scores(folder: Path, name: str, metrics: dict[str, Any], names: set[str]) -> None:
    """The score is the mean of the metrics, and every example of every development set has a prediction."""
    assert {key.removesuffix("_low") for key in metrics if key.endswith("_low")} == {*names, "score"}
    assert metrics["score"] == pytest.approx(np.mean([metrics[key] for key in names]), abs=1e-3)
    predictions = read_json(folder / f"evaluation/{name}/predictions.json")
    assert {split: len(values) for split, values in predictions.items()} == dict.fromkeys(dict(TASKS[name].dev), 60)
    assert TASKS[name].title in (folder / f"evaluation/{name}/report.html").read_text(encoding="utf-8")


def test_two_places_are_compared_on_both_development_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_examples(tmp_path / "data", "mnli", train=40)
    vocabulary = word_vocabulary(tmp_path / "vocab.txt")
    folder = make_checkout(tmp_path / "checkout", tmp_path / "data", "mnli", vocabulary, epochs=1)
    metrics = run_entry(folder, "mnli", monkeypatch)
    assert_scores(folder, "mnli", metrics, {"accuracy_matched", "accuracy_mismatched"})
    run_stage(parity, "mnli", "cpu:bf16")
    found = read_json(folder / "metrics/mnli-parity-cpu:bf16.json")
    assert found["examples"] == 120
    assert 0 < found["max_logit_difference"] < found["max_logit"]
    assert {"accuracy_matched_first", "accuracy_mismatched_second", "score_difference"} <= set(found)


def test_what_does_not_beat_the_constant_answer_is_rejected_and_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_examples(tmp_path / "data", "rte", train=40, dev=40)
    vocabulary, tuning = word_vocabulary(tmp_path / "vocab.txt"), {"learning_rate": 1e-9, "epochs": 1}
    folder = make_checkout(tmp_path / "checkout", tmp_path / "data", "rte", vocabulary, **tuning)
    run_entry(folder, "rte", monkeypatch)
    gate = read_json(folder / "metrics/rte-gate.json")
    assert not gate["accepted"]
    assert [reason for reason in gate["reasons"] if "no better than" in reason]
    with pytest.raises(GateRejected, match="nothing was published"):
        run_stage(publish, "rte")
    assert not (folder / "published").exists()


@pytest.fixture
def _poptorch_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The double of tests/ipu_model, for one test; what it left is put away, as other tests have no PopTorch."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "doubles" / "poptorch_double"))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "poptorch" and name not in before]:
        del sys.modules[name]


@pytest.mark.usefixtures("_poptorch_double")
def test_on_ipus_the_programs_are_built_ahead_and_found_by_training_and_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer on the second of two IPUs, classes of a pair, packed."""
    monkeypatch.setattr(entry_jobs.training, "require_verdict", lambda *words, **named: None)
    write_examples(tmp_path / "data", "rte", train=60, dev=20)
    vocabulary, tuning = word_vocabulary(tmp_path / "vocab.txt"), {"micro_batch_size": 1, "max_grad_norm": None}
    folder = make_checkout(tmp_path / "checkout", tmp_path / "data", "rte", vocabulary, epochs=1, **tuning)
    programs_of = {"layers_per_ipu": [0, 1], "inference_layers_per_ipu": [0, 1], "inference_device_iterations": 3}
    entry = {"rte": {"ipu": {"finetune": programs_of, "predict": programs_of}}}
    change(folder, {"device": {"runtime": "ipu", "precision": "fp32", "micro_batch_size": 1}, "downstream": entry})
    monkeypatch.chdir(folder)
    for module, stage in ((examples, ""), (rows, ""), *((entry_jobs, f"{one}@") for one in JOBS), (evaluate, "")):
        run_stage(module, f"{stage}rte")
    assert read_json(folder / "reports/compile-rte-finetune.json")["parts"]["labels"] == 2
    for kind in ("finetune", "predict"):
        assert read_json(folder / f"measurements/rte-{kind}.json")["program"] == "loaded from the cache", kind
    assert read_json(folder / "metrics/rte.json")["examples"] == 20
