"""What a kind of rows adds to the requirements on all rows (row_checks.py) and to those that its columns declare
(column_rules.py), stated where the kind is at home.

Those of pre-training are in pretrain_rules.py, those of downstream work in tasks/downstream/<kind>/, which
`ChecksTask.row_rules` offers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tasks.project.row_folders import Manifest
from tasks.reading.parquet import read_batches
from tasks.validation.checks import Requirements, Total
from tasks.validation.row_features import Columns, Sequences


@dataclass(frozen=True)
class RowLimits:
    """What rows are measured against."""

    folder: Path
    section: str
    """Section of params.yaml that made the rows."""
    manifest: Manifest
    vocab_size: int
    """Vocabulary size of data/tokenizer."""
    tokenizer_sha256: str
    """SHA-256 of its tokenizer.json."""
    max_positions: int
    max_unknown_share: float = 1.0
    """Share of [UNK] among the tokens at most."""

    @property
    def again(self) -> str:
        return f"make the rows again (section {self.section} of params.yaml)"


Side = Callable[[pa.RecordBatch], pa.Array]
"""Which examples of a batch are wanted: booleans."""


@dataclass(frozen=True)
class Examples:
    """The examples that the rows of one folder were made from."""

    path: Path
    stage: str
    """That writes them, for messages."""
    choose: Callable[[], tuple[Side, Sequence[str]]] | None = None
    """Finds which of a batch the rows were made from, and the columns that say so; None: all."""

    def read(self, columns: Sequence[str], at_once: int = 8192) -> Iterator[pa.RecordBatch]:
        """Yield them in order, with these columns among others.

        Raises:
            InputError: they are missing or damaged.
        """
        side, others = self.choose() if self.choose is not None else (None, ())
        for batch in read_batches(self.path, tuple(dict.fromkeys((*columns, *others))), at_once, self.stage):
            yield batch if side is None else batch.filter(side(batch))


class RowRules(Requirements, ABC):
    """The rules for the rows of one folder, and what was seen of these rows.

    The methods are called in this order: `prepare`, `features` for batch after batch, then the others. None but
    `prepare` is called where the files, columns or tokenizer are not those that the manifest names.
    """

    kinds: ClassVar[tuple[str, ...]]
    """Kinds of rows, as manifests name them, that the rules are for."""

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

    def total(self, called: str) -> Total:
        """Count those that are missing or there more than once.

        Args:
            called: what a number is of.
        """
        wrong = np.flatnonzero(self._seen != 1)
        examples = [f"{called} {number}: {self._seen[number]} times" for number in wrong[:3]]
        return Total(len(wrong), examples=examples)
