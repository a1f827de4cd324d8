"""Seconds of IPUs: by hand where the arithmetic is short, and next to what was published."""

from __future__ import annotations

import dataclasses

import pytest

from ipu_model.estimates.ipu_constants import BOW, FITTED, MK2, FittedConstants
from ipu_model.estimates.ipu_time import IpuProgram, call_interval, micro_batch_seconds, update_seconds
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.placement import place_by_layers
from ipu_model.models.config import ModelConfig

BASE = ModelConfig(vocab_size=30522)
LARGE = ModelConfig(vocab_size=30522, hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
ON_FOUR = {BASE: [0, 4, 4, 4], LARGE: [3, 7, 7, 7]}
SMALL = ModelConfig(vocab_size=10, hidden_size=4, num_layers=3, num_heads=2, intermediate_size=16)
NOTHING = FittedConstants(0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("model", "head", "rows", "micro_batch", "accumulation", "offchip", "published"),
    [
        # Global batch over sequences/s, four replicas of four Mk2 IPUs.
        (BASE, "pretraining", RowShape(128, 20), 32, 512, True, 65536 / 11700),
        (BASE, "pretraining", RowShape(384, 56), 8, 512, True, 16384 / 3470),
        (BASE, "pretraining", RowShape(512, 96), 8, 512, False, 16384 / 2409.4),
        (BASE, "question_answering", RowShape(384), 2, 32, False, 256 / 720.877),
        (LARGE, "question_answering", RowShape(384), 1, 64, True, 256 / 361.48),
    ],
)
def test_published_trainings_take_as_long_as_they_took(
    model: ModelConfig,
    head: str,
    rows: RowShape,
    micro_batch: int,
    accumulation: int,
    offchip: bool,
    published: float,
) -> None:
    placement = place_by_layers(head, model.num_layers, ON_FOUR[model], 4)
    training = IpuProgram(model, placement, rows, micro_batch, accumulation, 4, state_offchip=offchip)
    assert call_interval(training).likely == pytest.approx(published, rel=0.10)
    found = call_interval(training)
    assert found.low <= published <= found.high


def training_of(fitted: FittedConstants, head: str = "pretraining") -> IpuProgram:
    """Three layers on two IPUs, 5 tokens and 3 masked slots, 2 rows a micro-batch."""
    rows = RowShape(5, 3 if head == "pretraining" else 0)
    return IpuProgram(SMALL, place_by_layers(head, 3, [1, 2], 2), rows, 2, 6, state_offchip=True, fitted=fitted)


def test_products_with_weights_by_hand() -> None:
    """24 H^2 L a layer; P (2 H V + 2 H^2) of the heads, back on IPU 0; four passes of two rows, at the peak."""
    at_peak = dataclasses.replace(NOTHING, dense=1.0)
    layer, decoder = 24 * 16 * 5, 3 * (2 * 4 * 10 + 2 * 16)
    tied, last = training_of(at_peak), training_of(at_peak, "question_answering")
    for training, flops in ((tied, [layer + decoder, 2 * layer]), (last, [layer, 2 * layer])):
        assert micro_batch_seconds(training) == [pytest.approx(4 * 2 * x / 250e12) for x in flops]


def test_every_constant_counts_what_it_says_it_counts() -> None:
    """7 forward stages are 3 with the heads on IPU 0: beats are 6 + 2 x 3 - 2 = 10; 2 layers on the slower IPU."""
    scores = update_seconds(training_of(dataclasses.replace(NOTHING, score=1.0)))
    assert scores.micro_batches + scores.ramp == 10 * 2 * max(2 * 2 * 25, 2 * 25 + 3 * 10)
    layers = update_seconds(training_of(dataclasses.replace(NOTHING, layer=1.0)))
    assert (layers.slowest, layers.micro_batches, layers.ramp) == (1, 6 * 2, 4 * 2)
    assert update_seconds(dataclasses.replace(training_of(NOTHING), state_offchip=False)).offchip == 0
    host = dataclasses.replace(training_of(dataclasses.replace(NOTHING, host=1.0)), updates_per_call=3)
    assert call_interval(host).likely == pytest.approx(1.0 + 3 * update_seconds(host).streams)


def test_off_chip_state_costs_for_every_weight_of_the_model() -> None:
    found = update_seconds(training_of(dataclasses.replace(NOTHING, offchip=1.0))).offchip
    layer = 12 * 16 + 13 * 4
    embeddings, pooler = (10 + 512 + 2 + 2) * 4, 4 * 5
    heads = 4 * 5 + 2 * 4 + 10 + 2 * 5
    assert found == embeddings + 3 * layer + pooler + heads


def test_a_bow_computes_faster_and_its_host_does_not() -> None:
    training = IpuProgram(BASE, place_by_layers("pretraining", 12, ON_FOUR[BASE], 4), RowShape(128, 20), 32, 512, 4)
    mk2, bow = (update_seconds(dataclasses.replace(training, generation=x)) for x in (MK2, BOW))
    assert mk2.micro_batches == pytest.approx(1.4 * bow.micro_batches)
    assert mk2.streams == bow.streams > 0


def test_gradients_of_one_replica_go_nowhere_and_those_of_several_racks_through_gateways() -> None:
    placement = place_by_layers("pretraining", 24, ON_FOUR[LARGE], 4)
    alone, pod16, pod64 = (
        update_seconds(IpuProgram(LARGE, placement, RowShape(128, 20), 8, 512, replicas)).collectives
        for replicas in (1, 4, 16)
    )
    assert alone == 0 < pod16 < pod64


def test_a_single_ipu_recomputes_nothing() -> None:
    one, two = (place_by_layers("question_answering", 4, layers, len(layers)) for layers in ([4], [4, 0]))
    model = dataclasses.replace(BASE, num_layers=4)
    alone, piped = (micro_batch_seconds(IpuProgram(model, placement, RowShape(384), 2)) for placement in (one, two))
    assert alone[0] == pytest.approx(0.75 * piped[0])


def test_inference_goes_forward_alone_and_fills_its_pipeline() -> None:
    placement, rows = place_by_layers("question_answering", 12, [6, 6], 2), RowShape(384)
    forward = IpuProgram(BASE, placement, rows, 2, 8, training=False)
    each = micro_batch_seconds(forward)[0] / 4
    assert call_interval(forward).likely == pytest.approx(9 * each + FITTED.host)
    in_turn = call_interval(dataclasses.replace(forward, pipelined=False))
    assert in_turn.likely == pytest.approx(8 * 2 * each + FITTED.host)
    assert in_turn.low < in_turn.likely < in_turn.high
