"""What a kind of rows adds to the requirements on all rows (row_requirements.py), stated where the kind is at home.

Those of pre-training are in pretrain_rules.py, those of downstream work in tasks/downstream/<kind>/, which
`ChecksTask.row_rules` offers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from tasks.validation.checks import Check, Totals
from tasks.validation.row_features import Columns, Sequences
from tasks.validation.row_requirements import RowLimits


class RowRules(ABC):
    """The rules for the rows of one folder, and what was seen of these rows.

    The methods are called in this order: `prepare`, `features` for batch after batch, then the others. None but
    `prepare` is called where the files, columns or tokenizer are not those that the manifest names.
    """

    kinds: ClassVar[tuple[str, ...]]
    """Kinds of rows, as manifests name them, that the rules are for."""
    total_checks: Sequence[Check]
    """Checks of the whole folder."""
    record_checks: Sequence[Check]
    """Checks of every row."""

    def __init__(self, limits: RowLimits) -> None:
        self.limits = limits

    def prepare(self) -> list[str]:
        """Read what lies beside the rows; returns what is wrong with its columns."""
        return []

    @abstractmethod
    def features(self, rows: Columns, found: Sequences) -> Columns:
        """One integer array [n] by the name of each record check.

        Args:
            rows: the columns of n rows, as stored.
            found: where their sequences are.
        """

    @abstractmethod
    def totals(self) -> Totals:
        """One number by the name of each total check."""

    def numbers(self) -> dict[str, Any]:
        """What else the page says, by its label."""
        return {}

    def histograms(self) -> list[dict[str, Any]]:
        """`Lengths.histogram` of what else the page draws."""
        return []


RulesOf = Callable[[RowLimits], RowRules]
"""Makes the rules for a folder once it is known what its rows are measured against."""


class Occurrences:
    """How often each of the numbers 0, 1, ... was seen, each of which should be there once."""

    def __init__(self, count: int) -> None:
        self._seen = np.zeros(count, np.int64)

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, numbers: np.ndarray) -> None:
        """Count some; those that are none of the numbers, such as the -1 of unused slots, are left out."""
        known = numbers[(numbers >= 0) & (numbers < len(self._seen))]
        self._seen += np.bincount(known, minlength=len(self._seen))

    def wrong(self, called: str) -> tuple[int, list[str]]:
        """How many are missing or there more than once, and some of them in words.

        Args:
            called: what a number is of.
        """
        wrong = np.flatnonzero(self._seen != 1)
        return len(wrong), [f"{called} {number}: {self._seen[number]} times" for number in wrong[:3]]
