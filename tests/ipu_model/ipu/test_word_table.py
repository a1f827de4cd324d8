"""The word table in pieces: separate parameters on the device, one table in every state, checkpoint and model."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_ipu import ACCUMULATION, ADAMW, DROPPING, LAMB, follow, ipu_job, make_batches, rows_of
from tiny_jobs import pausing, run_here, weights_of

from ipu_model.core.errors import CheckpointError
from ipu_model.ipu.device_model import TABLE, cut_table, join_pieces

QUESTIONS = "question_answering"


def in_pieces(factor):
    return {"embedding_serialization_factor": factor, "recompute_checkpoint_every_layer": True}


def same(ours, theirs):
    return sorted(ours) == sorted(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def optimizer_state(pieces, shape=(12, 5)):
    """As PopTorch names it, of a table in pieces and of another parameter."""
    table = "bert_model." + TABLE
    names = [f"{table}.pieces.{number}" for number in range(pieces)] if pieces > 1 else [f"{table}.weight"]
    moments = torch.arange(60.0).view(shape).chunk(pieces)
    state = {f"ipu_state/Accl1___{name}": moments[number] for number, name in enumerate(names)}
    state.update((f"ipu_state/Step___{name}", torch.tensor(7.0)) for name in names)
    state.update((f"ipu_param/learningRate___specific___{name}", torch.tensor([0.5])) for name in names)
    return {"ipu_state/Accl1___bert_model.bert.pooler.dense.weight": torch.ones(2, 2), **state}


@pytest.mark.parametrize(("saved", "loaded"), [(1, 3), (12, 1), (2, 12)])
def test_state_saved_in_some_pieces_is_loaded_in_others(saved, loaded):
    """Twelve pieces: number 10 comes before 2 as text."""
    scrambled = dict(sorted(optimizer_state(saved).items()))
    whole = join_pieces(scrambled)
    assert same(whole, optimizer_state(1))
    assert same(cut_table(whole, loaded), optimizer_state(loaded))


@pytest.mark.parametrize(("saved", "loaded"), [(1, 2), (2, 1), (3, 2)])
def test_state_in_a_layout_of_its_own_stays_with_its_pieces_and_is_refused_by_others(saved, loaded):
    shards = join_pieces(optimizer_state(saved, (60,)))
    assert same(cut_table(shards, saved), optimizer_state(saved, (60,)))
    with pytest.raises(CheckpointError, match=f"embedding_serialization_factor {saved}"):
        cut_table(shards, loaded)


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [("pretrain", LAMB), (QUESTIONS, LAMB), (QUESTIONS, ADAMW), ("sequence_regression", ADAMW)],
    ids=lambda x: getattr(x, "name", x),
)
def test_four_updates_in_pieces_give_the_numbers_of_the_cpu(kind, optimizer, tmp_path):
    """Factor 3 of the tiny vocabulary of 60: the decoder in pre-training, the table in fine-tuning."""
    batches = make_batches(kind, 4, ACCUMULATION)
    follow(tmp_path, kind, batches, optimizer, replicas=1, rates=[1e-2] * 4, ipu_config=in_pieces(3))


@pytest.mark.ipu
def test_a_checkpoint_of_one_factor_goes_on_under_another_and_the_model_has_hugging_faces_names(tmp_path):
    rows = rows_of(tmp_path / "rows", QUESTIONS, 50)
    settings = {"model": DROPPING, "optimizer": dataclasses.replace(ADAMW, learning_rate=1e-3)}
    first = ipu_job(tmp_path / "a", "finetune", rows, 9, ipu_config=in_pieces(3), **settings)
    pausing(first, "plan")
    [checkpoint] = Path(first.run_folder).glob("step-*")
    assert load_file(str(checkpoint / "model.safetensors"))[TABLE + ".weight"].shape == (60, 16)
    other = {**first.ipu_config, "embedding_serialization_factor": 2}
    done = run_here(dataclasses.replace(first, ipu_config=other))
    assert any("after update 1 of 4" in x["text"] for x in done.of("message"))
    straight = ipu_job(tmp_path / "b", "finetune", rows, 9, **settings)
    run_here(straight)
    assert same(weights_of(first), weights_of(straight))
