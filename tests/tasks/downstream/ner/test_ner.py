"""Named entities from a CoNLL file to a published model, whose logits in transformers are those that were scored."""

import numpy as np
import pytest
import torch

from tasks.release import publish
from tests.tasks.downstream.ner.ner_checkout import NAME, conlleval, make_checkout, write_sentences
from tests.tasks.downstream.texts.glue_checkout import own_logits, read_json, run_entry, run_stage

LABELS = ["O", "B-person", "I-person", "B-place", "I-place"]
pytestmark = pytest.mark.usefixtures("jobs_here")


def test_entities_are_learnt_scored_as_conlleval_does_published_and_the_same_in_transformers(tmp_path, monkeypatch):
    from transformers import AutoModelForTokenClassification, AutoTokenizer

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
    tokenizer = AutoTokenizer.from_pretrained(published)
    model = AutoModelForTokenClassification.from_pretrained(published).eval()
    assert [model.config.id2label[number] for number in range(len(LABELS))] == LABELS
    logits = (one.reshape(-1, len(LABELS)) for one in own_logits(folder, NAME))
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
