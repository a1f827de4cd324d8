"""What sentences with tags must be: train.parquet and dev.parquet of an entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.downstream.ner import about
from tasks.downstream.ner.row_rules import TagRows
from tasks.downstream.ner.sentences import SCHEMA
from tasks.downstream.ner.tags import begun_inside, entities, problem_of
from tasks.downstream.task import TRAIN
from tasks.downstream.validate import ChecksTask
from tasks.validation.checks import Check, DataSet, Frame, Total, Totals
from tasks.validation.example_files import ExampleFiles
from tasks.validation.histograms import Lengths
from tasks.validation.row_checks import RowData, RowSource


class Task(about.Task, ChecksTask):
    """Training and dev sentences."""

    text_columns: ClassVar[tuple[str, ...]] = ("tokens",)

    def texts(self, batch: pa.RecordBatch) -> list[str]:
        """The words of the sentence."""
        return [" ".join(words) for words in batch.column("tokens").to_pylist()]

    def data(self, folder: Path) -> DataSet:
        least, section = self.entry.params.data.min_examples, self.entry.key("data")
        return NerData(self.entry.verdict(), folder, self.splits, least, section)

    def row_data(self, source: RowSource) -> RowData:
        return TagRows(source)


class NerData(ExampleFiles):
    """The sentences of an entry, all splits."""

    record, unit = "sentence", "words"

    def __init__(self, name: str, folder: Path, splits: Sequence[str], least: int, section: str) -> None:
        """Open the splits in `folder`.

        Args:
            least: sentences in each split.
            section: of params.yaml that says where they come from.

        Raises:
            InputError: one is not there.
        """
        super().__init__(folder, splits, SCHEMA, "document: integer; tokens, tags: list of string")
        self.name = name
        look = f"look at {section}.train_path, {section}.dev_path and {section}.dataset in params.yaml"
        self.record_checks = (
            Check("words_present", "tokens", "a word at least in every sentence", look, minimum=1),
            Check("a_tag_each", "tags", "a tag for each word", look),
            Check("tags_known", "tags", "O, or B- or I- and a type", look),
            Check("entities_begin_with_b", "tags", "every entity begins with B-, as in IOB2", look),
        )
        nothing = f"there is nothing to find; {look}"
        self.total_checks = (
            *self.count_checks(least, f"give more sentences, or lower {section}.min_examples; {look}"),
            *(Check(f"{split}_entities", "tags", "an entity at least", nothing, minimum=1) for split in splits),
        )
        self._words = dict.fromkeys(splits, 0)
        self._documents = dict.fromkeys(splits, 0)
        self._types: dict[str, Counter[str]] = {split: Counter() for split in splits}
        self._lengths = {"sentences": Lengths(), "entities": Lengths()}

    def _features(self, split: str, batch: pa.RecordBatch, labels: Sequence[str]) -> Frame:
        words, tags = batch.column("tokens"), batch.column("tags").to_pylist()
        lengths = pc.fill_null(pc.list_value_length(words), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        self._words[split] += int(lengths.sum())
        self._documents[split] = 1 + (pc.max(batch.column("document")).as_py() or 0)
        self._lengths["sentences"].add(lengths)
        texts = ["\n".join(one or "" for one in sentence or []) for sentence in words.to_pylist()]
        self._keys[split].add(np.array(texts, dtype=object))
        judged = [
            self._judge(split, sentence or [], int(length)) for sentence, length in zip(tags, lengths, strict=True)
        ]
        other, unknown, apart = np.array(judged, np.int64).reshape(-1, 3).T
        return {"words_present": lengths, "a_tag_each": other, "tags_known": unknown, "entities_begin_with_b": apart}

    def _judge(self, split: str, tags: Sequence[Any], words: int) -> tuple[int, int, int]:
        """Whether there are more or fewer tags than words; tags that are none; entities that begin with I-."""
        unknown = sum(problem_of(tag) is not None for tag in tags)
        if unknown:
            return int(len(tags) != words), unknown, 0
        found = entities(tags)
        self._types[split].update(one.type for one in found)
        self._lengths["entities"].add(np.array([one.last - one.first for one in found], dtype=np.int64))
        return int(len(tags) != words), 0, len(begun_inside(tags))

    def totals(self) -> Totals:
        return super().totals() | {f"{split}_entities": Total(found.total()) for split, found in self._types.items()}

    def numbers(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {}
        for split in self.files:
            numbers[f"{split} sentences"] = self._count[split]
            numbers[f"{split} words"] = self._words[split]
            numbers[f"{split} documents"] = self._documents[split]
            numbers[f"{split} entities"] = self._types[split].total()
        for name in sorted({name for found in self._types.values() for name in found}):
            for split, found in self._types.items():
                absent = " (train has none: no model can find them)" if name not in self._types[TRAIN] else ""
                numbers[f"{split} entities of type {name}{absent if split != TRAIN else ''}"] = found[name]
        repeated = self._repetitions("sentences that came before", "sentences that are also in train")
        return numbers | repeated | self.reading
