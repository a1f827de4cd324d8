"""The share of [UNK] among the tokens of rows: what a vocabulary does not have of a text."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

WARN_SHARE = 0.01
"""Share from which on there is a warning. English text has less than 0.1 % with BERT's vocabulary, tweets some 1 %."""


class UnknownTokens:
    """Counts of the tokens of rows, and of those that are [UNK]."""

    def __init__(self, unknown: int | None, special: Collection[int]) -> None:
        """Prepare to count.

        Args:
            unknown: id of [UNK]; None: the tokenizer has none.
            special: ids that stand for no text: [CLS] and [SEP].
        """
        self._unknown, self._special = unknown, np.array(sorted(special))
        self.tokens = self.unknown = 0

    def add(self, ids: np.ndarray, real: np.ndarray) -> None:
        """Count the ids that are `real`, no padding."""
        self.tokens += int((real & ~np.isin(ids, self._special)).sum())
        if self._unknown is not None:
            self.unknown += int((real & (ids == self._unknown)).sum())

    @property
    def share(self) -> float:
        """Share of [UNK] among the tokens of text."""
        return self.unknown / max(1, self.tokens)

    def __str__(self) -> str:
        return f"{self.unknown:,} of {self.tokens:,} tokens ({self.share:.2%}) are [UNK]"

    @property
    def warning(self) -> str:
        """A message from WARN_SHARE on; empty below."""
        if self.share < WARN_SHARE:
            return ""
        return f"{self}. A vocabulary that fits the text has fewer than {WARN_SHARE:.0%}: check its language and size"
