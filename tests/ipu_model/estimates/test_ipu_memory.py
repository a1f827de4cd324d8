"""The memory of IPUs, added up by hand for a model whose numbers are small."""

from __future__ import annotations

import dataclasses
from typing import Dict

import pytest

from ipu_model.estimates import ipu_memory
from ipu_model.estimates.estimate import DOES_NOT_FIT, FITS, TIGHT, Interval, MemoryEstimate
from ipu_model.estimates.ipu_constants import TILE_BYTES, MemoryAssumptions
from ipu_model.estimates.ipu_memory import estimate_memories, parameters_by_ipu
from ipu_model.estimates.ipu_time import IpuProgram
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.placement import place_by_layers
from ipu_model.models.config import ModelConfig

SMALL = ModelConfig(vocab_size=10, hidden_size=4, num_layers=3, num_heads=2, intermediate_size=16, max_positions=6)
LAYER = 12 * 16 + 13 * 4
TABLES = (10 + 6 + 2 + 2) * 4
HEADS = (4 * 5 + 2 * 4 + 10 + 2 * 5) + 4 * 5
"""Transform with LayerNorm, bias of the decoder, two classes; and the pooler."""
ROWS, LENGTH = 3, 5
HIDDEN = ROWS * LENGTH * 4 * 2
INTEGERS = ROWS * LENGTH * 4
ASSUMED = MemoryAssumptions(
    code=1000.0, inference_code=500.0, proportion=0.0, hidden=3.0, scores=2.0, logits=2.0, update=1.0
)


def held_of(head: str = "pretraining", **changes: object) -> IpuProgram:
    """Two IPUs: the tables and a layer, then two layers; 3 rows of 5 tokens and 2 masked slots a micro-batch."""
    rows = RowShape(LENGTH, 2 if head == "pretraining" else 0)
    held = IpuProgram(SMALL, place_by_layers(head, 3, [1, 2], 2), rows, ROWS, matmul_proportion=(0.2, 0.2))
    return dataclasses.replace(held, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOW", "LIKELY", "HIGH"):
        monkeypatch.setattr(ipu_memory.constants, name, ASSUMED)


def terms(held: IpuProgram, ipu: int) -> Dict[str, float]:
    [memory] = [one for one in estimate_memories(held) if one.where == f"IPU {ipu} of 2"]
    return {term.name: term.amount for term in memory.terms}


def test_parameters_stand_where_their_blocks_do() -> None:
    assert parameters_by_ipu(held_of()) == [TABLES + LAYER + HEADS, 2 * LAYER]
    answers = held_of("question_answering")
    assert parameters_by_ipu(answers) == [TABLES + LAYER, 2 * LAYER + 2 * 5]
    assert parameters_by_ipu(dataclasses.replace(answers, labels=7))[1] == 2 * LAYER + 7 * 5


def test_what_lives_through_a_call_by_hand() -> None:
    """Forward stages: IPU 0 (tables, a layer), IPU 1 (two layers), IPU 0 (heads): they stash 5, 3 and 1 times."""
    first, second = terms(held_of(shards=4), 0), terms(held_of(shards=4), 1)
    weights = TABLES + LAYER + HEADS
    assert (first["weights"], first["accumulated gradients"]) == (2 * weights, 2 * weights)
    assert first["optimizer state"] == 8 * weights / 4
    assert first["stashed activations"] == 5 * (HIDDEN + 4 * INTEGERS) + 1 * (HIDDEN + INTEGERS)
    assert second["stashed activations"] == 3 * (2 * HIDDEN + INTEGERS)
    assert first["code and exchange"] == 1000.0
    assert first["streams"] == 2 * ROWS * 4 * (4 * LENGTH + 2 * 2 + 2 * 1)


def test_without_a_checkpoint_every_layer_a_stage_stashes_its_input_and_recomputes_all() -> None:
    every, stages = terms(held_of(), 1), terms(held_of(keeps_every_layer=False), 1)
    assert stages["stashed activations"] == 3 * (HIDDEN + INTEGERS)
    layer = 3.0 * HIDDEN + 2.0 * ROWS * 2 * LENGTH**2 * 2
    assert every["backward pass of a layer, with matmul temporaries"] == layer
    assert stages["backward pass of a stage, with matmul temporaries"] == 2 * layer


def test_the_fullest_instant_is_the_worst_of_those_that_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    few = dataclasses.replace(ASSUMED, hidden=0.0, scores=0.0, update=0.0)
    for name in ("LOW", "LIKELY", "HIGH"):
        monkeypatch.setattr(ipu_memory.constants, name, few)
    logits, table = ROWS * 2 * 10 * 2, 10 * 4 * 2
    heads = "logits of the vocabulary, with matmul temporaries"
    assert terms(held_of(), 0)[heads] == 2 * logits + table
    assert terms(held_of(decoder_pieces=2), 0)[heads] == 2 * logits + table / 2
    answers = held_of("question_answering", table_pieces=2)
    assert terms(answers, 0)["gradient of the word table, with matmul temporaries"] == table / 2
    [memory] = [x for x in estimate_memories(dataclasses.replace(answers, table_cuts=False)) if x.where == "IPU 0 of 2"]
    knobs = {term.name: term.knob for term in memory.terms}
    assert knobs["gradient of the word table, with matmul temporaries"].startswith("layers_per_ipu"), "with LAMB"
    # The largest tensor of IPU 1 is [4, 16]; its moments come from off chip.
    loaded = held_of(state_offchip=True, shards=2)
    assert terms(loaded, 1)["update of the largest tensor"] == 64 * 8 / 2
    assert "optimizer state" not in terms(loaded, 1)


def test_inference_holds_no_gradients_and_stashes_nothing() -> None:
    found = terms(held_of("question_answering", training=False), 1)
    assert set(found) == {"weights", "forward pass of a layer, with matmul temporaries", "streams", "code and exchange"}
    assert found["code and exchange"] == 500.0


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1.0, 2.0, FITS), (1.0, 2.1, TIGHT), (2.0, 3.0, TIGHT), (2.1, 3.0, DOES_NOT_FIT)]
)
def test_a_verdict_goes_by_the_ends(low: float, high: float, verdict: str) -> None:
    assert MemoryEstimate("IPU 0 of 1", (), Interval(low, (low + high) / 2, high), 2.0).verdict == verdict


def test_a_layer_back_takes_its_activations_and_a_share_of_what_the_proportion_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = 3.0 * HIDDEN + 2.0 * ROWS * 2 * LENGTH**2 * 2
    alone = held_of(placement=place_by_layers("pretraining", 3, [3], 1), matmul_proportion=(0.2,))
    [memory] = estimate_memories(alone)
    amounts = {term.name: term.amount for term in memory.terms}
    assert amounts["backward pass of all layers, with matmul temporaries"] == 3 * layer, "one IPU recomputes nothing"
    monkeypatch.setattr(ipu_memory.constants, "LIKELY", dataclasses.replace(ASSUMED, proportion=0.5))
    found = terms(held_of(), 1)["backward pass of a layer, with matmul temporaries"]
    assert found == layer + 0.5 * 0.2 * TILE_BYTES
