"""Embeddings: the loss is that of its formula, and an update in two passes has the numbers of one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import torch
from tiny_jobs import STEADY, S, make_columns
from tiny_torch import make_model

from ipu_model import heads
from ipu_model.core.errors import ConfigError
from ipu_model.jobs.job import BatchGeometry
from ipu_model.jobs.plan import divide
from ipu_model.models.flat import flatten
from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.runtime import UpdateAborted
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

HEAD = "sentence_embedding"
DROPPING = dataclasses.replace(STEADY, hidden_dropout=0.2, attention_dropout=0.2)
ROWS = 7


def make_runtime(micro: int, config: Any = STEADY, **more: Any) -> TorchRuntime:
    return TorchRuntime(make_model(HEAD, config), HEAD, micro, "fp32", optimizer_config(learning_rate=1e-2), 7, **more)


def make_batch(rows: int = ROWS) -> Batch:
    return Batch(np.arange(rows), make_columns(HEAD, rows, seed=5))


def embed_alone(runtime: TorchRuntime, batch: Batch) -> np.ndarray:
    """The embeddings of every text, [rows, S, H], each sequence predicted with others but computed by hand."""
    found = {one.feature_id: one.columns["embedding"] for one in runtime.predict(batch)}
    return np.stack([found[number] for number in batch.columns["feature_ids"].reshape(-1)]).reshape(-1, S, 16)


def ranking_loss(vectors: np.ndarray, scale: float, hidden: Any = ()) -> float:
    """The mean over anchors of -log softmax(scale * cosine) of the own positive, among all positives and negatives."""
    anchors, positives, negatives = (vectors[:, role] for role in range(S))
    losses = []
    for number, anchor in enumerate(anchors):
        scores = [scale * float(anchor @ other) for other in (*positives, *negatives)]
        kept = [math.exp(x) for place, x in enumerate(scores) if (number, place) not in hidden]
        losses.append(-math.log(math.exp(scores[number]) / sum(kept)))
    return sum(losses) / len(losses)


def gradients_of(runtime: TorchRuntime, batch: Batch) -> Tuple[float, Dict[str, Any]]:
    loss = runtime.train_step(batch, 0.0).loss
    return loss, {name: x.grad for name, x in runtime._model.named_parameters()}


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_an_embedding_is_the_normalised_mean_or_first_token(pooling: str) -> None:
    runtime, batch = make_runtime(4, settings={"pooling": pooling}), make_batch()
    flat = flatten(batch)
    hidden = runtime._model(flat.tokens).detach()
    spans = zip(flat.starts.tolist(), flat.lengths.tolist(), flat.feature_ids.tolist())
    whole = {number: hidden[start : start + length] for start, length, number in spans}
    for one in runtime.predict(batch):
        pooled = whole[one.feature_id].mean(0) if pooling == "mean" else whole[one.feature_id][0]
        expected = pooled / pooled.norm()
        torch.testing.assert_close(torch.from_numpy(one.columns["embedding"]), expected, rtol=1e-5, atol=1e-6)


def test_the_loss_is_that_of_multiple_negatives_ranking() -> None:
    runtime, batch = make_runtime(3, settings={"scale": 5.0}), make_batch()
    expected = ranking_loss(embed_alone(runtime, batch), 5.0)
    step = runtime.train_step(batch, 0.0)
    assert step.loss == pytest.approx(expected, rel=1e-5)
    assert step.parts == {"ranking_loss": pytest.approx(expected, rel=1e-5), "equal_texts": 0}


def test_equal_texts_of_a_batch_are_not_negatives() -> None:
    """Row 1 repeats the positive of row 0, row 3 its anchor, and the negative of row 4 is the anchor of row 5."""
    batch = make_batch()
    for to, slot, source, other in ((1, 1, 0, 1), (3, 0, 0, 0), (4, 2, 5, 0)):
        columns = batch.columns
        texts = [[columns["input_ids"][r][columns["sequence_ids"][r] == s + 1] for s in range(S)] for r in range(ROWS)]
        texts[to][slot] = texts[source][other]
        replace_row(columns, to, texts[to])
    runtime = make_runtime(3)
    hidden = {(0, 1), (1, 0), (0, 3), (3, 0), (3, 1), (5, ROWS + 4)}
    expected = ranking_loss(embed_alone(runtime, batch), 20.0, hidden)
    step = runtime.train_step(batch, 0.0)
    assert (step.loss, step.parts["equal_texts"]) == (pytest.approx(expected, rel=1e-5), len(hidden))


def replace_row(columns: Dict[str, np.ndarray], row: int, texts: List[np.ndarray]) -> None:
    for name in ("input_ids", "position_ids", "sequence_ids"):
        columns[name][row] = 0
    at = 0
    for slot, text in enumerate(texts):
        here = slice(at, at + len(text))
        columns["input_ids"][row, here], columns["sequence_ids"][row, here] = text, slot + 1
        columns["position_ids"][row, here], columns["cls_positions"][row, slot] = np.arange(len(text)), at
        at += len(text)


def test_scores_are_learned_by_their_order() -> None:
    batch, targets = make_batch(), [0.5, 0.1, 0.9, 0.9, 0.3, 0.0, 0.7]
    batch.columns["targets"][:, :2] = np.array(targets, np.float32)[:, None]
    runtime = make_runtime(3)
    vectors = embed_alone(runtime, batch)
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(1)
    terms = [
        math.exp(20 * float(cosines[i] - cosines[j]))
        for i, lower in enumerate(targets)
        for j, higher in enumerate(targets)
        if lower < higher
    ]
    assert runtime.train_step(batch, 0.0).loss == pytest.approx(math.log(1 + sum(terms)), rel=1e-5)


@pytest.mark.parametrize("micro", [1, 3])
def test_micro_batches_do_not_change_an_update(micro: int) -> None:
    loss, gradients = gradients_of(make_runtime(ROWS), make_batch())
    found, others = gradients_of(make_runtime(micro), make_batch())
    assert found == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(others, gradients, rtol=1e-4, atol=1e-6)


def test_both_passes_have_the_same_dropout() -> None:
    """The gradients are those of one pass that keeps the graphs of all micro-batches, with the same generator."""
    batch, runtime, other = make_batch(), make_runtime(3, DROPPING), make_runtime(3, DROPPING)
    torch.manual_seed(11)
    step = runtime.train_step(batch, 0.0)
    after = torch.get_rng_state()
    torch.manual_seed(11)
    head: Any = heads.get_head(HEAD)
    model = other._model.train()
    parts = [head.embed(model, flat) for flat in other.prepare(batch).micro_batches]
    loss = head.joint_loss(torch.cat(parts), head.joint_labels(batch.columns))["ranking_loss"]
    loss.backward()
    assert torch.equal(torch.get_rng_state(), after)
    assert step.loss == pytest.approx(float(loss.detach()), rel=1e-6)
    expected = dict(model.named_parameters())
    for name, weight in runtime._model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name].grad, rtol=1e-4, atol=1e-6)


def test_an_aborted_update_leaves_the_generator_as_it_was() -> None:
    runtime = make_runtime(3, DROPPING, deadline_near=lambda: True)
    before, state = runtime.state_dict(), torch.get_rng_state()
    with pytest.raises(UpdateAborted):
        runtime.train_step(make_batch(), 1e-2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, before[name]) for name, x in runtime.state_dict().items())


def test_a_batch_has_exactly_the_pairs_it_names_and_unknown_settings_are_refused() -> None:
    assert divide(BatchGeometry(65, micro_batch_size=32), 1.0).rows_per_update == 66
    assert dataclasses.astuple(divide(BatchGeometry(65, micro_batch_size=32), 1.0, exact=True)) == (65, 32, 3)
    for settings in ({"pooling": "max"}, {"temperature": 2.0}):
        for head in (HEAD, "token_classification"):
            with pytest.raises(ConfigError, match=head):
                heads.get_head(head).configure(settings)
