"""Named entities from a CoNLL file to a published model."""

import numpy as np
import pytest

from tasks.release import publish
from tests.tasks.downstream.ner.ner_checkout import NAME, conlleval, make_checkout, write_sentences
from tests.tasks.downstream.texts.glue_checkout import read_json, run_entry, run_stage

pytestmark = pytest.mark.usefixtures("jobs_here")


def test_entities_are_learnt_scored_as_conlleval_does_and_published(tmp_path, monkeypatch):
    write_sentences(tmp_path / "train.conll", 300, seed=0)
    dev = write_sentences(tmp_path / "dev.conll", 60, seed=1)
    folder = make_checkout(tmp_path / "checkout", tmp_path)
    metrics = run_entry(folder, NAME, monkeypatch)
    assert (metrics["examples"], metrics["constant_score"]) == (60, 0)
    predicted = read_json(folder / f"evaluation/{NAME}/predictions.json")["dev"]
    counts = np.array([conlleval(tags, one.split()) for (_, tags), one in zip(dev, predicted, strict=True)]).sum(axis=0)
    assert metrics["f1"] == pytest.approx(200 * counts[2] / (counts[0] + counts[1]), abs=1e-4)
    assert metrics["f1_low"] > 90, "each word has one tag"
    assert {part["slice"] for part in metrics["slices"] if part["by"] == "type"} == {"person", "place"}
    verdict = read_json(folder / f"metrics/{NAME}-gate.json")
    assert verdict["accepted"], verdict["reasons"]
    run_stage(publish, NAME)
    published = folder / "published" / NAME
    card = (published / "README.md").read_text(encoding="utf-8")
    assert "token-classification" in card
    assert f"| F1 | {metrics['f1']:.2f} |" in card
