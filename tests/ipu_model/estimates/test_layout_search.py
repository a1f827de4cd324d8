"""Proposals: what is searched, what is kept, and what a proposal may not be."""

from __future__ import annotations

import dataclasses

import pytest

from ipu_model.estimates.estimate import DOES_NOT_FIT, FITS, JobEstimate
from ipu_model.estimates.ipu import Proposal, find_faster_layout
from ipu_model.estimates.ipu_memory import estimate_memories
from ipu_model.estimates.ipu_time import IpuProgram, micro_batch_seconds
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.placement import place_by_layers
from ipu_model.models.config import ModelConfig

BASE = ModelConfig(vocab_size=30522)


def proposal_of(
    head: str, layers: list[int], micro_batch: int, accumulation: int, masked: int = 0, **changes: object
) -> Proposal:
    """A BERT base on four IPUs with rows of 128 tokens."""
    placement, rows = place_by_layers(head, 12, layers, len(layers)), RowShape(128, masked)
    shares = (0.2,) * len(layers)
    training = IpuProgram(
        BASE, placement, rows, micro_batch, accumulation, state_offchip=True, matmul_proportion=shares
    )
    return find_faster_layout(dataclasses.replace(training, **changes))  # type: ignore[arg-type]


def verdict_of(program: IpuProgram) -> str:
    return JobEstimate("", estimate_memories(program), None).verdict


def test_a_slow_ipu_gives_layers_to_the_others() -> None:
    found = proposal_of("question_answering", [9, 1, 1, 1], 4, 64)
    assert found.proposed is not None
    counts = found.proposed.placement.layers_per_ipu
    assert max(counts) - min(counts) <= 1
    assert len(counts) * found.proposed.replicas == 4, "the IPUs that there are"
    assert verdict_of(found.proposed) == FITS
    assert found.gain > 0.5


def test_a_proposal_in_words_names_what_is_changed() -> None:
    found = proposal_of("question_answering", [9, 1, 1, 1], 4, 64)
    assert found.proposed is not None
    even = place_by_layers("question_answering", 12, [3, 3, 3, 3], 4)
    same = dataclasses.replace(found.proposed, placement=even, replicas=1, micro_batch_size=4)
    halves = place_by_layers("question_answering", 12, [6, 6], 2)
    of_halves = {"placement": halves, "replicas": 2, "matmul_proportion": (0.2, 0.2)}
    for changes, words in (
        ({"keeps_every_layer": False}, "[3, 3, 3, 3], micro_batch_size 4, recompute_checkpoint_every_layer false"),
        (of_halves, "[6, 6], micro_batch_size 4, replication_factor 2, matmul_proportion 0.2"),
    ):
        one = Proposal(found.current, dataclasses.replace(same, **changes))  # type: ignore[arg-type]
        said = one.describe()
        assert f"{one.gain:.0%}" in said
        assert f"layers_per_ipu {words}, " in said
        assert f"less than {1000 * one.margin:.2g} ms a row" in said


def test_the_rows_of_an_update_and_a_full_pipeline_are_kept() -> None:
    found = proposal_of("question_answering", [3, 3, 3, 3], 1, 24)
    assert found.proposed is not None
    assert found.proposed.micro_batch_size * found.proposed.accumulation * found.proposed.replicas == 24
    assert found.proposed.accumulation >= 2 * len(found.proposed.placement.layers_per_ipu) - 1


def test_what_is_fastest_already_is_left_alone() -> None:
    first = proposal_of("question_answering", [9, 1, 1, 1], 4, 64).proposed
    assert first is not None
    sizes = (list(first.placement.layers_per_ipu), first.micro_batch_size, first.accumulation)
    again = proposal_of("question_answering", *sizes, keeps_every_layer=first.keeps_every_layer)
    assert (again.proposed, again.gain, again.margin) == (None, 0.0, 0.0)
    assert not again.is_worthwhile


def test_what_does_not_fit_is_not_proposed_however_fast() -> None:
    """fp32 numbers and many masked words: the logits of larger micro-batches do not fit IPU 0."""
    found = proposal_of("pretraining", [0, 4, 4, 4], 2, 512, masked=20, weight_bytes=4.0)
    wide = proposal_of("pretraining", [0, 4, 4, 4], 64, 16, masked=20, weight_bytes=4.0)
    assert verdict_of(wide.current) == DOES_NOT_FIT
    for one in (found, wide):
        assert one.proposed is None or verdict_of(one.proposed) == FITS


def test_the_margin_is_what_the_first_ipu_may_take_on_top() -> None:
    """Two replicas may take twice as long for a row as one."""
    found = proposal_of("pretraining", [0, 4, 4, 4], 8, 64, masked=20)
    assert found.proposed is not None
    assert found.is_worthwhile
    cut, rows, counts = found.proposed, RowShape(128, 20), found.proposed.placement.layers_per_ipu
    placement = place_by_layers("pretraining", 12, list(counts), len(counts))
    first = micro_batch_seconds(IpuProgram(BASE, placement, rows, cut.micro_batch_size))[0]
    slowest = max(micro_batch_seconds(found.current))
    assert found.margin == pytest.approx(cut.replicas * slowest / 8 - first / cut.micro_batch_size)
    fuller = place_by_layers("pretraining", 12, [11, *[0] * (len(counts) - 2), 1], len(counts))
    slow = Proposal(found.current, dataclasses.replace(cut, placement=fuller))
    assert slow.margin < 0
    assert not slow.is_worthwhile


def test_a_pod_is_shared_out_among_more_replicas_too() -> None:
    """BERT base on two IPUs a replica fills its pipeline sooner; its proportions, once a list, become the default."""
    found = proposal_of("question_answering", [3, 3, 3, 3], 4, 16, matmul_proportion=(0.3, 0.2, 0.2, 0.2))
    assert found.proposed is not None
    assert (found.proposed.replicas, found.proposed.placement.layers_per_ipu) == (2, (6, 6))
    assert found.proposed.matmul_proportion == (0.2, 0.2)
    kept = proposal_of("question_answering", [3, 3, 3, 3], 4, 16, matmul_proportion=(0.1,) * 4)
    assert kept.proposed is not None
    assert set(kept.proposed.matmul_proportion) == {0.1}
