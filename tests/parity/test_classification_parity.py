"""Classes and values of sequences against BertForSequenceClassification, on samples without padding."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CONFIG
from samples import make_batch, make_models, samples
from test_transformers_parity import assert_same_gradients, gradients
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

HEAD = "sequence_classification"
KINDS = pytest.mark.parametrize("kind", [HEAD, "sequence_multilabel", "sequence_regression"])


@KINDS
def test_loss_and_gradients_equal_transformers_on_unpadded_samples(tmp_path: Path, kind: str) -> None:
    """Cross-entropy of three classes, binary of three labels, squared error of a value, as problem_type says."""
    ours, theirs = make_models(tmp_path / "model", kind, CONFIG, BertForSequenceClassification)
    theirs.eval()
    batch = make_batch(tmp_path / "rows", kind, CONFIG)
    losses = []
    for sample in samples(batch):
        del sample["feature_id"]
        losses.append(theirs(**sample).loss)
    expected = torch.stack(losses).mean()
    expected.backward()
    loss, parts, found = gradients(ours, HEAD, batch, micro_batch=len(batch.rows))
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert parts == {"label_loss": pytest.approx(loss, rel=1e-6)}
    assert_same_gradients(found, theirs)
    smaller, _, cut = gradients(ours, HEAD, batch, micro_batch=4)
    assert smaller == pytest.approx(loss, rel=1e-6)
    for name, gradient in found.items():
        torch.testing.assert_close(cut[name], gradient, rtol=1e-5, atol=1e-5 * max(1.0, float(gradient.abs().max())))


def test_three_updates_with_several_labels_end_at_the_weights_of_transformers(tmp_path: Path) -> None:
    kind = "sequence_multilabel"
    ours, theirs = make_models(tmp_path / "model", kind, CONFIG, AutoModelForSequenceClassification)
    assert theirs.config.problem_type == "multi_label_classification"
    batch = make_batch(tmp_path / "rows", kind, CONFIG)
    runtime = TorchRuntime(ours, HEAD, 4, "fp32", optimizer_config(learning_rate=1e-3, weight_decay=0.0), 0)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-6)
    theirs.eval()  # without dropout
    for _ in range(3):
        optimizer.zero_grad()
        losses = [theirs(**{k: x for k, x in sample.items() if k != "feature_id"}).loss for sample in samples(batch)]
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        assert runtime.train_step(batch, 1e-3).loss == pytest.approx(loss.item(), rel=1e-5)
    found = runtime.state_dict()
    for name, value in theirs.state_dict().items():
        if not name.endswith("key.bias"):  # its gradient is 0 but for rounding, which Adam scales up
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


def test_balanced_classes_have_the_loss_and_the_updates_of_torchs_weighted_mean(tmp_path: Path) -> None:
    weights = np.array([0.4, 3.0, 1.5])
    ours, theirs = make_models(tmp_path / "model", HEAD, CONFIG, AutoModelForSequenceClassification)
    batch = dataclasses.replace(make_batch(tmp_path / "rows", HEAD, CONFIG), class_weights=weights)
    runtime = TorchRuntime(ours, HEAD, 4, "fp32", optimizer_config(learning_rate=1e-3, weight_decay=0.0), 0)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-6)
    theirs.eval()  # without dropout
    mean = torch.nn.CrossEntropyLoss(torch.from_numpy(weights).float())
    for _ in range(3):
        optimizer.zero_grad()
        answers = [
            (theirs(x["input_ids"], token_type_ids=x["token_type_ids"]).logits, x["labels"]) for x in samples(batch)
        ]
        loss = mean(*map(torch.cat, zip(*answers, strict=True)))
        loss.backward()
        optimizer.step()
        assert runtime.train_step(batch, 1e-3).loss == pytest.approx(loss.item(), rel=1e-5)
    found = runtime.state_dict()
    for name, value in theirs.state_dict().items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


@KINDS
def test_packed_rows_give_the_logits_of_one_sequence_at_a_time(tmp_path: Path, kind: str) -> None:
    ours, theirs = make_models(tmp_path / "model", kind, CONFIG, AutoModelForSequenceClassification)
    assert type(theirs).__name__ == "BertForSequenceClassification"
    batch = make_batch(tmp_path / "rows", kind, CONFIG)
    found = {x.feature_id: x.columns["logits"] for x in TorchRuntime(ours, HEAD, 4, "fp32", None, 0).predict(batch)}
    theirs.eval()
    seen = 0
    for sample in samples(batch):
        with torch.no_grad():
            alone = theirs(input_ids=sample["input_ids"], token_type_ids=sample["token_type_ids"]).logits[0]
        np.testing.assert_allclose(found[int(sample["feature_id"])], alone.numpy(), rtol=1e-5, atol=1e-5)
        seen += 1
    assert seen == len(found) == batch.sequences


def test_other_tokens_in_a_neighbouring_sequence_change_no_logits(tmp_path: Path) -> None:
    """Foreign positions are excluded from attention, not zeroed."""
    ours, _ = make_models(tmp_path / "model", HEAD, CONFIG, BertForSequenceClassification)
    batch = make_batch(tmp_path / "rows", HEAD, CONFIG)
    runtime = TorchRuntime(ours, HEAD, 4, "fp32", None, 0)
    before = {x.feature_id: x.columns["logits"] for x in runtime.predict(batch)}
    second = batch.columns["sequence_ids"] == 2
    assert second.any()
    batch.columns["input_ids"][second] = 7
    after = {x.feature_id: x.columns["logits"] for x in runtime.predict(batch)}
    changed = set(batch.columns["feature_ids"][:, 1].tolist()) - {-1}
    for number, logits in before.items():
        assert (np.abs(after[number] - logits).max() > 1e-4) == (number in changed)
