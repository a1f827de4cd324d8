"""Validation of labelled texts and of their rows: a class or value for every example, each once. Legend: n rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.downstream.texts.params import TextsParams
from tasks.downstream.texts.schemas import join_texts, make_flags, make_schema
from tasks.params.entries import TRAIN, Entry
from tasks.records.labels import read_parquet_labels, read_row_labels
from tasks.records.parquet import has_first_value
from tasks.records.plausibility import RULES, Rule
from tasks.rows.row_files import IGNORED, from_arrow
from tasks.stage import artifacts
from tasks.validation import text_features
from tasks.validation.checks import DataCheck, Frame, Label, TotalFeature, Totals
from tasks.validation.row_checks import Columns, RowData, RowSequences, RowSource
from tasks.validation.text_features import ExampleFiles

TEXTS = ("first", "second")
GLUE_LOOK = "check source, path and dataset of its section data in params.yaml"
COLUMN, AS_EXAMPLES = "class_labels, label_flags or targets", "labels_as_in_examples"
MOST = "at most one label per sequence"
LABELLED = "train with labels"


class TextsData(ExampleFiles):
    """Examples of an entry, all splits."""

    record = "example"

    def __init__(self, entry: Entry, folder: Path) -> None:
        """Open the splits in `folder`; raises the errors of `ExampleFiles`."""
        spec = entry.params_as(TextsParams).text_task
        schema = make_schema(spec)
        super().__init__(folder, entry.splits, schema, f"first, second: string; label: {schema.field('label').type}")
        known: Sequence[str] = () if spec.is_regression else spec.labels
        rules: Sequence[Rule] = ()
        others: Sequence[str] = ()
        columns, self.name, look = spec.columns, f"glue-{spec.name}", GLUE_LOOK
        if not spec.name:
            # The first training example decides; the checks then apply to all.
            is_pair = has_first_value(self.files[TRAIN], "second", entry.stage("examples"))
            columns, self.name = TEXTS if is_pair else ("text",), entry.verdict()
            look = f"check train_path, dev_path, columns and dataset of {entry.key('data')} in params.yaml"
            if not spec.is_regression:
                known, others = read_parquet_labels(folder / "dev.parquet")
                rules = tuple(rule for rule in RULES if rule.applies(entry.params.data))
        self._rules = rules
        self._required, self._classes = len(known), (*known, *others)
        """Classes that train must have, then others; empty for regression."""
        self._range = spec.answers if spec.is_regression else (0, len(self._classes) - 1)
        every = f"every class: {', '.join(known)}" if known else "two different values"
        self.record_checks = (
            DataCheck("texts_present", ", ".join(columns), "no training text is null or empty", look),
            DataCheck("labels_known", "label", f"{self._range[0]:g} to {self._range[1]:g}", look),
        )
        self.total_checks = (
            *self.count_checks(entry.params.data.min_examples, f"provide more examples, or lower min_examples; {look}"),
            *self.seen_checks(entry),
            DataCheck("labels_in_train", "label", every, f"missing labels cannot be learned; {look}"),
            *(DataCheck(rule.name, "label", rule.required, rule.problem) for rule in rules),
        )
        self._columns, self.measured = TEXTS[: len(columns)], columns

    def _features(self, split: str, batch: pa.RecordBatch, label_of: Label) -> Frame:
        column = batch.column("label")
        label, example = column, np.arange(len(batch))
        if pa.types.is_list(column.type):
            label, example = pc.list_flatten(column), pc.list_parent_indices(column).to_numpy()
        label = label.to_numpy(zero_copy_only=False)
        for value, count in zip(*np.unique(label, return_counts=True), strict=True):
            self.tally.counters[split][float(value)] += int(count)
        texts = join_texts(batch)
        self.add_keys(split, texts)
        if split == TRAIN:
            pairs = zip(texts, column.to_pylist(), strict=True)
            self.add_keys(LABELLED, [f"{text}\t{value}" for text, value in pairs], folded=False)
        columns = [batch.column(name) for name in self._columns]
        for name, column in zip(self.measured, columns, strict=True):
            self.tally.histograms[name].add(text_features.count_characters(column))
        low, high = self._range
        return {
            # GLUE's development sets have a few; those dropped from train were counted when reading.
            "texts_present": np.asarray(sum(map(text_features.is_missing, columns))) * (split == TRAIN),
            "labels_known": np.bincount(
                example[~((label >= low) & (label <= high) & np.isfinite(label))], minlength=len(batch)
            ),
        }

    def totals(self) -> Totals:
        seen = self.tally.counters[TRAIN]
        absent = [name for number, name in enumerate(self._classes[: self._required]) if number not in seen]
        if not self._classes and len(seen) < 2:
            absent = ["a second value"]
        names = {name: seen[number] for number, name in enumerate(self._classes) if seen[number]}
        broken = {rule.name: rule.find(names) for rule in self._rules}
        return {
            **super().totals(),
            **{name: TotalFeature(len(examples), examples=examples) for name, examples in broken.items()},
            "labels_in_train": TotalFeature(len(absent), f"{len(seen)} different labels", absent),
        }

    def numbers(self) -> dict[str, object]:
        numbers = super().numbers()
        for number, name in enumerate(self._classes):
            alone = "" if number < self._required else " (not in train)"
            for split in self.files:
                count = self.tally.counters[split][number]
                numbers[f"{split} examples of class {name}{alone if split != TRAIN else ''}"] = count
        texts, labelled = (len(np.unique(self.hashes(keys))) for keys in (TRAIN, LABELLED))
        other_label = {"duplicate training texts with different labels": labelled - texts}
        names = "duplicate texts", "texts also in train"
        return numbers | self._repetitions(*names, other_label) | self.reading


class LabelRows(RowData):
    """Validation of labels in rows; feature ids are example numbers."""

    kinds: ClassVar[tuple[str, ...]] = ("sequence_classification", "sequence_multilabel", "sequence_regression")

    def __init__(self, source: RowSource) -> None:
        super().__init__(source)
        sequences = self.manifest.sequences
        # Rows for prediction have no label for classes that are not in train.
        every, least = ("every sequence has a label", sequences) if source.training else (MOST, 0)
        self.total_checks += (DataCheck("labels", COLUMN, every, self.advice, minimum=least, maximum=sequences),)
        self._examples = source.examples
        if self._examples is not None:
            self.record_checks += (DataCheck(AS_EXAMPLES, COLUMN, "the label of its example", self.advice),)
        self._expected = pa.array([], pa.int32())

    def prepare_kind(self) -> list[str]:
        """Read the labels of the examples; numbers of their classes must mean the same in rows."""
        if self._examples is None:
            return []
        self._expected = pa.concat_arrays(batch.column("label") for batch in self._examples.read(("label",)))
        if not (self.folder / artifacts.FEATURES).is_file():
            return []  # the task defines the classes
        classes, learned = read_row_labels(self.folder), read_parquet_labels(self._examples.path)[0]
        return [] if classes == learned else [f"{artifacts.FEATURES} has other classes than the examples"]

    def kind_features(self, rows: Columns, sequences: RowSequences) -> Columns:
        ids = rows["feature_ids"]
        labels = rows[self.schema.names[-1]].reshape(*ids.shape, -1)
        self.tally.counts["labelled"] += int((sequences.present(ids.shape[1]) & (labels[..., 0] != IGNORED)).sum())
        if self._examples is None:
            return {}
        known = (ids >= 0) & (ids < len(self._expected))  # slots without a known example are skipped
        expected, classes = self._expected.take(pa.array(ids[known])), self.manifest.num_labels
        if pa.types.is_list(expected.type):
            wanted = make_flags(expected, classes)
        else:
            wanted = from_arrow(expected)[:, None]
            if pa.types.is_integer(expected.type):
                wanted = np.where(wanted < classes, wanted, IGNORED)
        other = np.zeros(ids.shape, bool)
        other[known] = (labels[known] != wanted).any(axis=1)
        return {AS_EXAMPLES: other.sum(axis=1)}

    def describe_label(self, row: Columns, slot: int, start: int, tokens: Sequence[str]) -> str:
        column = self.schema.names[-1]
        values = row[column].reshape(len(row["feature_ids"]), -1)[slot]
        if column == "targets":
            return f"{values[0]:.4g}"
        names = read_row_labels(self.folder)
        numbers = np.flatnonzero(values > 0) if len(values) > 1 else values[values >= 0]
        return ", ".join(names[number] for number in numbers) or "no label"

    def totals(self) -> Totals:
        return {**super().totals(), "labels": TotalFeature(self.tally.counts["labelled"])}

    def numbers(self) -> dict[str, object]:
        return {**super().numbers(), "labelled sequences": self.tally.counts["labelled"]}
