"""What rows of named entities must be: a label for each word, at its first piece, and each window once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc

from tasks.downstream.ner.about import FEATURES_SCHEMA
from tasks.project import artifacts
from tasks.reading.labels import labels_of_rows
from tasks.rows.row_files import IGNORED, ranges
from tasks.validation import text_features
from tasks.validation.checks import Check, Total, Totals
from tasks.validation.row_checks import Columns, Examples, RowSource, Sequences
from tasks.validation.window_checks import Lines, WindowData

COLUMN, AS_EXAMPLES = "token_labels", "labels_as_in_examples"


class TagRows(WindowData):
    """Labels of tokens, and the windows in features.parquet."""

    kinds: ClassVar[tuple[str, ...]] = ("token_classification",)

    def __init__(self, source: RowSource) -> None:
        super().__init__(source, FEATURES_SCHEMA, [Check("labels_at_words", COLUMN, "-100 at [CLS]", source.again)])
        # To predict, types that train has not have no label.
        self._training, self._examples = source.training, source.examples
        many = "as many labels as words" if self._training else "no more labels than words"
        self.total_checks += (Check("labels", COLUMN, many, self.again),)
        if self._examples is not None:
            self.record_checks += (Check(AS_EXAMPLES, COLUMN, "the tag of its word", self.again),)
        self._tags = np.zeros(0, np.int64)
        self._positions, self._words_before = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._words = self._labelled = 0

    def prepare_kind(self) -> list[str]:
        if problems := super().prepare_kind():
            return problems
        table = text_features.open_parquet(self.folder / artifacts.FEATURES).read(columns=["positions"])
        words = pc.list_value_length(table.column("positions")).to_numpy()
        self._words = int(words.sum())
        if self._examples is None:
            return []
        self._positions = pc.list_flatten(table.column("positions")).to_numpy()
        self._words_before = np.concatenate([[0], np.cumsum(words)])
        self._tags = read_tags(self._examples, labels_of_rows(self.folder))
        if len(self._tags) == self._words:
            return []
        return [f"{artifacts.FEATURES} has {self._words:,} words, the sentences have {len(self._tags):,}"]

    def label_features(self, rows: Columns, found: Sequences, lines: Lines) -> Columns:
        labels = rows[COLUMN]
        word = found.real & (rows["position_ids"] > 0)
        self._labelled += int((word & (labels != IGNORED)).sum())
        at_cls = found.real & ~word & (labels != IGNORED)
        features = {"labels_at_words": at_cls.sum(axis=1)}
        return features if self._examples is None else {**features, AS_EXAMPLES: self._count_other(rows, lines)}

    def _count_other(self, rows: Columns, lines: Lines) -> np.ndarray:
        """Count, in each row, the words with another label than their tag."""
        row, slot = np.nonzero(lines.known)
        window = rows["feature_ids"][row, slot]
        first, count = self._words_before[window], self._words_before[window + 1] - self._words_before[window]
        words, row = ranges(first, count), np.repeat(row, count)
        place = np.repeat(lines.starts[lines.known], count) + self._positions[words]
        labels = rows[COLUMN][row, np.clip(place, 0, rows[COLUMN].shape[1] - 1)]
        return np.bincount(row[labels != self._tags[words]], minlength=len(lines.known))

    def totals(self) -> Totals:
        missing = self._words - self._labelled
        other = abs(missing) if self._training else max(0, -missing)
        labels = Total(other, f"{self._labelled:,} labels of {self._words:,} words")
        return {**super().totals(), "labels": labels}

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "words": self._words, "labelled words": self._labelled}


def read_tags(examples: Examples, labels: Sequence[str]) -> np.ndarray:
    """Return the number among `labels` of the tag of each word of the sentences, -100 where they lack it."""
    numbers = {name: number for number, name in enumerate(labels)}
    found = [np.zeros(0, np.int64)]
    for batch in examples.read(("tags",)):
        tags = batch.column("tags").flatten().dictionary_encode()
        known = np.array([numbers.get(tag, IGNORED) for tag in tags.dictionary.to_pylist()], np.int64)
        found.append(known[tags.indices.to_numpy(zero_copy_only=False)])
    return np.concatenate(found)
