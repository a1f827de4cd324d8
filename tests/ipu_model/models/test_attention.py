"""The hand-written attention against the plain one, and its gradient against finite differences."""

from __future__ import annotations

import pytest
import torch

from ipu_model.models import flat as flat_rows
from ipu_model.models.flat import SCORES_PER_GROUP, SEQUENCE_TILE, AttentionLayout, SequenceAttention
from ipu_model.models.layers import add_dropped, apply_mask, draw_mask, draw_mask_for, drop, dropout_scale


def test_sequences_of_one_padded_length_share_groups_of_two_to_a_power() -> None:
    layout = AttentionLayout.from_lengths([SEQUENCE_TILE, SEQUENCE_TILE - 1, SEQUENCE_TILE - 1, 2], heads=2)
    assert [(g.first_row, g.sequences, g.tokens) for g in layout.groups] == [(0, 4, SEQUENCE_TILE)]
    assert torch.isinf(layout.groups[0].hidden).sum((1, 2, 3)).tolist() == [0, 1, 1, SEQUENCE_TILE - 2]
    # 3 sequences make groups of 2 and 1; a padded length of two tiles is a group apart.
    layout = AttentionLayout.from_lengths([SEQUENCE_TILE + 1, SEQUENCE_TILE, SEQUENCE_TILE, SEQUENCE_TILE], heads=1)
    tile, found = SEQUENCE_TILE, [(g.first_row, g.sequences, g.tokens) for g in layout.groups]
    assert found == [(0, 1, 2 * tile), (2 * tile, 2, tile), (4 * tile, 1, tile)]
    assert [int(torch.isinf(g.hidden).sum()) for g in layout.groups] == [SEQUENCE_TILE - 1, 0, 0]
    assert AttentionLayout.from_lengths([], heads=2).groups == []


def test_long_sequences_go_alone() -> None:
    longest = (
        int((SCORES_PER_GROUP / 2) ** 0.5) // SEQUENCE_TILE * SEQUENCE_TILE
    )  # of two heads: more than half a group
    assert [g.sequences for g in AttentionLayout.from_lengths([longest, longest, longest, 8, 8], heads=2).groups] == [
        1,
        1,
        1,
        2,
    ]


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_backward_pass_is_the_derivative_of_the_forward_pass(
    dropout: float, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite differences, the dropout mask held still by the seed; with a window, the longer sequences in a band."""
    monkeypatch.setattr(flat_rows, "LONGEST_IN_GROUP", 4)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return SequenceAttention([5, 5, 4, 2])(query, key, value, 2, dropout, window)

    torch.manual_seed(1)
    inputs = tuple(torch.randn(16, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(attend, inputs)


def test_dropout_keeps_the_expected_value() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 6, 4).unbind()
    value = torch.ones(6, 4)
    draws = torch.stack([SequenceAttention([6])(query, key, value, 2, 0.25) for _ in range(1000)])
    # Each output sums 6 probabilities (1 in all), each kept with 3/4 and scaled by 4/3.
    assert float(draws.mean()) == pytest.approx(1.0, abs=0.01)
    assert float(draws.std()) > 0.1


def test_bf16_scores_are_softmaxed_in_fp32() -> None:
    torch.manual_seed(0)
    exact = [torch.randn(40, 8) for _ in range(3)]
    low = [x.bfloat16() for x in exact]
    ours = SequenceAttention([40])(low[0], low[1], low[2], 1, 0.0)
    assert ours.dtype == torch.bfloat16
    reference = SequenceAttention([40])(low[0].float(), low[1].float(), low[2].float(), 1, 0.0)
    torch.testing.assert_close(ours.float(), reference, rtol=0.02, atol=0.02)  # bf16 keeps 8 bits


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_the_mask_drops_its_share_and_the_scale_makes_up_for_it(probability: float) -> None:
    torch.manual_seed(0)
    keep = draw_mask((1000, 333), probability)
    assert keep.dtype == torch.int16
    assert keep.unique().tolist() == [-1, 0]
    assert dropout_scale(probability) == pytest.approx(1 / (1 - probability), rel=1e-4)
    # 333,000 draws: the standard error of the share is below 0.0009.
    assert -float(keep.float().mean()) == pytest.approx(1 - probability, abs=0.004)
    # Neighbours in a word, and rows, know nothing of each other: the standard error is about 0.002.
    kept = (keep != 0).double()
    for one, other in ((kept[:, :-1], kept[:, 1:]), (kept[:-1], kept[1:])):
        together = float(torch.corrcoef(torch.stack([one.reshape(-1), other.reshape(-1)]))[0, 1])
        assert together == pytest.approx(0.0, abs=0.01)


def test_no_dropout_draws_nothing_and_changes_nothing() -> None:
    values = torch.randn(5, 7)
    before = torch.get_rng_state()
    assert draw_mask_for(values, 0.0) is None
    assert drop(values, None, 0.0) is values
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_mask_is_applied_to_the_bits_of_any_float(dtype: torch.dtype) -> None:
    values = torch.tensor([1.5, -2.0, float("inf"), -0.0, float("nan")], dtype=dtype)
    keep = torch.tensor([-1, 0, -1, -1, 0], dtype=torch.int16)
    assert apply_mask(values, keep).tolist() == [1.5, 0.0, float("inf"), 0.0, 0.0]


def test_what_is_dropped_is_a_product_with_the_mask() -> None:
    torch.manual_seed(0)
    values = torch.randn(40, 9, requires_grad=True)
    keep = draw_mask(values.shape, 0.3)
    plain = (keep != 0) * dropout_scale(0.3)
    found = []
    for ours in (True, False):
        values.grad = None
        if ours:
            dropped = drop(values, keep, 0.3) + add_dropped(values, 2 * values, keep, 0.3)
        else:
            dropped = values * plain + (values + 2 * values * plain)
        (dropped * torch.arange(9)).sum().backward()
        assert values.grad is not None
        found.append((dropped.detach().clone(), values.grad.clone()))
    torch.testing.assert_close(found[0], found[1])
