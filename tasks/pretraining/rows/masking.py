"""Token masking as in BERT (arXiv 1810.04805, section 3.1): 15 % chosen, 80/10/10 replaced.

Legend: N sequences, T tokens of all sequences, concatenated, R rows, S sequences and P masked positions per row at
most.
"""

from dataclasses import dataclass

import numpy as np

MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that are replaced by [MASK] and by a random token; the rest is unchanged."""
KNOWN_BUDGETS = {128: 20, 384: 56, 512: 76}
"""Row length -> P in the recipes of BERT and its successors at 15 %."""


@dataclass(frozen=True)
class MaskedTokens:
    """Token ids after masking, and the original ids of the chosen tokens."""

    token_ids: np.ndarray
    """unsigned int[T]."""
    places: np.ndarray
    """int64[M], ascending indices into token_ids of the tokens to predict."""
    labels: np.ndarray
    """unsigned int[M], original ids of these tokens."""


def default_max_predictions(row_length: int, masked_fraction: float) -> int:
    """Return the default of P: that of the known recipes at 15 %, else floor(fraction * L) + 1."""
    if masked_fraction == 0.15 and row_length in KNOWN_BUDGETS:
        return KNOWN_BUDGETS[row_length]
    return int(masked_fraction * row_length) + 1


def count_predictions(
    lengths: np.ndarray, maskable: np.ndarray, packs: np.ndarray, masked_fraction: float, max_predictions: int
) -> np.ndarray:
    """Return the number of tokens to mask in every sequence.

    It is round(fraction * tokens), at least 1, as in BERT, and at most the number of maskable tokens. If the sum over a
    row exceeds P, the largest number of the row is repeatedly reduced by one, so that no sequence loses all.

    Args:
        lengths: int[N], tokens of every sequence including special ones.
        maskable: int[N], tokens that may be chosen.
        packs: int[R, S], sequences of each row, -1 = none.
        max_predictions: P, at least S.

    Returns:
        int64[N].
    """
    wanted = np.minimum(np.maximum(1, np.rint(lengths * masked_fraction)), maskable).astype(np.int64)
    per_row = np.where(packs >= 0, wanted[packs], 0)
    while len(over := np.flatnonzero(per_row.sum(axis=1) > max_predictions)):
        per_row[over, per_row[over].argmax(axis=1)] -= 1
    wanted[packs[packs >= 0]] = per_row[packs >= 0]
    return wanted


def mask_tokens(
    token_ids: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    special: tuple[int, ...],
    mask_id: int,
    replacements: np.ndarray,
    rng: np.random.Generator,
) -> MaskedTokens:
    """Choose `counts[n]` tokens of every sequence n uniformly at random, and replace them.

    Args:
        token_ids: unsigned int[T].
        lengths: int[N], tokens of every sequence; the sum is T.
        counts: int[N], tokens to choose, at most the number of ordinary tokens of the sequence.
        special: ids that are never chosen.
        mask_id: id of [MASK].
        replacements: ids from which random replacements are drawn.
    """
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    candidates = np.flatnonzero(~np.isin(token_ids, special))
    owner = sequence[candidates]
    # Candidates are sorted by a random key within their sequence; the first counts[n] are chosen.
    by_key = np.argsort((owner << 32) | rng.integers(2**32, size=len(owner)))
    per_sequence = np.bincount(owner, minlength=len(lengths))
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(per_sequence) - per_sequence, per_sequence)
    places = np.sort(candidates[by_key[rank < np.repeat(counts, per_sequence)]])
    labels = token_ids[places]
    lot = rng.random(len(places))
    drawn = replacements[rng.integers(len(replacements), size=len(places))]
    changed = token_ids.copy()
    changed[places] = np.where(lot < MASKED, mask_id, np.where(lot < MASKED + RANDOM, drawn, labels))
    return MaskedTokens(changed, places, labels)


def count_maskable(token_ids: np.ndarray, lengths: np.ndarray, special: tuple[int, ...]) -> np.ndarray:
    """Count the tokens of every sequence that are not special, int64[N]."""
    ordinary = np.concatenate([[0], np.cumsum(~np.isin(token_ids, special))])
    ends = np.cumsum(lengths)
    return ordinary[ends] - ordinary[ends - lengths]
