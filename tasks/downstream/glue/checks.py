"""What the examples of a GLUE task must be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.downstream.glue import about
from tasks.downstream.glue.format import schema_of
from tasks.downstream.glue.row_rules import LabelRules
from tasks.downstream.glue.tasks import TRAIN, GlueTask
from tasks.downstream.validate import ChecksTask
from tasks.validation import text_features
from tasks.validation.checks import RECORD, Check, DataSet, Frame, Totals
from tasks.validation.example_files import ExampleFiles
from tasks.validation.histograms import Lengths
from tasks.validation.row_requirements import RowLimits
from tasks.validation.row_rules import RowRules

LOOK = "look at source, path and dataset of its section data in params.yaml"


class Task(about.Task, ChecksTask):
    """The examples of one task."""

    def data(self, folder: Path) -> DataSet:
        return GlueData(self.glue, folder, self.entry.params.data.min_examples)

    def row_rules(self, limits: RowLimits, *, training: bool) -> RowRules:
        return LabelRules(limits)


class GlueData(ExampleFiles):
    """The examples of one task, all splits."""

    record = "example"

    def __init__(self, task: GlueTask, folder: Path, min_examples: int) -> None:
        """Open the splits in `folder`.

        Raises:
            InputError: one is not there.
        """
        schema = schema_of(task)
        super().__init__(folder, task.splits, schema, f"first, second: string; label: {schema.types[-1]}")
        self.task, self.name = task, f"glue-{task.name}"
        self.record_checks: Sequence[Check] = _record_checks(task)
        self.total_checks: Sequence[Check] = _total_checks(task, min_examples)
        self._labels: dict[str, dict[float, int]] = {split: {} for split in task.splits}
        self._texts = {split: text_features.Keys() for split in task.splits}
        self._labelled = text_features.Keys()
        self._lengths = {name: Lengths() for name in ("first", "second")[: len(task.columns)]}

    def _features(self, split: str, batch: pa.RecordBatch) -> Frame:
        first, label = self._count[split], batch.column("label").to_numpy(zero_copy_only=False)
        self._count[split] += len(label)
        for value, count in zip(*np.unique(label, return_counts=True), strict=True):
            seen = self._labels[split]
            seen[float(value)] = seen.get(float(value), 0) + int(count)
        self._texts[split].add(_texts(batch))
        if split == TRAIN:
            self._labelled.add(_labelled(batch))
        for name, lengths in self._lengths.items():
            lengths.add(text_features.characters(batch.column(name)))
        low, high = self.task.limits or (0, len(self.task.labels) - 1)
        missing = sum(text_features.is_missing(batch.column(name)) for name in self._lengths)
        return {
            RECORD: np.array([f"{split} example {first + i}" for i in range(len(label))], dtype=object),
            # GLUE's own development sets have a few; what is left out of train was counted when it was read.
            "texts_present": np.asarray(missing) * (split == TRAIN),
            "labels_known": (~((label >= low) & (label <= high))).astype(np.int64),
        }

    def totals(self) -> Totals:
        absent = self._absent_labels()
        values = {f"{split}_examples": float(count) for split, count in self._count.items()}
        return Totals(
            {**values, "labels_in_train": len(absent)},
            {"labels_in_train": absent},
            {"labels_in_train": f"{len(self._labels[TRAIN])} different labels"},
        )

    def _absent_labels(self) -> list[str]:
        seen = self._labels[TRAIN]
        if self.task.is_regression:
            return [] if len(seen) > 1 else ["a second value"]
        return [name for number, name in enumerate(self.task.labels) if number not in seen]

    def statistics(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {f"{split} examples": count for split, count in self._count.items()}
        if not self.task.is_regression:
            for split, seen in self._labels.items():
                for number, name in enumerate(self.task.labels):
                    numbers[f"{split} examples of class {name}"] = seen.get(float(number), 0)
        numbers.update(self._repetitions())
        numbers.update(self.reading)
        titles = dict(zip(("first", "second"), self.task.columns, strict=False))
        histograms = [
            lengths.histogram(f"Length of {titles[name]}", "characters") for name, lengths in self._lengths.items()
        ]
        return {"numbers": numbers, "histograms": histograms}

    def _repetitions(self) -> dict[str, int]:
        """Equal texts: GLUE's own training sets hold some, so they are told and not refused."""
        train = self._texts[TRAIN].all_hashes()
        repeated = len(train) - len(np.unique(train))
        equal = len(train) - len(np.unique(self._labelled.all_hashes()))
        found = {
            "train examples whose text came before": repeated,
            "of them with another label than before": repeated - equal,
        }
        for split in self.task.splits[1:]:
            known = np.isin(self._texts[split].all_hashes(), train)
            found[f"{split} examples whose text is also in train"] = int(known.sum())
        return found


def _texts(batch: pa.RecordBatch) -> np.ndarray:
    """Both texts of every example as one key. object [n]."""
    return text_features.strings(batch.column("first")) + "\t" + text_features.strings(batch.column("second"))


def _labelled(batch: pa.RecordBatch) -> np.ndarray:
    label = batch.column("label").to_numpy(zero_copy_only=False)
    return _texts(batch) + np.array([f"\t{value}" for value in label.tolist()], dtype=object)


def _record_checks(task: GlueTask) -> tuple[Check, ...]:
    low, high = task.limits or (0, len(task.labels) - 1)
    return (
        Check("texts_present", ", ".join(task.columns), "no text of train is null or empty", LOOK, maximum=0),
        Check("labels_known", "label", f"{low:g} to {high:g}", LOOK, maximum=0),
    )


def _total_checks(task: GlueTask, least: int) -> tuple[Check, ...]:
    counts = [
        Check(
            f"{split}_examples",
            f"{split}.parquet",
            f"at least {least:,} examples",
            f"give more examples, or lower min_examples; {LOOK}",
            minimum=least,
        )
        for split in task.splits
    ]
    every = "two different values" if task.is_regression else f"every class: {', '.join(task.labels)}"
    return (*counts, Check("labels_in_train", "label", every, f"what train lacks cannot be learnt; {LOOK}", maximum=0))
