"""The loss of masked tokens made in place, against torch's cross entropy."""

from __future__ import annotations

from typing import Callable, Dict, List

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ipu_model.models import masked_lm as decoding
from ipu_model.models.masked_lm import ChunkedTokenLoss, MaskedTokenLoss, differentiate_in_place, softmax_gradient

LABELS = torch.tensor([3, -100, 0, 7, 7])


def leaves(dtype: torch.dtype) -> List[Tensor]:
    """hidden [5, 4], words [8, 4] and bias [8], which is at least fp32."""
    torch.manual_seed(0)
    wide = torch.promote_types(dtype, torch.float32)
    hidden, words, bias = torch.randn(5, 4), torch.randn(8, 4), torch.randn(8)
    return [x.to(d).requires_grad_() for x, d in ((hidden, dtype), (words, dtype), (bias, wide))]


def plain(hidden: Tensor, words: Tensor, bias: Tensor) -> Tensor:
    return cross_entropy((hidden @ words.t()).to(bias.dtype) + bias, LABELS, ignore_index=-100, reduction="sum")


def test_logits_as_large_as_they_come_do_not_overflow() -> None:
    hidden = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    words = torch.tensor([[1.0], [0.0], [-1.0]])
    loss = MaskedTokenLoss.apply(hidden, words, torch.zeros(3), torch.tensor([0, 0]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(600.0)  # sure and right: 0; sure and wrong: the distance
    assert hidden.grad.tolist() == [[0.0], [-2.0]]


def test_rows_without_a_label_give_no_gradient_and_no_label_at_all_gives_zero() -> None:
    hidden, words, bias = leaves(torch.float32)
    loss = MaskedTokenLoss.apply(hidden, words, bias, torch.full((5,), -100))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not hidden.grad.any()
    assert not words.grad.any()


FORMS: Dict[str, Callable[..., Tensor]] = {
    "whole": MaskedTokenLoss.apply,
    "chunks": lambda *x: ChunkedTokenLoss.apply(*x, differentiate_in_place),
    "one pass": lambda *x: ChunkedTokenLoss.apply(*x, softmax_gradient),
}


@pytest.mark.parametrize("numbers", [1, 20, 1000])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str
)
@pytest.mark.parametrize("form", FORMS)
def test_the_loss_is_the_cross_entropy_of_real_labels_however_many_rows_are_made_at_once(
    form: str, dtype: torch.dtype, tolerance: float, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16, products alone are rounded: softmax and bias are fp32."""
    for limit in ("LOGITS_IN_CACHE", "LOGITS_PER_CHUNK"):
        monkeypatch.setattr(decoding, limit, numbers)
    ours, exact = leaves(dtype), leaves(torch.float64 if dtype == torch.float64 else torch.float32)
    for loss in (FORMS[form](*ours, LABELS), plain(*exact)):
        (loss * 0.3).backward()
    assert float(FORMS[form](*ours, LABELS)) == pytest.approx(float(plain(*exact)), rel=tolerance)
    for mine, other in zip(ours, exact):
        assert mine.grad.dtype == mine.dtype
        torch.testing.assert_close(mine.grad, other.grad, rtol=tolerance, atol=tolerance, check_dtype=False)
