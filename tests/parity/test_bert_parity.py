"""Losses, gradients and updates of the heads of BERT against transformers, on samples without padding."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import CONFIG
from samples import make_batch, make_models, samples
from tiny_jobs import head_of
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForPreTraining, AutoModelForQuestionAnswering, AutoModelForSequenceClassification

from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

STILL = optimizer_config(learning_rate=0.0, weight_decay=0.0, max_grad_norm=None)
KINDS: dict[str, Any] = {
    "pretrain": AutoModelForPreTraining,
    "question_answering": AutoModelForQuestionAnswering,
    **dict.fromkeys(
        ("sequence_classification", "sequence_multilabel", "sequence_regression"), AutoModelForSequenceClassification
    ),
}
"""Kind of rows -> the class of transformers that computes the loss, by its problem_type."""


def gradients(model: nn.Module, head: str, batch: Batch, micro_batch: int) -> tuple[float, dict, dict]:
    """Loss, parts and gradients of one update at learning rate 0, which leaves the weights as they are."""
    runtime = TorchRuntime(model, head, micro_batch, "fp32", STILL, seed=0)
    metrics = runtime.train_step(batch, learning_rate=0.0)
    return metrics.loss, metrics.parts, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def their_loss(theirs: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean loss over all sequences, of pre-training each head's mean over its own labels."""
    masked, count, single = torch.zeros(()), 0, []
    for sample in samples(batch):
        sample.pop("feature_id", None)
        found = theirs(**sample)
        if "next_sentence_label" not in sample:
            single.append(found.loss)
            continue
        labelled = int((sample["labels"] != -100).sum())
        own = cross_entropy(found.prediction_logits[0], sample["labels"][0], reduction="sum")
        single.append(cross_entropy(found.seq_relationship_logits, sample["next_sentence_label"]))
        masked, count = masked + own, count + labelled
        if labelled:
            assert (own / labelled + single[-1]).item() == pytest.approx(found.loss.item(), rel=1e-5), "as they add up"
    return torch.stack(single).mean() + masked / max(1, count)


@pytest.mark.parametrize(
    ("kind", "weights"), [*((kind, None) for kind in KINDS), ("sequence_classification", [0.4, 3.0, 1.5])]
)
def test_loss_and_gradients_are_those_of_transformers_for_any_micro_batch(
    tmp_path: Path, kind: str, weights: list[float] | None
) -> None:
    head = head_of(kind)
    ours, theirs = make_models(tmp_path / "model", head if kind == "pretrain" else kind, CONFIG, KINDS[kind])
    batch = make_batch(tmp_path / "rows", kind, CONFIG)
    if weights:
        batch = dataclasses.replace(batch, class_weights=np.array(weights))
        theirs.eval()
        logits = [theirs(x["input_ids"], token_type_ids=x["token_type_ids"]).logits for x in samples(batch)]
        labels = torch.cat([x["labels"] for x in samples(batch)])
        expected = cross_entropy(torch.cat(logits), labels, torch.tensor(weights))
    else:
        expected = their_loss(theirs.eval(), batch)
    expected.backward()
    loss, parts, found = gradients(ours, head, batch, micro_batch=len(batch.rows))
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert loss == pytest.approx(sum(parts.values()) / (2 if kind == "question_answering" else 1), rel=1e-6)
    theirs_by_name = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    assert set(found) == set(theirs_by_name)
    for name, gradient in theirs_by_name.items():
        scale = float(gradient.abs().max())
        assert scale > 0 or "key.bias" in name, name  # a constant added to all scores of a query changes nothing
        # Rounding is that of the largest entries: both sides lie up to 2e-6 of them from a gradient in fp64.
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5 * max(1.0, scale), msg=name)
    for size in (1, 4):
        smaller, cut_parts, cut = gradients(ours, head, batch, micro_batch=size)
        assert smaller == pytest.approx(loss, rel=1e-6)
        assert cut_parts == pytest.approx(parts, rel=1e-6)
        for name, gradient in found.items():
            scale = max(1.0, float(gradient.abs().max()))
            torch.testing.assert_close(cut[name], gradient, rtol=1e-5, atol=1e-5 * scale, msg=name)
