"""What rows of named entities must be: a label for each word, at its first piece, and each window once."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow.compute as pc

from tasks.downstream.ner.labels import FEATURES_SCHEMA
from tasks.project import artifacts
from tasks.rows.row_files import IGNORED
from tasks.validation import text_features
from tasks.validation.checks import Check, Totals
from tasks.validation.feature_file import FeatureFile
from tasks.validation.row_features import Columns, Sequences
from tasks.validation.row_requirements import RowLimits
from tasks.validation.row_rules import RowRules

COLUMN = "token_labels"


class TagRules(RowRules):
    """Labels of tokens, and the windows in features.parquet."""

    kinds: ClassVar[tuple[str, ...]] = ("token_classification",)

    def __init__(self, limits: RowLimits, *, training: bool) -> None:
        """Take note of what is required.

        Args:
            training: whether the rows are learnt from, so that every word must have a label; to predict, types that
                train has not have none.
        """
        super().__init__(limits)
        last, again = limits.manifest.num_labels - 1, limits.again
        self._training = training
        self._windows = FeatureFile(limits, FEATURES_SCHEMA)
        many = "as many labels as words" if training else "no more labels than words"
        known = f"a class from 0 to {last}, or -100; -100 in padding and at [CLS]"
        self.total_checks = (*self._windows.total_checks, Check("labels", COLUMN, many, again, maximum=0))
        self.record_checks = (
            Check("label_slots", COLUMN, known, again, maximum=0),
            *self._windows.record_checks,
        )
        self._words = self._labelled = 0

    def prepare(self) -> list[str]:
        if problems := self._windows.prepare():
            return problems
        table = text_features.open_parquet(self.limits.folder / artifacts.FEATURES).read(columns=["positions"])
        self._words = pc.sum(pc.list_value_length(table.column("positions"))).as_py() or 0
        return []

    def features(self, rows: Columns, found: Sequences) -> Columns:
        lines, labels = self._windows.lines(rows, found), rows[COLUMN]
        inside = found.real & (rows["position_ids"] > 0)
        known = inside & (labels >= 0) & (labels < self.limits.manifest.num_labels)
        self._labelled += int(known.sum())
        wrong = ~known & (labels != IGNORED)
        return {"label_slots": wrong.sum(axis=1), **self._windows.features(rows, found, lines)}

    def totals(self) -> Totals:
        totals = self._windows.totals()
        missing = self._words - self._labelled
        totals.values["labels"] = abs(missing) if self._training else max(0, -missing)
        totals.shown["labels"] = f"{self._labelled:,} labels of {self._words:,} words"
        return totals

    def numbers(self) -> dict[str, Any]:
        return {"words": self._words, "labelled words": self._labelled}
