"""Seconds of a training call, beside what was published of BERT on IPUs."""

from __future__ import annotations

import pytest

from ipu_model.ipu.placement import place
from ipu_model.ipu.timing import CALL_SECONDS, call_seconds, forward_flops
from ipu_model.models.config import ModelConfig

BASE = ModelConfig(vocab_size=30522)
LARGE = ModelConfig(vocab_size=30522, hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
ON_FOUR = {BASE: [0, 4, 4, 4], LARGE: [3, 7, 7, 7]}


@pytest.mark.parametrize(
    ("model", "head", "row_length", "masked", "micro_batch", "accumulation", "published"),
    [
        # Global batch over sequences/s, four replicas of four Mk2 IPUs.
        (BASE, "pretraining", 128, 20, 32, 512, 65536 / 11700),
        (BASE, "pretraining", 384, 56, 8, 512, 16384 / 3470),
        (BASE, "pretraining", 512, 76, 8, 512, 16384 / 2409.4),
        (BASE, "question_answering", 384, 0, 2, 32, 256 / 720.877),
        (LARGE, "question_answering", 384, 0, 1, 64, 256 / 361.48),
    ],
)
def test_published_trainings_take_as_long_as_they_took(
    model: ModelConfig, head: str, row_length: int, masked: int, micro_batch: int, accumulation: int, published: float
) -> None:
    placement = place(head, model.num_layers, ON_FOUR[model], 4)
    found = call_seconds(model, placement, row_length, masked, micro_batch, accumulation)
    assert found == pytest.approx(published, rel=0.07)


def test_the_flops_of_every_ipu_by_hand() -> None:
    """24 H^2 L + 4 L^2 H a layer; P (2 H V + 2 H^2) of the heads, back on IPU 0."""
    model = ModelConfig(vocab_size=10, hidden_size=4, num_layers=3, num_heads=1, intermediate_size=16)
    layer = 24 * 16 * 5 + 4 * 25 * 4
    tied = place("pretraining", 3, [1, 2], 2)
    assert forward_flops(model, tied, 5, 3) == [layer + 3 * (2 * 4 * 10 + 2 * 16), 2 * layer]
    assert forward_flops(model, place("question_answering", 3, [1, 2], 2), 5, 0) == [layer, 2 * layer]


def test_a_call_of_several_updates_pays_its_fixed_cost_once() -> None:
    placement = place("question_answering", 12, [3, 3, 3, 3], 4)
    one, two = (call_seconds(BASE, placement, 384, 0, 2, 32, updates) for updates in (1, 2))
    fixed = 2 * one - two
    assert CALL_SECONDS < fixed < one
