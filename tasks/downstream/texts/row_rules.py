"""What rows of labelled texts must be: a class or a value for every example, each once. Legend: n rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from tasks.rows.row_files import IGNORED
from tasks.validation.checks import Check, Total, Totals
from tasks.validation.row_checks import Columns, RowData, RowSource, Sequences

COLUMN, AS_EXAMPLES = "class_labels or targets", "labels_as_in_examples"
MOST = "no more labels than sequences"


class LabelRows(RowData):
    """Labels of sequences, which are numbered examples."""

    kinds: ClassVar[tuple[str, ...]] = ("sequence_classification", "sequence_regression")

    def __init__(self, source: RowSource, expected: Callable[[], np.ndarray] | None = None) -> None:
        """Open the rows.

        Args:
            expected: reads the label of each example, -100 for none; None: labels are not compared with examples.
        """
        super().__init__(source)
        sequences = self.manifest.sequences
        # To predict, classes that train has not have no label.
        every, least = ("every sequence has a label", sequences) if source.training else (MOST, 0)
        self.total_checks += (Check("labels", COLUMN, every, self.again, minimum=least, maximum=sequences),)
        if expected is not None:
            self.record_checks += (Check(AS_EXAMPLES, COLUMN, "the label of its example", self.again),)
        self._read_expected = expected
        self._expected = np.zeros(0)
        self._labelled = 0

    def prepare_kind(self) -> list[str]:
        if self._read_expected is not None:
            self._expected = self._read_expected()
        return []

    def kind_features(self, rows: Columns, found: Sequences) -> Columns:
        ids, labels = rows["feature_ids"], rows["targets" if "targets" in rows else "class_labels"]
        self._labelled += int((found.present(labels.shape[1]) & (labels != IGNORED)).sum())
        if self._read_expected is None:
            return {}
        # Slots of no known example are left out.
        known = (ids >= 0) & (ids < len(self._expected))
        other = np.zeros(ids.shape, bool)
        other[known] = labels[known] != self._expected[ids[known]]
        return {AS_EXAMPLES: other.sum(axis=1)}

    def totals(self) -> Totals:
        return {**super().totals(), "labels": Total(self._labelled)}

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "labelled sequences": self._labelled}
