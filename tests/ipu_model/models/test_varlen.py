"""Attention of GPUs: the padded form on the CPU against the others, and when the flash kernel is taken."""

from __future__ import annotations

from typing import List, Tuple

import pytest
import torch
from torch import Tensor

from ipu_model.models import flat
from ipu_model.models.flat import SequenceAttention
from ipu_model.models.layers import Attention
from ipu_model.runtimes.cuda import PaddedAttention, VarlenAttention, choose_attention

LENGTHS = [9, 9, 7, 4, 1]
OFFSETS = torch.tensor([0, 9, 18, 25, 29, 30], dtype=torch.int32)
CPU, HEADS, HIDDEN = torch.device("cpu"), 2, 16


def inputs(dtype: torch.dtype = torch.float64) -> List[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(sum(LENGTHS), HIDDEN, generator=generator).to(dtype) for _ in range(4)]


def run(attention: Attention, window: int = 0) -> List[Tensor]:
    """The result and the gradients of query, key and value."""
    query, key, value, d_output = inputs()
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    output = attention(leaves[0], leaves[1], leaves[2], HEADS, 0.0, *([window] if window else []))
    output.backward(d_output)
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("window", [0, 3])
def test_every_form_is_the_plain_one_and_a_window_hides_distant_tokens(window: int) -> None:
    found = run(PaddedAttention(OFFSETS, max(LENGTHS)), window)
    index = torch.arange(sum(LENGTHS))
    numbers = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    hidden = (numbers[:, None] != numbers) | ((index[:, None] - index).abs() > (window or 99))

    def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        q, k, v = (x.view(len(x), heads, -1).transpose(0, 1) for x in (query, key, value))
        scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)

    for expected in (run(SequenceAttention(LENGTHS), window), run(attend)):
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("window", [1, 3, 64, 100])
def test_a_band_equals_whole_scores(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(SequenceAttention(LENGTHS), window=window)
    monkeypatch.setattr(flat, "LONGEST_IN_GROUP", 3)
    for one, other in zip(run(SequenceAttention(LENGTHS), window=window), whole):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_padded_attention_drops_probabilities_at_their_rate() -> None:
    """With values of ones a row of the result is the sum of what was kept, over 1 - p: 1 on average."""
    count, length = 200, 32
    offsets = torch.arange(0, (count + 1) * length, length, dtype=torch.int32)
    zeros, ones = torch.zeros(count * length, HIDDEN), torch.ones(count * length, HIDDEN)
    torch.manual_seed(0)
    kept = PaddedAttention(offsets, length)(zeros, zeros, ones, HEADS, 0.25) * length * 0.75
    kept = kept.view(count * length, HEADS, -1)[:, :, 0]  # how many of 32 keys, binomial(32, 0.75)
    assert float(kept.mean()) == pytest.approx(32 * 0.75, abs=4 * (32 * 0.75 * 0.25) ** 0.5 / (count * length) ** 0.5)
    assert float(kept.var()) == pytest.approx(32 * 0.75 * 0.25, rel=0.1)


class RightForm:
    """Stands for a kernel that computes what it should: the CPU's own form."""

    def __init__(self, offsets: Tensor, longest: int) -> None:
        lengths = offsets.diff().tolist()
        assert max(lengths) == longest
        self._attention = SequenceAttention(lengths)

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int = 0
    ) -> Tensor:
        return self._attention(query, key, value, heads, dropout, window)


class Neighbours(RightForm):
    """Stands for a kernel that lets sequences see one another."""

    def __init__(self, offsets: Tensor, longest: int) -> None:
        super().__init__(torch.stack([offsets[0], offsets[-1]]), int(offsets[-1]))


class Everywhere(RightForm):
    """Stands for a kernel that ignores the window."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int = 0
    ) -> Tensor:
        return super().__call__(query, key, value, heads, dropout)


class Scaled(RightForm):
    """Stands for a kernel whose backward pass is wrong."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int = 0
    ) -> Tensor:
        context = super().__call__(query, key, value, heads, dropout, window)
        return context.detach() * 2 - context


def test_a_kernel_that_agrees_is_taken() -> None:
    taken = choose_attention(CPU, torch.bfloat16, HEADS, HIDDEN, RightForm, windows=True)
    assert taken == (RightForm, "flash over cumulative lengths")


@pytest.mark.parametrize(("kernel", "windows"), [(Neighbours, False), (Scaled, False), (Everywhere, True)])
def test_a_kernel_that_gives_other_numbers_is_not_taken(kernel: type, windows: bool) -> None:
    taken, reason = choose_attention(CPU, torch.bfloat16, HEADS, HIDDEN, kernel, windows)
    assert taken is PaddedAttention
    assert reason.startswith("padded: flash attention gave different results here (by ")


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        (torch.float32, (2, 16), "padded: flash attention does not support float32"),
        (torch.bfloat16, (2, 20), "padded: flash attention needs head sizes of a multiple of 8 up to 256, not 10"),
        (torch.bfloat16, (1, 264), "padded: flash attention needs head sizes of a multiple of 8 up to 256, not 264"),
        (torch.bfloat16, (2, 16), "padded: flash attention failed here ("),
    ],
)
def test_what_flash_does_not_serve_is_padded(dtype: torch.dtype, shape: Tuple[int, int], reason: str) -> None:
    """The last: on a CPU the operator is not there, as on a torch whose operator takes other arguments."""
    taken, said = choose_attention(CPU, dtype, *shape, flash=VarlenAttention)
    assert taken is PaddedAttention
    assert said.startswith(reason)


def test_torch_knows_the_flash_operator_with_these_arguments_and_its_gradients() -> None:
    """By its shapes alone, on tensors without numbers."""
    query, key, value = (
        torch.empty(30, HIDDEN, device="meta", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    attention = VarlenAttention(OFFSETS.to("meta"), max(LENGTHS))
    try:
        context = attention(query, key, value, HEADS, 0.1)
    except NotImplementedError:
        assert torch.__version__.startswith("2.0."), "torch 2.0 cannot tell without a GPU, later ones can"
        pytest.skip("torch 2.0 has no meta form of the operator")
    assert (context.shape, context.dtype) == (query.shape, query.dtype)
    context.sum().backward()
    assert all(x.grad is not None and x.grad.shape == x.shape for x in (query, key, value))


def test_choosing_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    choose_attention(CPU, torch.bfloat16, HEADS, HIDDEN, RightForm)
    assert torch.equal(torch.get_rng_state(), before)
