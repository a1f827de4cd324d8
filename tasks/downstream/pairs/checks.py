"""Validation of pairs and of their rows. Legend: n rows."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.pairs.params import PairsParams
from tasks.downstream.pairs.schemas import SCHEMA, SCORE, present_texts
from tasks.params.entries import Entry
from tasks.rows.row_files import IGNORED
from tasks.validation import text_features
from tasks.validation.checks import DataCheck, Frame, Label
from tasks.validation.row_checks import Columns, RowData, RowSequences, RowSource
from tasks.validation.text_features import ExampleFiles

ROLES = ("anchor", "positive", "negative")


class PairsData(ExampleFiles):
    """Examples of an entry, all splits."""

    record = "pair"
    measured = ("anchor", "positive")

    def __init__(self, entry: Entry, folder: Path) -> None:
        """Open the splits in `folder`; raises the errors of `ExampleFiles`."""
        super().__init__(folder, entry.splits, SCHEMA, "anchor, positive, negative: string; score: float")
        self.name, look = entry.verdict(), f"check the section {entry.key('data')} of params.yaml"
        self._scored = entry.params_as(PairsParams).is_scored
        self.record_checks = (
            DataCheck("texts_present", ", ".join(ROLES), "no text is null or empty", look),
            DataCheck("scores_finite", SCORE, "a finite number if scores are used, else none", look),
        )
        least, more = entry.params.data.min_examples, f"provide more pairs; {look}"
        self.total_checks = (*self.count_checks(least, more), *self.seen_checks(entry))

    def _features(self, split: str, batch: pa.RecordBatch, label_of: Label) -> Frame:
        present = present_texts(batch)
        columns = [batch.column(name) for name in present]
        for name, column in zip(self.measured, columns, strict=False):
            self.tally.histograms[name].add(text_features.count_characters(column))
        self.add_keys(split, ["\t".join(texts) for texts in zip(*(part.to_pylist() for part in columns), strict=True)])
        scores = batch.column(SCORE).to_numpy(zero_copy_only=False)
        return {
            "texts_present": np.asarray(sum(map(text_features.is_missing, columns))) + (len(present) < 2),
            "scores_finite": (np.isfinite(scores) != self._scored).astype(np.int64),
        }

    def numbers(self) -> dict[str, object]:
        repeated = self._repetitions("duplicate pairs", "pairs also in train")
        return super().numbers() | repeated | self.reading


class PairsRowData(RowData):
    """Validation of rows of pairs: the texts of one example, in order, with its similarity."""

    kinds: ClassVar[tuple[str, ...]] = ("sentence_embedding",)

    def __init__(self, source: RowSource) -> None:
        super().__init__(source)
        self.record_checks += (
            DataCheck("pair_order", "roles", "anchor, positive, negative in this order", self.advice),
            DataCheck("scores_as_in_examples", "targets", "the similarity of its example", self.advice),
        )
        self._examples, self._scores = source.examples, np.empty(0, np.float32)

    def prepare_kind(self) -> list[str]:
        if self._examples is not None:
            parts = [batch.column(SCORE) for batch in self._examples.read((SCORE,))]
            scores = pa.concat_arrays(parts).fill_null(IGNORED) if parts else pa.array([], pa.float32())
            self._scores = scores.to_numpy(zero_copy_only=False).astype(np.float32)
        return []

    def kind_features(self, rows: Columns, sequences: RowSequences) -> Columns:
        ids, present = rows["feature_ids"], sequences.present(rows["feature_ids"].shape[1])
        wrong = present & (rows["roles"] != ids % self.manifest.unit)
        numbers = np.clip(ids // self.manifest.unit, 0, max(0, len(self._scores) - 1))
        known = present & (len(self._scores) > 0)
        other = known & (rows["targets"] != (self._scores[numbers] if len(self._scores) else 0))
        return {"pair_order": wrong.sum(axis=1), "scores_as_in_examples": other.sum(axis=1)}

    def describe_label(self, row: Columns, slot: int, start: int, tokens: object) -> str:
        target = float(row["targets"][slot])
        return ROLES[row["roles"][slot]] + (f", similarity {target:g}" if target != IGNORED else "")
