"""The memory of IPUs, added up by hand for a model whose numbers are small."""

import dataclasses

import pytest

from ipu_model.estimates import ipu_memory
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
BACK = 3.0 * HIDDEN + 2.0 * ROWS * 2 * LENGTH**2 * 2
"""The backward pass of a layer."""


def held_of(head="pretraining", layers=(1, 2), **changes):
    """Two IPUs: the tables and a layer, then two layers; 3 rows of 5 tokens and 2 masked slots a micro-batch."""
    rows, placement = RowShape(LENGTH, 2 if head == "pretraining" else 0), place_by_layers(head, 3, layers, len(layers))
    held = IpuProgram(SMALL, placement, rows, ROWS, matmul_proportion=(0.2,) * len(layers))
    return dataclasses.replace(held, **changes)


@pytest.fixture
def assume(monkeypatch):
    def set_assumptions(**changes):
        for name in ("LOW", "LIKELY", "HIGH"):
            monkeypatch.setattr(ipu_memory.constants, name, dataclasses.replace(ASSUMED, **changes))

    return set_assumptions


@pytest.fixture(autouse=True)
def _plain(assume):
    assume()


def terms(held, ipu):
    [memory] = [x for x in estimate_memories(held) if x.where.startswith(f"IPU {ipu} of ")]
    return {term.name: term.amount for term in memory.terms}


def test_parameters_stand_where_their_blocks_do():
    assert parameters_by_ipu(held_of()) == [TABLES + LAYER + HEADS, 2 * LAYER]
    answers = held_of("question_answering")
    assert parameters_by_ipu(answers) == [TABLES + LAYER, 2 * LAYER + 2 * 5]
    assert parameters_by_ipu(dataclasses.replace(answers, labels=7))[1] == 2 * LAYER + 7 * 5


def test_what_lives_through_a_call_by_hand():
    """Forward stages: IPU 0 (tables, a layer), IPU 1 (two layers), IPU 0 (heads): they stash 5, 3 and 1 times."""
    first, second = terms(held_of(shards=4), 0), terms(held_of(shards=4), 1)
    weights = TABLES + LAYER + HEADS
    assert (first["weights"], first["accumulated gradients"]) == (2 * weights, 2 * weights)
    assert first["optimizer state"] == 8 * weights / 4
    assert first["stashed activations"] == 5 * (HIDDEN + 4 * INTEGERS) + 1 * (HIDDEN + INTEGERS)
    assert second["stashed activations"] == 3 * (2 * HIDDEN + INTEGERS)
    assert first["code and exchange"] == 1000.0
    assert first["streams"] == 2 * ROWS * 4 * (4 * LENGTH + 2 * 2 + 2 * 1)


def test_a_backward_pass_is_of_what_lies_between_checkpoints(assume):
    """Without one in every layer a stage stashes its input and recomputes all; one IPU recomputes nothing."""
    every, stages, alone = held_of(), held_of(keeps_every_layer=False), held_of(layers=(3,))
    assert terms(stages, 1)["stashed activations"] == 3 * (HIDDEN + INTEGERS)
    assert terms(every, 1)["backward pass of a layer, with matmul temporaries"] == BACK
    assert terms(stages, 1)["backward pass of a stage, with matmul temporaries"] == 2 * BACK
    assert terms(alone, 0)["backward pass of all layers, with matmul temporaries"] == 3 * BACK
    assume(proportion=0.5)  # a share of what the proportion allows comes on top
    assert terms(every, 1)["backward pass of a layer, with matmul temporaries"] == BACK + 0.5 * 0.2 * TILE_BYTES


def test_the_fullest_instant_is_the_worst_of_those_that_follow_one_another(assume):
    assume(hidden=0.0, scores=0.0, update=0.0)
    logits, table = ROWS * 2 * 10 * 2, 10 * 4 * 2
    heads, gradient = (
        f"{what}, with matmul temporaries" for what in ("logits of the vocabulary", "gradient of the word table")
    )
    assert terms(held_of(), 0)[heads] == 2 * logits + table
    assert terms(held_of(decoder_pieces=2), 0)[heads] == 2 * logits + table / 2
    answers = held_of("question_answering", table_pieces=2)
    assert terms(answers, 0)[gradient] == table / 2
    [memory] = [x for x in estimate_memories(dataclasses.replace(answers, table_cuts=False)) if x.where == "IPU 0 of 2"]
    [knob] = [term.knob for term in memory.terms if term.name == gradient]
    assert knob.startswith("layers_per_ipu"), "with LAMB"
    # The largest tensor of IPU 1 is [4, 16]; its moments come from off chip.
    loaded = held_of(state_offchip=True, shards=2)
    assert terms(loaded, 1)["update of the largest tensor"] == 64 * 8 / 2
    assert "optimizer state" not in terms(loaded, 1)


def test_inference_holds_no_gradients_and_stashes_nothing():
    held = terms(held_of("question_answering", training=False), 1)
    assert set(held) == {"weights", "forward pass of a layer, with matmul temporaries", "streams", "code and exchange"}
    assert held["code and exchange"] == 500.0
