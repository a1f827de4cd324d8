"""Both sides do the same job: same sequences, same loss, same update."""

import dataclasses

import numpy as np
import pytest
import torch

from bench.flops import pretraining_flops
from bench.optimizers import make_by_name, set_gradients
from bench.ours import count_flops, make_job, start_runtime
from bench.peer import make_model
from bench.peer_data import Collator, read_sequences, split_batch
from bench.setup import SEED, Training, make_model_config
from ipu_model import heads
from ipu_model.models.flat import flatten
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.format import IGNORED
from ipu_model.rows.row_folder import RowFolder


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def training(task, rows, **changes):
    values = {"sequences": 12, "dropout": 0.0, "vocabulary": 60, **changes}
    return Training(task, "test", str(rows), **values)


@pytest.mark.parametrize("task", ["pretrain", "squad"])
def test_losses_agree_on_the_same_sequences(task, request):
    """fp32, no dropout: our update's loss is the peer's over the same sequences, one at a time, without padding."""
    folder = request.getfixturevalue("pretrain_rows" if task == "pretrain" else "answer_rows")
    both = training(task, folder)
    rows = RowFolder(folder, both.row_kind, both.model)
    runtime, plan = start_runtime(make_job(both, 5, {"precision": "fp32"}), rows)
    batch = rows.take(np.arange(plan.rows_per_update))
    theirs, collate = make_model(both).eval(), Collator(task, None)
    total_masked, singles, masked = 0.0, [], 0
    for item in split_batch(batch):
        single = collate([item])
        with torch.no_grad():
            if task == "pretrain":  # its two parts are means over different counts
                labels, next_one = single.pop("labels"), single.pop("next_sentence_label")
                output = theirs(**single)
                logits = output.prediction_logits.view(-1, 60)
                total_masked += float(torch.nn.functional.cross_entropy(logits, labels.view(-1), reduction="sum"))
                masked += int((labels != -100).sum())
                singles.append(float(torch.nn.functional.cross_entropy(output.seq_relationship_logits, next_one)))
            else:
                singles.append(float(theirs(**single).loss))
    expected = sum(singles) / len(singles) + (total_masked / masked if masked else 0.0)
    assert runtime.train_step(batch, 1e-4).loss == pytest.approx(expected, rel=1e-5)
    assert len(singles) == batch.sequences
    assert sum(collate.real_tokens) == batch.real_tokens


def test_padding_is_no_real_token(answer_rows):
    both = training("squad", answer_rows)
    items = read_sequences(RowFolder(answer_rows, both.row_kind, both.model), 6, SEED)
    collate = Collator("squad", 24)
    batch = collate([items[i] for i in range(6)])
    assert batch["input_ids"].shape == (6, 24)
    assert collate.real_tokens[0] == int(batch["attention_mask"].sum())
    assert collate.real_tokens[0] == sum(len(items[i]["input_ids"]) for i in range(6))
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()


def test_flops_count_every_sequence_of_a_batch(pretrain_rows):
    """Beside the lengths that the runtime itself computes with."""
    both = training("pretrain", pretrain_rows)
    batch = RowFolder(pretrain_rows, both.row_kind, both.model).take(np.arange(30))
    flat = flatten(batch, heads.get_head("pretraining").flat_labels)
    masked = int((flat.labels["masked_labels"] != IGNORED).sum())
    expected = pretraining_flops(both.model, flat.lengths.tolist(), masked)
    assert count_flops(both, batch) == expected


@pytest.mark.parametrize(("name", "plain"), [("lamb", "lamb-plain"), ("adamw", "adamw-plain")])
def test_the_plain_optimizers_make_the_same_update(name, plain):
    config = dataclasses.replace(make_model_config("test", vocabulary=60), initializer_range=0.5)
    before, *after = (build_model("pretraining", config) for _ in range(3))
    for model in (before, *after):
        initialise(model, config, SEED)
    for optimizer_name, model in zip((name, plain), after, strict=True):
        optimizer = make_by_name(optimizer_name, model)
        set_gradients(model)
        for _ in range(3):
            optimizer.step()
    start, *ends = (torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (before, *after))
    assert float((ends[0] - start).abs().max()) > 1e-5, "the steps changed nothing, so the comparison says nothing"
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-7)
