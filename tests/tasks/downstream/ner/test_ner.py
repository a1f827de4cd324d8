"""Named entities from a CoNLL file to a published model, whose logits in transformers are those that were scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from test_ner_tags import conlleval

from tasks.downstream import evaluate, examples, parity, rows
from tasks.downstream.gate import gate
from tasks.downstream.jobs import entry_jobs as jobs
from tasks.jobs import training
from tasks.release import publish
from tests.tasks.downstream.ner.ner_checkout import NAME, make_checkout, values_of, write_sentences
from tests.tasks.downstream.texts.glue_checkout import device_job_here, run_stage

LABELS = ["O", "B-person", "I-person", "B-place", "I-place"]
Sentences = list[tuple[list[str], list[str]]]


@pytest.fixture(autouse=True)
def _jobs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (training, jobs, parity):
        monkeypatch.setattr(module, "run_device_job", device_job_here)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All stages up to the gate."""
    monkeypatch.chdir(folder)
    run_stage(examples, NAME)
    run_stage(rows, NAME)
    for module, stage in ((jobs, "finetune"), (jobs, "predict"), (evaluate, "evaluate"), (gate, "gate")):
        run_stage(module, f"{stage}@{NAME}")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sentences]:
    """Files of both splits, and the dev sentences."""
    folder = tmp_path_factory.mktemp("data")
    write_sentences(folder / "train.conll", 300, seed=0)
    return folder, write_sentences(folder / "dev.conll", 60, seed=1)


def own_logits(folder: Path) -> list[np.ndarray]:
    """Logits [tokens, classes] of every window."""
    with pa.memory_map(str(folder / f"predictions/{NAME}/dev.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    return [np.array(one).reshape(-1, len(LABELS)) for one in table["logits"].to_pylist()]


def test_entities_are_learnt_scored_as_conlleval_does_published_and_the_same_in_transformers(
    tmp_path: Path, data: tuple[Path, Sentences], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    folder, dev = make_checkout(tmp_path / "checkout", data[0]), data[1]
    run(folder, monkeypatch)
    metrics = values_of(folder / f"metrics/{NAME}.json")
    assert (metrics["examples"], metrics["constant_score"]) == (60, 0)
    predicted = values_of(folder / f"evaluation/{NAME}/predictions.json")["dev"]
    counts = np.array([conlleval(tags, one.split()) for (_, tags), one in zip(dev, predicted, strict=True)]).sum(axis=0)
    assert metrics["f1"] == pytest.approx(200 * counts[2] / (counts[0] + counts[1]), abs=1e-4)
    assert metrics["f1_low"] > 90, "each word has one tag"
    assert {part["slice"] for part in metrics["slices"] if part["by"] == "type"} == {"person", "place"}
    verdict = values_of(folder / f"metrics/{NAME}-gate.json")
    assert verdict["accepted"], verdict["reasons"]
    run_stage(publish, NAME)
    published = folder / "published" / NAME
    card = (published / "README.md").read_text(encoding="utf-8")
    assert "token-classification" in card
    assert f"| F1 | {metrics['f1']:.2f} |" in card
    tokenizer = AutoTokenizer.from_pretrained(published)
    model = AutoModelForTokenClassification.from_pretrained(published).eval()
    assert [model.config.id2label[number] for number in range(len(LABELS))] == LABELS
    logits = iter(own_logits(folder))
    for (words, _), tags in zip(dev, predicted, strict=True):
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        found = next(logits)
        if len(words) > 30:  # of several windows
            while len(found) == 32:
                found = next(logits)
            continue
        with torch.no_grad():
            theirs = model(**encoded).logits[0].numpy()
        np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-5)
        assert [LABELS[number] for number in theirs[1:-1].argmax(axis=1)] == tags.split()


def test_held_out_sentences_choose_the_weights_and_two_places_are_compared(
    tmp_path: Path, data: tuple[Path, Sentences], monkeypatch: pytest.MonkeyPatch
) -> None:
    sections: dict[str, Any] = {
        "rows": {"held_out_fraction": 0.2},
        "finetune": {"evaluate_every_updates": 20, "keep": "best", "epochs": 3.0},
        "parity": {"against": ["cpu:bf16"]},
    }
    folder = make_checkout(tmp_path / "checkout", data[0], **sections)
    run(folder, monkeypatch)
    held_out = values_of(folder / f"metrics/{NAME}-finetune.json")["held_out"]
    assert 0 < held_out["token_accuracy"] <= 1
    names = {check["name"] for check in values_of(folder / f"reports/validation/{NAME}-rows.json")["checks"]}
    assert "held-out labels" in names
    run_stage(parity, f"{NAME}-cpu:bf16")
    found = values_of(folder / f"metrics/{NAME}-parity-cpu:bf16.json")
    assert 0 < found["max_logit_difference"] < found["max_logit"]
    assert {"f1_first", "f1_second", "precision_difference", "token_accuracy_first"} <= set(found)
