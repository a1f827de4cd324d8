"""Losses, gradients and updates of the heads of BERT against transformers, on samples without padding."""

import dataclasses

import numpy as np
import pytest
import torch
from samples import count_labels, load_theirs, make_batch, samples
from tiny_jobs import STILL, head_of, labels_of
from torch.nn.functional import cross_entropy

from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

CONFIG = dataclasses.replace(STILL, initializer_range=0.5)
"""Weights of 0.5, so that attention and logits are far from uniform and an error would show."""
ORIGIN = ModelOrigin(tokenizer_sha256="t" * 64, kind="pretrain", head="pretraining", steps=0, seed=0)
KINDS = ["pretrain", "question_answering"]
KINDS += ["sequence_classification", "sequence_multilabel", "sequence_regression"]


def make_models(folder, kind):
    """Ours with random weights, biases and LayerNorm included, and theirs loaded from our folder."""
    labels = [f"label {number}" for number in range(labels_of(kind))]
    model = build_model(head_of(kind), CONFIG, len(labels))
    initialise(model, CONFIG, 1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.empty(parameter.shape).normal_(0, 0.3, generator=generator))
    folder.mkdir()
    of_rows = kind if labels else None
    write_model(folder, head_of(kind), CONFIG, model.state_dict(), ORIGIN, labels, of_rows)
    return model, load_theirs(folder, kind).eval()


def gradients(model, head, batch, micro_batch):
    """Loss, parts and gradients of one update at learning rate 0, which leaves the weights as they are."""
    still = optimizer_config(learning_rate=0.0, weight_decay=0.0)
    metrics = TorchRuntime(model, head, micro_batch, "fp32", still, seed=0).train_step(batch, learning_rate=0.0)
    return metrics.loss, metrics.parts, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def their_loss(theirs, batch, weights):
    """The mean loss over all sequences, of pre-training each head's mean over its own labels."""
    every = list(samples(batch))
    for sample in every:
        sample.pop("feature_id", None)
    outputs = [theirs(**sample) for sample in every]
    if weights:
        labels = torch.cat([sample["labels"] for sample in every])
        return cross_entropy(torch.cat([x.logits for x in outputs]), labels, torch.tensor(weights))
    if "next_sentence_label" not in every[0]:
        return torch.stack([x.loss for x in outputs]).mean()
    counts = [count_labels(sample) for sample in every]
    masked, single = [], []
    for sample, x, count in zip(every, outputs, counts, strict=True):
        masked.append(cross_entropy(x.prediction_logits[0], sample["labels"][0], reduction="sum"))
        single.append(cross_entropy(x.seq_relationship_logits, sample["next_sentence_label"]))
        if count:
            assert (masked[-1] / count + single[-1]).item() == pytest.approx(x.loss.item(), rel=1e-5), "as they add up"
    return torch.stack(single).mean() + sum(masked) / sum(counts)


def require_close(ours, expected):
    """Rounding is that of the largest entries: both sides lie up to 2e-6 of them from a gradient in fp64."""
    assert set(ours) == set(expected)
    for name, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(ours[name], gradient, rtol=1e-5, atol=1e-5 * scale, msg=name)


@pytest.mark.parametrize(
    ("kind", "weights"), [*((kind, None) for kind in KINDS), ("sequence_classification", [0.4, 3.0, 1.5])]
)
def test_loss_and_gradients_are_those_of_transformers_for_any_micro_batch(tmp_path, kind, weights):
    head = head_of(kind)
    ours, theirs = make_models(tmp_path / "model", kind)
    batch = make_batch(tmp_path / "rows", kind, CONFIG)
    if weights:
        batch = dataclasses.replace(batch, class_weights=np.array(weights))
    expected = their_loss(theirs, batch, weights)
    expected.backward()
    loss, parts, whole = gradients(ours, head, batch, micro_batch=len(batch.rows))
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert loss == pytest.approx(sum(parts.values()) / (2 if kind == "question_answering" else 1), rel=1e-6)
    theirs_by_name = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    require_close(whole, theirs_by_name)
    still = [name for name, gradient in theirs_by_name.items() if not gradient.any()]
    assert all("key.bias" in name for name in still)  # a constant added to all scores of a query changes nothing
    for size in (1, 4):
        smaller, cut_parts, cut = gradients(ours, head, batch, micro_batch=size)
        assert {"loss": smaller, **cut_parts} == pytest.approx({"loss": loss, **parts}, rel=1e-6)
        require_close(cut, whole)
