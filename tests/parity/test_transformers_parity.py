"""Losses, gradients, logits and folders against transformers, on samples without padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import CONFIG
from samples import make_batch, make_models, samples
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    BertForPreTraining,
    BertForQuestionAnswering,
)

from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

STILL = optimizer_config(learning_rate=0.0, weight_decay=0.0, max_grad_norm=None)


def gradients(model: nn.Module, head: str, batch: Batch, micro_batch: int) -> tuple[float, dict, dict]:
    """Loss, parts and gradients of one update at learning rate 0, which leaves the weights as they are."""
    runtime = TorchRuntime(model, head, micro_batch, "fp32", STILL, seed=0)
    metrics = runtime.train_step(batch, learning_rate=0.0)
    return metrics.loss, metrics.parts, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(ours: dict[str, torch.Tensor], theirs: nn.Module) -> None:
    expected = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    assert set(ours) == set(expected)
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert scale > 0 or "key.bias" in name, name  # a constant added to all scores of a query changes nothing
        # Rounding is that of the largest entries: both sides lie up to 2e-6 of them from a gradient in fp64.
        bound = 1e-5 * max(1.0, scale)
        torch.testing.assert_close(ours[name], gradient, rtol=1e-5, atol=bound, msg=lambda m, name=name: f"{name}: {m}")


def test_pretraining_loss_and_gradients_equal_transformers_on_unpadded_samples(tmp_path: Path) -> None:
    ours, theirs = make_models(tmp_path / "model", "pretraining", CONFIG, BertForPreTraining)
    theirs.eval()
    batch = make_batch(tmp_path / "rows", "pretrain", CONFIG)
    mlm, mlm_count, nsp = torch.zeros(()), 0, []
    for sample in samples(batch):
        outputs = theirs(input_ids=sample["input_ids"], token_type_ids=sample["token_type_ids"])
        mlm = mlm + cross_entropy(outputs.prediction_logits[0], sample["labels"][0], reduction="sum")
        mlm_count += int((sample["labels"] != -100).sum())
        nsp.append(cross_entropy(outputs.seq_relationship_logits, sample["next_sentence_label"]))
    expected = mlm / mlm_count + torch.stack(nsp).mean()
    expected.backward()
    loss, parts, found = gradients(ours, "pretraining", batch, micro_batch=len(batch.rows))
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert parts["nsp_loss"] == pytest.approx(torch.stack(nsp).mean().item(), rel=1e-5)
    assert_same_gradients(found, theirs)


def test_one_pretraining_sample_has_the_loss_that_transformers_computes_itself(tmp_path: Path) -> None:
    """The sum of both heads' means, as BertForPreTraining adds them up from labels."""
    ours, theirs = make_models(tmp_path / "model", "pretraining", CONFIG, BertForPreTraining)
    theirs.eval()
    whole = make_batch(tmp_path / "rows", "pretrain", CONFIG)
    row = next(i for i in range(len(whole.rows)) if whole.part(i, i + 1).sequences == 1)
    batch = whole.part(row, row + 1)
    [sample] = samples(batch)
    expected = theirs(**sample).loss
    expected.backward()
    loss, _, found = gradients(ours, "pretraining", batch, micro_batch=1)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(found, theirs)


def test_squad_loss_and_gradients_equal_transformers_on_unpadded_samples(tmp_path: Path) -> None:
    ours, theirs = make_models(tmp_path / "model", "question_answering", CONFIG, BertForQuestionAnswering)
    theirs.eval()
    batch = make_batch(tmp_path / "rows", "question_answering", CONFIG)
    losses = []
    for sample in samples(batch):
        del sample["feature_id"]
        losses.append(theirs(**sample).loss)
    expected = torch.stack(losses).mean()
    expected.backward()
    loss, parts, found = gradients(ours, "question_answering", batch, micro_batch=len(batch.rows))
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert loss == pytest.approx((parts["start_loss"] + parts["end_loss"]) / 2, rel=1e-6)
    assert_same_gradients(found, theirs)


@pytest.mark.parametrize("head", ["pretraining", "question_answering"])
def test_micro_batch_size_does_not_change_the_update(tmp_path: Path, head: str) -> None:
    kind = "pretrain" if head == "pretraining" else head
    theirs = BertForPreTraining if head == "pretraining" else BertForQuestionAnswering
    model, _ = make_models(tmp_path / "model", head, CONFIG, theirs)
    batch = make_batch(tmp_path / "rows", kind, CONFIG)
    whole_loss, whole_parts, whole = gradients(model, head, batch, micro_batch=12)
    for size in (1, 4):
        loss, parts, found = gradients(model, head, batch, micro_batch=size)
        assert loss == pytest.approx(whole_loss, rel=1e-6)
        assert parts == pytest.approx(whole_parts, rel=1e-6)
        for name, gradient in whole.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("head", "auto", "name"),
    [
        ("pretraining", AutoModelForPreTraining, "BertForPreTraining"),
        ("question_answering", AutoModelForQuestionAnswering, "BertForQuestionAnswering"),
    ],
)
def test_the_auto_classes_load_our_folder_as_the_right_class(tmp_path: Path, head: str, auto: type, name: str) -> None:
    """Nothing missing, nothing unexpected (make_models asserts it), and the decoder tied to the embedding."""
    _, loaded = make_models(tmp_path / "model", head, CONFIG, auto)
    assert type(loaded).__name__ == name
    if head == "pretraining":
        decoder, words = loaded.cls.predictions.decoder, loaded.bert.embeddings.word_embeddings
        assert decoder.weight.data_ptr() == words.weight.data_ptr()
        assert torch.equal(decoder.bias, loaded.cls.predictions.bias)
