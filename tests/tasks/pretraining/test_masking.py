import numpy as np
import pytest

from ipu_model.rows.masking import GeneratorDraws, mask_tokens
from tasks.pretraining.rows.masking import count_maskable, count_predictions, default_max_predictions

SPECIAL = (0, 1, 2, 3, 4)
CLS, SEP, MASK = 2, 3, 4


def test_the_budget_of_masked_positions_is_the_known_recipes_or_the_fraction_and_one_more() -> None:
    assert [default_max_predictions(length, 0.15) for length in (128, 384, 512)] == [20, 56, 76]
    assert [default_max_predictions(length, 0.15) for length in (64, 100, 256)] == [10, 16, 39]
    assert [default_max_predictions(length, 0.3) for length in (128, 512)] == [39, 154]


@pytest.mark.parametrize(
    ("lengths", "packs", "limit", "counts"),
    [
        # 0.15 * 128 = 19.2, * 30 = 4.5 (half to even), * 50 = 7.5, * 5 = 0.75
        ([128, 30, 50, 5], [[0], [1], [2], [3]], 20, [19, 4, 8, 1]),
        # 60, 40, 27 tokens ask for 9 + 6 + 4 = 19
        ([60, 40, 27], [[0, 1, 2]], 19, [9, 6, 4]),
        ([60, 40, 27], [[0, 1, 2]], 18, [8, 6, 4]),
        ([60, 40, 27], [[0, 1, 2]], 12, [4, 4, 4]),
        ([60, 40, 27], [[0, 1, 2]], 3, [1, 1, 1]),
        ([60, 40, 27], [[0, 2, -1], [1, -1, -1]], 10, [6, 6, 4]),
    ],
)
def test_sequences_ask_for_15_percent_or_one_token_and_a_full_row_takes_from_its_largest(
    lengths: list[int], packs: list[list[int]], limit: int, counts: list[int]
) -> None:
    found = count_predictions(np.array(lengths), np.array(lengths) - 3, np.array(packs), 0.15, limit)
    assert found.tolist() == counts


def test_no_more_than_the_ordinary_tokens_are_chosen() -> None:
    packs = np.array([[0], [1]])
    assert count_predictions(np.array([100, 20]), np.array([2, 0]), packs, 0.15, 20).tolist() == [2, 0]


def sequences(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and lengths of sequences [CLS] ... [SEP] ... [SEP], some [UNK] inside."""
    lengths = rng.integers(5, 60, size=count)
    token_ids = rng.integers(5, 1000, size=lengths.sum()).astype(np.uint16)
    token_ids[rng.random(len(token_ids)) < 0.02] = 1
    ends = np.cumsum(lengths)
    token_ids[ends - lengths], token_ids[ends - 1], token_ids[ends - 3] = CLS, SEP, SEP
    return token_ids, lengths


class FewKeys(GeneratorDraws):
    """Keys that are often equal."""

    def keys(self, tokens: np.ndarray) -> np.ndarray:
        return super().keys(tokens) % 50


@pytest.mark.parametrize("draws", [GeneratorDraws, FewKeys])
@pytest.mark.parametrize("longest", [60, 6000])
def test_the_tokens_with_the_smallest_keys_are_chosen(draws: type[GeneratorDraws], longest: int) -> None:
    """Whether many sequences are sorted as a table, or a few long ones as indices."""
    token_ids, lengths = sequences(np.random.default_rng(4), 300)
    token_ids, lengths = np.append(token_ids, np.full(longest, 7, np.uint16)), np.append(lengths, longest)
    maskable = count_maskable(token_ids, lengths, SPECIAL)
    counts = np.minimum(maskable, np.arange(len(lengths)) % 8)
    rng, again = (np.random.default_rng(5) for _ in range(2))
    masked = mask_tokens(token_ids, lengths, counts, SPECIAL, MASK, np.arange(5, 1000), draws(rng))
    candidates = np.flatnonzero(~np.isin(token_ids, SPECIAL))
    keys = dict(zip(candidates.tolist(), draws(again).keys(candidates).tolist(), strict=True))
    places, end = set(masked.places.tolist()), 0
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        own = [place for place in range(end, end + length) if place in keys]
        end += length
        chosen = [place for place in own if place in places]
        assert sorted(keys[place] for place in chosen) == sorted(keys[place] for place in own)[:count]
