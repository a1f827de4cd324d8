import numpy as np
import pytest

from ipu_model.rows.masking import GeneratorDraws, mask_tokens
from tasks.pretraining.rows.masking import count_maskable, count_predictions, default_max_predictions

SPECIAL = (0, 1, 2, 3, 4)
CLS, SEP, MASK = 2, 3, 4


@pytest.mark.parametrize(
    ("fraction", "budgets"),
    [(0.15, {128: 20, 384: 56, 512: 76, 64: 10, 100: 16, 256: 39}), (0.3, {128: 39, 512: 154})],
)
def test_the_budget_of_masked_positions_is_the_known_recipes_or_the_fraction_and_one_more(fraction, budgets):
    assert {length: default_max_predictions(length, fraction) for length in budgets} == budgets


@pytest.mark.parametrize(
    ("lengths", "ordinary", "packs", "limit", "counts"),
    [
        # 0.15 * 128 = 19.2, * 30 = 4.5 (half to even), * 50 = 7.5, * 5 = 0.75
        ([128, 30, 50, 5], [125, 27, 47, 2], [[0], [1], [2], [3]], 20, [19, 4, 8, 1]),
        # 60, 40, 27 tokens ask for 9 + 6 + 4 = 19
        ([60, 40, 27], [57, 37, 24], [[0, 1, 2]], 19, [9, 6, 4]),
        ([60, 40, 27], [57, 37, 24], [[0, 1, 2]], 18, [8, 6, 4]),
        ([60, 40, 27], [57, 37, 24], [[0, 1, 2]], 12, [4, 4, 4]),
        ([60, 40, 27], [57, 37, 24], [[0, 1, 2]], 3, [1, 1, 1]),
        ([60, 40, 27], [57, 37, 24], [[0, 2, -1], [1, -1, -1]], 10, [6, 6, 4]),
        ([100, 20], [2, 0], [[0], [1]], 20, [2, 0]),
    ],
)
def test_sequences_ask_for_15_percent_or_one_token_and_a_full_row_takes_from_its_largest(
    lengths, ordinary, packs, limit, counts
):
    made = count_predictions(np.array(lengths), np.array(ordinary), np.array(packs), 0.15, limit)
    assert made.tolist() == counts


class FewKeys(GeneratorDraws):
    """Keys that are often equal."""

    def keys(self, tokens):
        return super().keys(tokens) % 50


@pytest.mark.parametrize("draws", [GeneratorDraws, FewKeys])
@pytest.mark.parametrize("longest", [60, 6000])
def test_the_tokens_with_the_smallest_keys_are_chosen(draws, longest):
    """Whether many sequences are sorted as a table, or a few long ones as indices."""
    rng = np.random.default_rng(4)
    lengths = np.append(rng.integers(5, 60, size=300), longest)
    token_ids = rng.integers(5, 1000, size=lengths.sum()).astype(np.uint16)
    token_ids[rng.random(len(token_ids)) < 0.02] = 1
    ends = np.cumsum(lengths)
    token_ids[ends - lengths], token_ids[ends - 1], token_ids[ends - 3] = CLS, SEP, SEP
    maskable = count_maskable(token_ids, lengths, SPECIAL)
    counts = np.minimum(maskable, np.arange(len(lengths)) % 8)
    rng, again = (np.random.default_rng(5) for _ in range(2))
    masked = mask_tokens(token_ids, lengths, counts, SPECIAL, MASK, np.arange(5, 1000), draws(rng))
    candidates = np.flatnonzero(~np.isin(token_ids, SPECIAL))
    keys = dict(zip(candidates.tolist(), draws(again).keys(candidates).tolist(), strict=True))
    chosen = set(masked.places.tolist())
    for end, length, count in zip(ends.tolist(), lengths.tolist(), counts.tolist(), strict=True):
        places = [place for place in range(end - length, end) if place in keys]
        assert sorted(keys[place] for place in chosen & {*places}) == sorted(keys[place] for place in places)[:count]
