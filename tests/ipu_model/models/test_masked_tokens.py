"""The loss of masked tokens made in place, against torch's cross entropy."""

from __future__ import annotations

from typing import List, Tuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ipu_model.models import masked_lm as decoding
from ipu_model.models.masked_lm import MaskedTokenLoss

LABELS = torch.tensor([3, -100, 0, 7, 7])


def leaves(dtype: torch.dtype) -> List[Tensor]:
    """hidden [5, 4], words [8, 4] and bias [8], which is at least fp32."""
    torch.manual_seed(0)
    wide = torch.promote_types(dtype, torch.float32)
    hidden, words, bias = torch.randn(5, 4), torch.randn(8, 4), torch.randn(8)
    return [x.to(d).requires_grad_() for x, d in ((hidden, dtype), (words, dtype), (bias, wide))]


def plain(hidden: Tensor, words: Tensor, bias: Tensor) -> Tensor:
    return cross_entropy((hidden @ words.t()).to(bias.dtype) + bias, LABELS, ignore_index=-100, reduction="sum")


def loss_and_gradients(function: object, inputs: List[Tensor], factor: float = 1.0) -> Tuple[Tensor, List[Tensor]]:
    loss = function(*inputs)  # type: ignore[operator]
    (loss * factor).backward()
    return loss.detach(), [x.grad for x in inputs if x.grad is not None]


def test_it_is_the_cross_entropy_of_real_labels() -> None:
    ours = loss_and_gradients(lambda *x: MaskedTokenLoss.apply(*x, LABELS), leaves(torch.float64), factor=0.3)
    theirs = loss_and_gradients(plain, leaves(torch.float64), factor=0.3)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert len(ours[1]) == 3


@pytest.mark.parametrize("numbers", [1, 20, 1000])
def test_how_many_rows_are_made_at_once_changes_nothing(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "LOGITS_IN_CACHE", numbers)
    ours = loss_and_gradients(lambda *x: MaskedTokenLoss.apply(*x, LABELS), leaves(torch.float32))
    theirs = loss_and_gradients(plain, leaves(torch.float32))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_bf16_products_have_an_fp32_softmax_and_an_fp32_bias() -> None:
    loss, (d_hidden, d_words, d_bias) = loss_and_gradients(
        lambda *x: MaskedTokenLoss.apply(*x, LABELS), leaves(torch.bfloat16)
    )
    expected, exact = loss_and_gradients(plain, leaves(torch.float32))
    assert (d_hidden.dtype, d_words.dtype, d_bias.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert float(loss) == pytest.approx(float(expected), rel=0.01)
    for ours, theirs in zip((d_hidden, d_words, d_bias), exact):
        torch.testing.assert_close(ours.float(), theirs, rtol=0.03, atol=0.03)


def test_logits_as_large_as_they_come_do_not_overflow() -> None:
    hidden = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    words = torch.tensor([[1.0], [0.0], [-1.0]])
    loss = MaskedTokenLoss.apply(hidden, words, torch.zeros(3), torch.tensor([0, 0]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(600.0)  # sure and right: 0; sure and wrong: the distance
    assert hidden.grad is not None
    assert hidden.grad.tolist() == [[0.0], [-2.0]]


def test_rows_without_a_label_give_no_gradient_and_no_label_at_all_gives_zero() -> None:
    hidden, words, bias = leaves(torch.float32)
    loss = MaskedTokenLoss.apply(hidden, words, bias, torch.full((5,), -100))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert hidden.grad is not None
    assert words.grad is not None
    assert not hidden.grad.any()
    assert not words.grad.any()
