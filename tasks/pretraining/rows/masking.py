"""Numbers of tokens to mask; ipu_model/rows/masking.py chooses and replaces the tokens.

Legend: N sequences, T tokens of all sequences, concatenated, R rows, S sequences and P masked positions per row at
most.
"""

import numpy as np

from ipu_model.rows.masking import count_by_sequence, find_ordinary

KNOWN_BUDGETS = {128: 20, 384: 56, 512: 76}
"""Row length -> P in the recipes of BERT and its successors at 15 %."""


def default_max_predictions(row_length: int, masked_fraction: float) -> int:
    """Return the default of P: that of the known recipes at 15 %, else floor(fraction * L) + 1."""
    if masked_fraction == 0.15 and row_length in KNOWN_BUDGETS:
        return KNOWN_BUDGETS[row_length]
    return int(masked_fraction * row_length) + 1


def count_predictions(
    lengths: np.ndarray, maskable: np.ndarray, packs: np.ndarray, masked_fraction: float, max_predictions: int
) -> np.ndarray:
    """Return the number of tokens to mask in every sequence, int64[N].

    It is round(fraction * tokens), at least 1, as in BERT, and at most the number of maskable tokens. If the sum over a
    row exceeds P, the largest number of the row is repeatedly reduced by one, so that no sequence loses all.

    Args:
        lengths: int[N], tokens of every sequence including special ones.
        maskable: int[N], tokens that may be chosen.
        packs: int[R, S], sequences of each row, -1 = none.
        max_predictions: P, at least S.
    """
    counts = np.minimum(np.maximum(1, np.rint(lengths * masked_fraction)), maskable).astype(np.int64)
    per_row = np.where(packs >= 0, counts[packs], 0)
    while len(over := np.flatnonzero(per_row.sum(axis=1) > max_predictions)):
        per_row[over, per_row[over].argmax(axis=1)] -= 1
    counts[packs[packs >= 0]] = per_row[packs >= 0]
    return counts


def count_maskable(token_ids: np.ndarray, lengths: np.ndarray, special: tuple[int, ...]) -> np.ndarray:
    """Count the tokens of every sequence that are not special, int64[N]."""
    return count_by_sequence(find_ordinary(token_ids, special), lengths)
