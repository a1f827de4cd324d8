"""The hand-written attention against the plain one, and its gradient against finite differences."""

import pytest
import torch

from ipu_model.models import flat as flat_rows
from ipu_model.models.flat import SCORES_PER_GROUP, SEQUENCE_TILE, AttentionLayout, SequenceAttention
from ipu_model.models.layers import add_dropped, draw_mask, drop, dropout_scale
from ipu_model.runtimes.cuda import PaddedAttention, VarlenAttention, choose_attention

TILE = SEQUENCE_TILE
LONGEST = int((SCORES_PER_GROUP / 2) ** 0.5) // TILE * TILE
"""Of 2 heads: over half a group."""


@pytest.mark.parametrize(
    ("lengths", "heads", "groups", "hidden"),
    [
        ([TILE, TILE - 1, TILE - 1, 2], 2, [(0, 4, TILE)], [TILE]),
        # 3 sequences make groups of 2 and 1; a padded length of two tiles is a group apart.
        (
            [TILE + 1, TILE, TILE, TILE],
            1,
            [(0, 1, 2 * TILE), (2 * TILE, 2, TILE), (4 * TILE, 1, TILE)],
            [TILE - 1, 0, 0],
        ),
        ([LONGEST, LONGEST, 8, 8], 2, [(0, 1, LONGEST), (2 * LONGEST, 1, LONGEST), (4 * LONGEST, 2, TILE)], None),
        ([], 2, [], []),
    ],
    ids=["equal", "two to a power", "long ones go alone", "none"],
)
def test_sequences_of_one_padded_length_share_groups(lengths, heads, groups, hidden):
    layout = AttentionLayout.from_lengths(lengths, heads=heads)
    assert [(group.first_row, group.sequences, group.tokens) for group in layout.groups] == groups
    if hidden is not None:
        assert [int(torch.isinf(group.hidden).sum()) for group in layout.groups] == hidden


LENGTHS = [9, 9, 7, 4, 1]
OFFSETS = torch.tensor([0, 9, 18, 25, 29, 30], dtype=torch.int32)
CPU, HEADS, HIDDEN = torch.device("cpu"), 2, 16


def run(attention, window=0):
    generator = torch.Generator().manual_seed(3)
    *leaves, d_output = (torch.randn(sum(LENGTHS), HIDDEN, generator=generator).double() for _ in range(4))
    for leaf in leaves:
        leaf.requires_grad_()
    output = attention(leaves[0], leaves[1], leaves[2], HEADS, 0.0, *([window] if window else []))
    output.backward(d_output)
    return [output.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("window", [0, 1, 3, 100])
def test_every_form_is_the_plain_one_and_a_window_hides_distant_tokens(window, monkeypatch):
    index = torch.arange(sum(LENGTHS))
    numbers = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    hidden = (numbers[:, None] != numbers) | ((index[:, None] - index).abs() > (window or 99))

    def attend(query, key, value, heads, *_):
        q, k, v = (x.view(len(x), heads, -1).transpose(0, 1) for x in (query, key, value))
        scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)

    plain = run(attend)
    padded, whole = run(PaddedAttention(OFFSETS, max(LENGTHS)), window), run(SequenceAttention(LENGTHS), window)
    monkeypatch.setattr(flat_rows, "LONGEST_IN_GROUP", 3)
    for results in (padded, whole, run(SequenceAttention(LENGTHS), window)):  # the last in a band
        torch.testing.assert_close(results, plain, rtol=1e-9, atol=1e-9)


def test_padded_attention_drops_probabilities_at_their_rate():
    """With values of ones a row of the result is the sum of what was kept, over 1 - p: 1 on average."""
    count, length = 200, 32
    offsets = torch.arange(0, (count + 1) * length, length, dtype=torch.int32)
    zeros, ones = torch.zeros(count * length, HIDDEN), torch.ones(count * length, HIDDEN)
    torch.manual_seed(0)
    kept = PaddedAttention(offsets, length)(zeros, zeros, ones, HEADS, 0.25) * length * 0.75
    kept = kept.view(count * length, HEADS, -1)[:, :, 0]  # how many of 32 keys, binomial(32, 0.75)
    assert float(kept.mean()) == pytest.approx(32 * 0.75, abs=4 * (32 * 0.75 * 0.25) ** 0.5 / (count * length) ** 0.5)
    assert float(kept.var()) == pytest.approx(32 * 0.75 * 0.25, rel=0.1)


def make_right(offsets, longest):
    """A kernel that computes what it should: the CPU's own form."""
    assert int(offsets.diff().max()) == longest
    return SequenceAttention(offsets.diff().tolist())


def show_neighbours(offsets, longest):
    return SequenceAttention([int(offsets[-1])])


def ignore_window(offsets, longest):
    return lambda *arguments: make_right(offsets, longest)(*arguments[:5])


def turn_gradient(offsets, longest):
    def attend(*arguments):
        context = make_right(offsets, longest)(*arguments)
        return context.detach() * 2 - context

    return attend


@pytest.mark.parametrize(
    ("kernel", "windows"),
    [(make_right, True), (show_neighbours, False), (turn_gradient, False), (ignore_window, True)],
)
def test_a_kernel_is_taken_where_it_gives_the_right_numbers(kernel, windows):
    before = torch.get_rng_state()
    taken, reason = choose_attention(CPU, torch.bfloat16, HEADS, HIDDEN, kernel, windows)
    assert torch.equal(torch.get_rng_state(), before)
    assert taken is (make_right if kernel is make_right else PaddedAttention)
    assert ("different results" in reason) == (kernel is not make_right)


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        (torch.float32, (2, 16), "float32"),
        (torch.bfloat16, (2, 20), "not 10"),
        (torch.bfloat16, (1, 264), "not 264"),
        (torch.bfloat16, (2, 16), "failed here"),  # on a CPU the operator is not there
    ],
)
def test_what_flash_does_not_serve_is_padded(dtype, shape, expected):
    taken, reason = choose_attention(CPU, dtype, *shape, flash=VarlenAttention)
    assert taken is PaddedAttention
    assert expected in reason


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_backward_pass_is_the_derivative_of_the_forward_pass(dropout, window, monkeypatch):
    """Finite differences, the dropout mask held still by the seed; with a window, the longer sequences in a band."""
    monkeypatch.setattr(flat_rows, "LONGEST_IN_GROUP", 4)

    def attend(query, key, value):
        torch.manual_seed(5)
        return SequenceAttention([5, 5, 4, 2])(query, key, value, 2, dropout, window)

    torch.manual_seed(1)
    inputs = tuple(torch.randn(16, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(attend, inputs)


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_the_mask_drops_its_share_and_the_scale_makes_up_for_it(probability):
    torch.manual_seed(0)
    keep = draw_mask((1000, 333), probability)
    assert keep.dtype == torch.int16
    assert keep.unique().tolist() == [-1, 0]
    assert dropout_scale(probability) == pytest.approx(1 / (1 - probability), rel=1e-4)
    # 333,000 draws: the standard error of the share is below 0.0009.
    assert -float(keep.float().mean()) == pytest.approx(1 - probability, abs=0.004)
    # Neighbours in a word, and rows, know nothing of each other: the standard error is about 0.002.
    kept = (keep != 0).double()
    for left, right in ((kept[:, :-1], kept[:, 1:]), (kept[:-1], kept[1:])):
        together = float(torch.corrcoef(torch.stack([left.reshape(-1), right.reshape(-1)]))[0, 1])
        assert together == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float64, 1e-12)])
def test_what_is_dropped_is_a_product_with_the_mask(dtype, tolerance):
    torch.manual_seed(0)
    values, other = (torch.randn(40, 9, dtype=dtype, requires_grad=True) for _ in range(2))
    keep = draw_mask(values.shape, 0.3)
    plain = (keep != 0).to(dtype) * dropout_scale(0.3)
    results = []
    for dropped in (
        drop(values, keep, 0.3) + add_dropped(values, other, keep, 0.3),
        values * plain + (values + other * plain),
    ):
        (gradient,) = torch.autograd.grad((dropped * torch.arange(9)).sum(), values)
        results.append((dropped.detach(), gradient))
    torch.testing.assert_close(results[0], results[1], rtol=tolerance, atol=tolerance)
