"""Embeddings: the loss is that of its formula, and an update in two passes has the numbers of one."""

import dataclasses
import math

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


def make_runtime(micro, config=STEADY, **more):
    """A runtime with micro-batches of so many rows, and its model."""
    model = make_model(HEAD, config)
    return TorchRuntime(model, HEAD, micro, "fp32", optimizer_config(learning_rate=1e-2), 7, **more), model


def make_batch():
    return Batch(np.arange(ROWS), make_columns(HEAD, ROWS, seed=5))


def embed(runtime, batch):
    """The embeddings of every text, [rows, S, H]."""
    embeddings = {answer.feature_id: answer.columns["embedding"] for answer in runtime.predict(batch)}
    return np.stack([embeddings[number] for number in batch.columns["feature_ids"].reshape(-1)]).reshape(-1, S, 16)


def ranking_loss(vectors, scale, hidden=()):
    """The mean over anchors of -log softmax(scale * cosine) of the own positive, among all positives and negatives."""
    anchors, positives, negatives = (vectors[:, role] for role in range(S))
    losses = []
    for number, anchor in enumerate(anchors):
        scores = [scale * float(anchor @ other) for other in (*positives, *negatives)]
        kept = [math.exp(score) for place, score in enumerate(scores) if (number, place) not in hidden]
        losses.append(-math.log(math.exp(scores[number]) / sum(kept)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_an_embedding_is_the_normalised_mean_or_first_token(pooling):
    (runtime, model), batch = make_runtime(4, settings={"pooling": pooling}), make_batch()
    flat = flatten(batch)
    hidden = model.eval()(flat.tokens).detach()
    spans = zip(flat.starts.tolist(), flat.lengths.tolist(), flat.feature_ids.tolist())
    whole = {number: hidden[start : start + length] for start, length, number in spans}
    for answer in runtime.predict(batch):
        pooled = whole[answer.feature_id].mean(0) if pooling == "mean" else whole[answer.feature_id][0]
        expected = pooled / pooled.norm()
        torch.testing.assert_close(torch.from_numpy(answer.columns["embedding"]), expected, rtol=1e-5, atol=1e-6)


def repeat_texts(columns):
    """Row 1 repeats the positive of row 0, row 3 its anchor, and the negative of row 4 is the anchor of row 5."""
    for to, slot, source, other in ((1, 1, 0, 1), (3, 0, 0, 0), (4, 2, 5, 0)):
        ids, sequences = columns["input_ids"], columns["sequence_ids"]
        texts = [ids[to][sequences[to] == place + 1] for place in range(S)]
        texts[slot] = ids[source][sequences[source] == other + 1]
        for name in ("input_ids", "position_ids", "sequence_ids"):
            columns[name][to] = 0
        at = 0
        for place, text in enumerate(texts):
            here = slice(at, at + len(text))
            ids[to, here], sequences[to, here] = text, place + 1
            columns["position_ids"][to, here], columns["cls_positions"][to, place] = np.arange(len(text)), at
            at += len(text)
    return {(0, 1), (1, 0), (0, 3), (3, 0), (3, 1), (5, ROWS + 4)}


@pytest.mark.parametrize("repeats", [False, True])
def test_the_loss_is_that_of_multiple_negatives_ranking_in_which_equal_texts_are_no_negatives(repeats):
    batch = make_batch()
    hidden = repeat_texts(batch.columns) if repeats else set()
    runtime, _ = make_runtime(3, settings={"scale": 5.0})
    expected = ranking_loss(embed(runtime, batch), 5.0, hidden)
    step = runtime.train_step(batch, 0.0)
    assert step.loss == pytest.approx(expected, rel=1e-5)
    assert step.parts == {"ranking_loss": pytest.approx(expected, rel=1e-5), "equal_texts": len(hidden)}


def test_scores_are_learned_by_their_order():
    batch, targets = make_batch(), [0.5, 0.1, 0.9, 0.9, 0.3, 0.0, 0.7]
    batch.columns["targets"][:, :2] = np.array(targets, np.float32)[:, None]
    runtime, _ = make_runtime(3)
    vectors = embed(runtime, batch)
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(1)
    terms = [
        math.exp(20 * float(cosines[i] - cosines[j]))
        for i, lower in enumerate(targets)
        for j, higher in enumerate(targets)
        if lower < higher
    ]
    assert runtime.train_step(batch, 0.0).loss == pytest.approx(math.log(1 + sum(terms)), rel=1e-5)


def test_micro_batches_do_not_change_an_update():
    losses, gradients = [], []
    for micro in (ROWS, 1, 3):
        runtime, model = make_runtime(micro)
        losses.append(runtime.train_step(make_batch(), 0.0).loss)
        gradients.append({name: x.grad for name, x in model.named_parameters()})
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-6)
    for others in gradients[1:]:
        torch.testing.assert_close(others, gradients[0], rtol=1e-4, atol=1e-6)


def test_both_passes_have_the_same_dropout():
    """The gradients are those of one pass that keeps the graphs of all micro-batches, with the same generator."""
    batch, (runtime, model), (other, single) = make_batch(), make_runtime(3, DROPPING), make_runtime(3, DROPPING)
    torch.manual_seed(11)
    step = runtime.train_step(batch, 0.0)
    after = torch.get_rng_state()
    torch.manual_seed(11)
    head = heads.get_head(HEAD)
    parts = [head.embed(single.train(), flat) for flat in other.prepare(batch).micro_batches]
    loss = head.joint_loss(torch.cat(parts), head.joint_labels(batch.columns))["ranking_loss"]
    loss.backward()
    assert torch.equal(torch.get_rng_state(), after)
    assert step.loss == pytest.approx(float(loss.detach()), rel=1e-6)
    expected = dict(single.named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name].grad, rtol=1e-4, atol=1e-6)


def test_an_aborted_update_leaves_the_generator_as_it_was():
    runtime, _ = make_runtime(3, DROPPING, deadline_near=lambda: True)
    before, state = runtime.state_dict(), torch.get_rng_state()
    with pytest.raises(UpdateAborted):
        runtime.train_step(make_batch(), 1e-2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, before[name]) for name, x in runtime.state_dict().items())


def test_a_batch_has_exactly_the_pairs_it_names_and_unknown_settings_are_refused():
    assert divide(BatchGeometry(65, micro_batch_size=32), 1.0).rows_per_update == 66
    assert dataclasses.astuple(divide(BatchGeometry(65, micro_batch_size=32), 1.0, exact=True)) == (65, 32, 3)
    for settings in ({"pooling": "max"}, {"temperature": 2.0}):
        for head in (HEAD, "token_classification"):
            with pytest.raises(ConfigError, match=head):
                heads.get_head(head).configure(settings)
