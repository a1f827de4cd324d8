"""Validation of tagged sentences (train.parquet and dev.parquet) and of their rows.

Rows must have a label for each word, at its first token, and each window once.
"""

import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ipu_model.core.units import shorten
from tasks.downstream.ner.params import NerDataParams, NerParams
from tasks.downstream.ner.schemas import FEATURES_SCHEMA, SCHEMA
from tasks.downstream.ner.sentences import NUMBERS, OPTION, ROW
from tasks.params.entries import TRAIN, Entry
from tasks.records.labels import read_row_labels
from tasks.records.names import fold_labels
from tasks.records.plausibility import MAX_SHARE, RUNNING_NUMBERS, SAME_TYPES, SINGLE_WORDS, share_of
from tasks.records.tags import OUTSIDE, find_entities, find_inside_starts, find_problem
from tasks.rows.row_files import IGNORED, concatenate_ranges
from tasks.stage import artifacts
from tasks.validation.checks import DataCheck, Frame, Label, TotalFeature, Totals
from tasks.validation.row_checks import Columns, FeatureLines, RowSequences, RowSource, SourceExamples, WindowData
from tasks.validation.text_features import ExampleFiles

COLUMN, AS_EXAMPLES = "token_labels", "labels_as_in_examples"
SHOWN_TAGS = 10


class NerData(ExampleFiles):
    """Sentences of an entry, all splits."""

    record, unit, measured = "sentence", "words", ("sentences", "entities")

    def __init__(self, entry: Entry, folder: Path) -> None:
        """Open the splits in `folder`; raises the errors of `ExampleFiles`."""
        splits, data, section = entry.splits, entry.params_as(NerParams).data, entry.key("data")
        super().__init__(folder, splits, SCHEMA, "document: integer; tokens, tags: list of string")
        self.name, least = entry.verdict(), data.min_examples
        look = f"check {section}.train_path, {section}.dev_path and {section}.dataset in params.yaml"
        self.record_checks = (
            DataCheck("words_present", "tokens", "at least one word in every sentence", look, minimum=1),
            DataCheck("a_tag_each", "tags", "a tag for each word", look),
            DataCheck("tags_known", "tags", "O, or B- or I- with a type", look),
            DataCheck("entities_begin_with_b", "tags", "every entity begins with B-, as in IOB2", look),
        )
        nothing = f"there are no entities; {look}"
        self.total_checks = (
            *self.count_checks(least, f"provide more sentences, or lower {section}.min_examples; {look}"),
            *(DataCheck(f"{split}_entities", "tags", "at least one entity", nothing, minimum=1) for split in splits),
            *self.seen_checks(entry),
            *_plausibility_checks(splits, section, data),
        )

    def _features(self, split: str, batch: pa.RecordBatch, label: Label) -> Frame:
        words, tags = batch.column("tokens"), batch.column("tags").to_pylist()
        lengths = pc.fill_null(pc.list_value_length(words), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        self.tally.counters["words"][split] += int(lengths.sum())
        self.tally.lists[f"documents {split}"].append(1 + (pc.max(batch.column("document")).as_py() or 0))
        self.tally.histograms["sentences"].add(lengths)
        self.tally.counters["sentences of one word"][split] += int((lengths == 1).sum())
        self.tally.counters["numbers"][split] += sum(
            sum(map(operator.eq, NUMBERS, sentence or [])) for sentence in words.to_pylist()
        )
        self.tally.counters["sentences with entities"][split] += sum(
            any(tag != OUTSIDE for tag in sentence or []) for sentence in tags
        )
        texts = ["\n".join(word or "" for word in sentence or []) for sentence in words.to_pylist()]
        self.add_keys(split, texts)
        judged = [
            self._judge(split, sentence or [], int(length)) for sentence, length in zip(tags, lengths, strict=True)
        ]
        other, unknown, apart = np.array(judged, np.int64).reshape(-1, 3).T
        return {"words_present": lengths, "a_tag_each": other, "tags_known": unknown, "entities_begin_with_b": apart}

    def _judge(self, split: str, tags: Sequence[Any], words: int) -> tuple[int, int, int]:
        """Return 1 if the numbers of tags and words differ, the number of invalid tags, and of entities that begin with
        I-."""
        unknown = sum(find_problem(tag) is not None for tag in tags)
        if unknown:
            return int(len(tags) != words), unknown, 0
        entities = find_entities(tags)
        self.tally.counters[split].update(entity.type for entity in entities)
        self.tally.histograms["entities"].add(
            np.array([entity.last - entity.first for entity in entities], dtype=np.int64)
        )
        return int(len(tags) != words), 0, len(find_inside_starts(tags))

    def totals(self) -> Totals:
        totals, counters = super().totals(), self.tally.counters
        for split in self.files:
            sentences, words = self.records[split], counters["words"][split]
            single = share_of(counters["sentences of one word"][split], sentences)
            numbers = share_of(counters["numbers"][split], words, sentences)
            totals[f"{split}_entities"] = TotalFeature(counters[split].total())
            totals[f"{split}_single_words"] = TotalFeature(single, f"{single:.1f}%")
            totals[f"{split}_running_numbers"] = TotalFeature(numbers, f"{numbers:.1f}%")
        types = fold_labels(name for split in self.files for name in counters[split])
        totals["types_differ"] = TotalFeature.from_differences([" and ".join(group) for group in types.values()])
        return totals

    def numbers(self) -> dict[str, object]:
        numbers: dict[str, object] = {}
        for split in self.files:
            numbers[f"{split} sentences"] = self.records[split]
            numbers[f"{split} words"] = self.tally.counters["words"][split]
            numbers[f"{split} documents"] = max(self.tally.lists[f"documents {split}"], default=0)
            numbers[f"{split} sentences with entities"] = self.tally.counters["sentences with entities"][split]
            numbers[f"{split} entities"] = self.tally.counters[split].total()
        for name in sorted({name for split in self.files for name in self.tally.counters[split]}):
            for split in self.files:
                absent = " (not in train)" if split != TRAIN and name not in self.tally.counters[TRAIN] else ""
                numbers[f"{split} entities of type {name}{absent}"] = self.tally.counters[split][name]
        repeated = self._repetitions("duplicate sentences", "sentences also in train")
        return numbers | repeated | self.reading


def _plausibility_checks(splits: Sequence[str], section: str, data: NerDataParams) -> Iterator[DataCheck]:
    """Yield the checks that words, sentences and types are what they seem, without those that the user answered."""
    for split in splits if data.columns.sentence != ROW else ():
        advice = f"name the column that the rows of a sentence share, or row: {OPTION.format('sentence')}"
        yield DataCheck(f"{split}_single_words", "tokens", SINGLE_WORDS, advice, maximum=MAX_SHARE)
    for split in splits if data.columns.tokens is None else ():
        advice = f"name the column of the words: {OPTION.format('tokens')}"
        yield DataCheck(f"{split}_running_numbers", "tokens", RUNNING_NUMBERS, advice, maximum=MAX_SHARE)
    if data.similar_labels != "keep":
        yield DataCheck("types_differ", "tags", SAME_TYPES, f"set {section}.similar_labels to fold or keep")


class TagRows(WindowData):
    """Validation of token labels in rows, and of the windows in features.parquet."""

    kinds: ClassVar[tuple[str, ...]] = ("token_classification",)

    def __init__(self, source: RowSource) -> None:
        super().__init__(
            source, FEATURES_SCHEMA, [DataCheck("labels_at_words", COLUMN, "-100 at [CLS]", source.advice)]
        )
        # Rows for prediction have no label for types that are not in train.
        self._training, self._examples = source.training, source.examples
        many = "one label per word" if self._training else "at most one label per word"
        self.total_checks += (DataCheck("labels", COLUMN, many, self.advice),)
        if self._examples is not None:
            self.record_checks += (DataCheck(AS_EXAMPLES, COLUMN, "the tag of its word", self.advice),)
        self._tags = np.zeros(0, np.int64)
        self._positions, self._words_before = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._words = 0

    def prepare_kind(self) -> list[str]:
        if problems := super().prepare_kind():
            return problems
        table = pq.read_table(self.folder / artifacts.FEATURES, columns=["positions"])
        words = pc.list_value_length(table.column("positions")).to_numpy()
        self._words = int(words.sum())
        if self._examples is None:
            return []
        self._positions = pc.list_flatten(table.column("positions")).to_numpy()
        self._words_before = np.concatenate([[0], np.cumsum(words)])
        self._tags = read_tags(self._examples, read_row_labels(self.folder))
        if len(self._tags) == self._words:
            return []
        return [f"{artifacts.FEATURES} has {self._words:,} words, the sentences have {len(self._tags):,}"]

    def describe_label(self, row: Columns, slot: int, start: int, tokens: Sequence[str]) -> str:
        if self._examples is None:
            return ""  # rows have numbers only
        names, labels = read_row_labels(self.folder), row[COLUMN][start : start + len(tokens)]
        tagged = [f"{token} {names[label]}" for token, label in zip(tokens, labels, strict=True) if label > 0]
        return shorten(tagged, SHOWN_TAGS) or "no entity"

    def label_features(self, rows: Columns, sequences: RowSequences, lines: FeatureLines) -> Columns:
        labels = rows[COLUMN]
        word = sequences.real & (rows["position_ids"] > 0)
        self.tally.counts["labelled"] += int((word & (labels != IGNORED)).sum())
        at_cls = sequences.real & ~word & (labels != IGNORED)
        features = {"labels_at_words": at_cls.sum(axis=1)}
        return features if self._examples is None else {**features, AS_EXAMPLES: self._count_other(rows, lines)}

    def _count_other(self, rows: Columns, lines: FeatureLines) -> np.ndarray:
        row, slot = np.nonzero(lines.known)
        window = rows["feature_ids"][row, slot]
        first, count = self._words_before[window], self._words_before[window + 1] - self._words_before[window]
        words, row = concatenate_ranges(first, count), np.repeat(row, count)
        positions = np.repeat(lines.starts[lines.known], count) + self._positions[words]
        labels = rows[COLUMN][row, np.clip(positions, 0, rows[COLUMN].shape[1] - 1)]
        return np.bincount(row[labels != self._tags[words]], minlength=len(lines.known))

    def totals(self) -> Totals:
        labelled = self.tally.counts["labelled"]
        missing = self._words - labelled
        other = abs(missing) if self._training else max(0, -missing)
        labels = TotalFeature(other, f"{labelled:,} labels of {self._words:,} words")
        return {**super().totals(), "labels": labels}

    def numbers(self) -> dict[str, object]:
        return {**super().numbers(), "words": self._words, "labelled words": self.tally.counts["labelled"]}


def read_tags(examples: SourceExamples, labels: Sequence[str]) -> np.ndarray:
    """Return the label number of each word's tag; -100 for tags not in `labels`."""
    numbers = {name: number for number, name in enumerate(labels)}
    label_numbers = [np.zeros(0, np.int64)]
    for batch in examples.read(("tags",)):
        tags = batch.column("tags").flatten().dictionary_encode()
        known = np.array([numbers.get(tag, IGNORED) for tag in tags.dictionary.to_pylist()], np.int64)
        label_numbers.append(known[tags.indices.to_numpy(zero_copy_only=False)])
    return np.concatenate(label_numbers)
