"""What rows of labelled texts must be: a class or a value for every example, each once. Legend: n rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from tasks.rows.row_files import ABSENT, IGNORED
from tasks.validation.checks import Check, Total, Totals
from tasks.validation.row_features import Columns, Sequences
from tasks.validation.row_requirements import RowLimits
from tasks.validation.row_rules import Occurrences, RowRules

COLUMN, AS_EXAMPLES = "class_labels or targets", "labels_as_in_examples"


class LabelRules(RowRules):
    """Labels of sequences, which are numbered examples."""

    kinds: ClassVar[tuple[str, ...]] = ("sequence_classification", "sequence_regression")

    def __init__(self, limits: RowLimits, *, training: bool, expected: Callable[[], np.ndarray] | None = None) -> None:
        """Take note of what is required.

        Args:
            training: whether the rows are learnt from, so that every sequence must have a label; to predict, classes
                that train has not have none.
            expected: reads the label of each example, -100 for none; None: labels are not compared with examples.
        """
        super().__init__(limits)
        self._training = training
        sequences, labels, again = limits.manifest.sequences, limits.manifest.num_labels, limits.again
        known = "a finite number" if labels == 1 else f"a class from 0 to {labels - 1}"
        numbers = "the number of an example for every sequence, -1 for none"
        every, least = ("every sequence has a label", sequences) if training else ("no more labels than sequences", 0)
        self.total_checks = (
            Check("examples_once", "feature_ids", "every example, from 0 on, exactly once", again),
            Check("labels", COLUMN, every, again, minimum=least, maximum=sequences),
        )
        self.record_checks = (
            Check("label_slots", COLUMN, f"{known}, -100 where no sequence is", again),
            Check("feature_slots", "feature_ids", numbers, again),
            *([] if expected is None else [Check(AS_EXAMPLES, COLUMN, "the label of its example", again)]),
        )
        self._read_expected = expected
        self._expected = np.zeros(0)
        self._labelled = 0
        self._examples = Occurrences(sequences)

    def prepare(self) -> list[str]:
        if self._read_expected is not None:
            self._expected = self._read_expected()
        return []

    def features(self, rows: Columns, found: Sequences) -> Columns:
        features = label_features(rows, found, self.limits.manifest.num_labels, training=self._training)
        self._labelled += int(features["labelled"].sum())
        self._examples.add(rows["feature_ids"].reshape(-1))
        if self._read_expected is not None:
            features[AS_EXAMPLES] = count_other_labels(rows, self._expected)
        return features

    def totals(self) -> Totals:
        return {"examples_once": self._examples.total("example"), "labels": Total(self._labelled)}

    def numbers(self) -> dict[str, Any]:
        return {"labelled sequences": self._labelled}


def label_features(rows: Columns, found: Sequences, labels: int, *, training: bool) -> Columns:
    """Features [n] of class_labels or targets, and of feature_ids.

    Args:
        labels: classes; 1 for the values of a regression.
        training: whether every sequence must have one.
    """
    ids = rows["feature_ids"]
    present = np.arange(ids.shape[1]) < found.per_row[:, None]
    if "targets" in rows:
        values = rows["targets"]
        known = np.isfinite(values) & (values != IGNORED)
    else:
        values = rows["class_labels"]
        known = (values >= 0) & (values < labels)
    right = np.where(present, known | ((values == IGNORED) & (not training)), values == IGNORED)
    return {
        "label_slots": (~right).sum(axis=1),
        "labelled": (present & known).sum(axis=1),
        "feature_slots": np.where(present, ids < 0, ids != ABSENT).sum(axis=1),
    }


def count_other_labels(rows: Columns, expected: np.ndarray) -> np.ndarray:
    """Count, in each row, the labels that are not those of their examples; slots of no known example are left out."""
    ids, labels = rows["feature_ids"], rows["targets" if "targets" in rows else "class_labels"]
    known = (ids >= 0) & (ids < len(expected))
    other = np.zeros(ids.shape, bool)
    other[known] = labels[known] != expected[ids[known]]
    return other.sum(axis=1)
