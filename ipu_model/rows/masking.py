"""Masking of tokens as in BERT (arXiv 1810.04805, section 3.1): chosen tokens are replaced 80/10/10.

Static masking (tasks/pretraining) masks rows once, when they are made. Dynamic masking, as in RoBERTa (arXiv
1907.11692, section 4.1), masks other tokens in every epoch, when rows are read.

Legend: N sequences, T tokens of all sequences, concatenated, M masked tokens, R rows, L tokens and P masked positions
per row at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Sequence, Tuple

import numpy as np

from ipu_model.rows.format import IGNORED

MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that are replaced by [MASK] and by a random token; the rest is unchanged."""
MOST_PADDING = 16
"""Size of a table of sequences, relative to its tokens, up to which it is used."""
STEP = 0x9E3779B97F4A7C15
"""Distance of two states of SplitMix64."""


@dataclass(frozen=True)
class MaskedTokens:
    """Token ids after masking, and the original ids of the chosen tokens."""

    token_ids: np.ndarray
    """unsigned int[T]."""
    places: np.ndarray
    """int64[M], ascending indices into token_ids of the tokens to predict."""
    labels: np.ndarray
    """unsigned int[M], original ids of these tokens."""


class GeneratorDraws:
    """Random numbers of tokens from a generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def keys(self, tokens: np.ndarray) -> np.ndarray:
        """Return a number below 2**32 for each of these tokens."""
        return self._rng.integers(2**32, size=len(tokens))

    def shares(self, tokens: np.ndarray) -> np.ndarray:
        """Return a number from 0 to below 1 for each of these tokens."""
        return self._rng.random(len(tokens))

    def choices(self, tokens: np.ndarray, count: int) -> np.ndarray:
        """Return a number below `count` for each of these tokens."""
        return self._rng.integers(count, size=len(tokens))


class PlaceDraws(GeneratorDraws):
    """Random numbers that depend on seed, epoch, row and position of a token alone: SplitMix64 (Steele, Lea and Flood,
    OOPSLA 2014). `epochs`, `rows`: int64[R]; `places`: int64[T] each, a token's row and its position in the row."""

    def __init__(self, seed: int, epochs: np.ndarray, rows: np.ndarray, places: Tuple[np.ndarray, ...]) -> None:
        of_row = _next_state(_next_state(np.array([seed % 2**64], dtype=np.uint64), epochs), rows)
        self._states = _next_state(of_row[places[0]], places[1])

    def _draw(self, tokens: np.ndarray, stream: int) -> np.ndarray:
        return mix_bits(self._states[tokens] + np.uint64(STEP * stream % 2**64))

    def keys(self, tokens: np.ndarray) -> np.ndarray:
        return (self._draw(tokens, 1) >> np.uint64(32)).astype(np.int64)

    def shares(self, tokens: np.ndarray) -> np.ndarray:
        return (self._draw(tokens, 2) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def choices(self, tokens: np.ndarray, count: int) -> np.ndarray:
        return (self._draw(tokens, 3) % np.uint64(count)).astype(np.int64)


def _next_state(states: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return mix_bits(states + np.uint64(STEP) * (numbers.astype(np.uint64) + np.uint64(1)))


def mix_bits(state: np.ndarray) -> np.ndarray:
    """Return the output of SplitMix64 for each state, uint64."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def find_ordinary(token_ids: np.ndarray, special: Sequence[int]) -> np.ndarray:
    """Return bool[T], whether each token is none of the ids `special`."""
    ordinary = np.ones(len(token_ids), bool)
    for number in special:  # faster than np.isin for a few
        ordinary &= token_ids != number
    return ordinary


def count_by_sequence(marked: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Count the marked tokens, bool[T], of every sequence, int64[N]."""
    before = np.concatenate([[0], np.cumsum(marked)])
    ends = np.cumsum(lengths)
    return before[ends] - before[ends - lengths]


def mask_tokens(
    token_ids: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    special: Sequence[int],
    mask_id: int,
    replacements: np.ndarray,
    draws: GeneratorDraws,
) -> MaskedTokens:
    """Choose `counts[n]` tokens of every sequence n uniformly at random, and replace them.

    Args:
        token_ids: unsigned int[T].
        lengths: int[N], tokens of every sequence; the sum is T.
        counts: int[N], tokens to choose, at most the number of ordinary tokens of the sequence.
        special: ids that are never chosen.
        replacements: ids from which random replacements are drawn.
    """
    ordinary = find_ordinary(token_ids, special)
    candidates, per_sequence = np.flatnonzero(ordinary), count_by_sequence(ordinary, lengths)
    places = candidates[_choose_smallest(draws.keys(candidates), per_sequence, counts)]
    labels = token_ids[places]
    share = draws.shares(places)
    drawn = replacements[draws.choices(places, len(replacements))]
    changed = token_ids.copy()
    changed[places] = np.where(share < MASKED, mask_id, np.where(share < MASKED + RANDOM, drawn, labels))
    return MaskedTokens(changed, places, labels)


def _choose_smallest(keys: np.ndarray, lengths: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return bool[K], true for the counts[n] smallest of the lengths[n] keys, below 2**32, of every sequence n."""
    longest = int(lengths.max(initial=0))
    if len(lengths) * longest <= MOST_PADDING * len(keys):
        # Sorting many short rows of four-byte numbers takes a fortieth of the time of sorting indices by keys.
        table = np.full((len(lengths), longest), 2**32 - 1, np.uint32)
        table[np.arange(longest) < lengths[:, None]] = keys
        table.sort(axis=1)
        sequences, limits = np.flatnonzero(counts), np.full(len(lengths), -1)
        limits[sequences] = table[sequences, counts[sequences] - 1]
        chosen = keys <= np.repeat(limits, lengths)
        if np.count_nonzero(chosen) == counts.sum():
            return chosen
    # few long sequences among many short ones, or equal keys where the choice ends
    rank = np.arange(len(keys)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    by_key = np.argsort((np.repeat(np.arange(len(lengths)), lengths) << 32) | keys)
    chosen = np.zeros(len(keys), bool)
    chosen[by_key[rank < np.repeat(counts, lengths)]] = True
    return chosen


def masked_columns(targets: np.ndarray, labels: np.ndarray, rows: int, length: int, most: int) -> Dict[str, np.ndarray]:
    """Return the columns of masked tokens, [rows, most], from int64[M] ascending indices in the flattened rows, and the
    original ids."""
    row, position = np.divmod(targets, length)
    per_row = np.bincount(row, minlength=rows)
    slot = np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    positions, ids = np.zeros((rows, most), np.int16), np.full((rows, most), IGNORED, np.int32)
    positions[row, slot], ids[row, slot] = position, labels
    return {"masked_positions": positions, "masked_labels": ids}


class DynamicMasking:
    """Masks other tokens of rows in every epoch: as many of each sequence as in the rows, which hold one masking.

    The ids `special` are never masked or drawn.
    """

    def __init__(self, seed: int, mask_id: int, special: Sequence[int], vocab_size: int) -> None:
        self._seed, self._mask_id, self._special = seed, mask_id, special
        self._replacements = np.setdiff1d(np.arange(vocab_size), special)

    def mask(self, columns: Dict[str, np.ndarray], rows: np.ndarray, epochs: np.ndarray) -> Dict[str, np.ndarray]:
        """Return the columns with the masking of int64[R] epochs, for rows with int64[R] numbers in their folder."""
        input_ids, sequence_ids, labels = (columns[x] for x in ("input_ids", "sequence_ids", "masked_labels"))
        row, slot = np.nonzero(labels != IGNORED)
        masked = row, columns["masked_positions"][row, slot].astype(np.int64)
        restored = input_ids.copy()
        restored[masked] = labels[row, slot]
        slots = columns["cls_positions"].shape[1] + 1
        real = np.nonzero(sequence_ids)
        lengths, chosen = (
            np.bincount(at[0] * slots + sequence_ids[at], minlength=len(rows) * slots) for at in (real, masked)
        )
        draws = PlaceDraws(self._seed, epochs, rows, real)
        masking = mask_tokens(restored[real], lengths, chosen, self._special, self._mask_id, self._replacements, draws)
        restored[real] = masking.token_ids
        length = input_ids.shape[1]
        targets = real[0][masking.places] * length + real[1][masking.places]
        return {
            **columns,
            "input_ids": restored,
            **masked_columns(targets, masking.labels, len(rows), length, labels.shape[1]),
        }
