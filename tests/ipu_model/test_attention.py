"""The hand-written attention against the plain one, and its gradient against finite differences."""

from __future__ import annotations

import pytest
import torch

from ipu_model.attention import SCORES_PER_GROUP, RowAttention, SequenceAttention, make_groups
from ipu_model.dropout import Dropout, keep_mask

LENGTHS = [5, 5, 4, 2, 2, 2]  # two rows: 5 + 4 + 2 of 12 tokens, and 5 + 2 + 2
IDS = torch.tensor([[1] * 5 + [2] * 4 + [3] * 2 + [0], [1] * 5 + [2] * 2 + [3] * 2 + [0] * 3])
# Where the tokens of LENGTHS lie in the flattened rows: row 0 starts at 0, row 1 at 12.
PLACES = torch.tensor([*range(0, 5), *range(12, 17), *range(5, 9), *range(9, 11), *range(17, 19), *range(19, 21)])


def test_neighbours_of_near_equal_length_share_a_group() -> None:
    first, second = make_groups([5, 5, 4, 2], heads=2)
    assert (first.start, first.stop, first.lengths) == (0, 14, (5, 5, 4))
    assert first.places is not None
    assert first.places.tolist() == [*range(14)]  # the one padded slot is the last of 15
    assert first.pads is not None
    assert first.pads.reshape(3, 5).tolist() == [[False] * 5, [False] * 5, [False] * 4 + [True]]
    assert (second.start, second.stop, second.lengths, second.places) == (14, 16, (2,), None)
    assert make_groups([], heads=2) == []


def test_long_sequences_go_alone() -> None:
    longest = int((SCORES_PER_GROUP / 2) ** 0.5)  # of two heads: fills a group by itself
    assert [g.lengths for g in make_groups([longest + 9, longest, longest, 8, 8], heads=2)] == [
        (longest + 9,), (longest,), (longest,), (8, 8),
    ]  # fmt: skip


def test_sequences_alone_equal_whole_rows_under_a_block_mask() -> None:
    torch.manual_seed(0)
    rows = [torch.randn(2, 12, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    flat = [x.detach().reshape(24, 8)[PLACES].clone().requires_grad_() for x in rows]
    whole = RowAttention(IDS)(rows[0], rows[1], rows[2], 2, 0.0).reshape(24, 8)[PLACES]
    alone = SequenceAttention(LENGTHS)(flat[0], flat[1], flat[2], 2, 0.0)
    torch.testing.assert_close(alone, whole, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(alone)
    (whole * weights).sum().backward()
    (alone * weights).sum().backward()
    for ours, theirs in zip(flat, rows):
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad.reshape(24, 8)[PLACES], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_backward_pass_is_the_derivative_of_the_forward_pass(dropout: float) -> None:
    """Finite differences, the dropout mask held still by the seed."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return SequenceAttention([5, 5, 4, 2])(query, key, value, 2, dropout)

    torch.manual_seed(1)
    inputs = tuple(torch.randn(16, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(attend, inputs)


def test_dropout_keeps_the_expected_value() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 6, 4).unbind()
    value = torch.ones(6, 4)
    draws = torch.stack([SequenceAttention([6])(query, key, value, 2, 0.25) for _ in range(4000)])
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
    keep, scale = keep_mask(torch.Size([1000, 333]), probability)
    assert keep.dtype == torch.bool
    assert scale == pytest.approx(1 / (1 - probability), rel=1e-4)
    # 333,000 draws: the standard error of the share is below 0.0009.
    assert float(keep.float().mean()) == pytest.approx(1 - probability, abs=0.004)


def test_dropout_scales_what_it_keeps_and_its_gradient_alike_and_follows_the_seed() -> None:
    layer = Dropout(0.25)
    values = torch.ones(50, 7, requires_grad=True)
    torch.manual_seed(1)
    dropped = layer(values)
    assert dropped.detach().unique().tolist() == pytest.approx([0.0, 4 / 3])
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, dropped.detach())
    torch.manual_seed(1)
    assert torch.equal(layer(values), dropped)
    assert not torch.equal(layer(values), dropped)
    assert torch.equal(layer.eval()(values), values)
