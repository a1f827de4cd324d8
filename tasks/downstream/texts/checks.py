"""What labelled texts must be: the Parquet files of an entry's splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.task import TRAIN
from tasks.downstream.texts import about
from tasks.downstream.texts.row_rules import LabelRules
from tasks.downstream.validate import ChecksTask
from tasks.reading.labels import all_labels_in, labels_of_rows
from tasks.reading.parquet import read_batches
from tasks.rows.row_files import IGNORED
from tasks.validation import text_features
from tasks.validation.checks import RECORD, Check, DataSet, Frame, Totals
from tasks.validation.example_files import ExampleFiles, repetitions
from tasks.validation.histograms import Lengths
from tasks.validation.row_requirements import RowLimits
from tasks.validation.row_rules import Examples, RowRules

EXAMPLES_AT_ONCE = 8192


GLUE_LOOK = "look at source, path and dataset of its section data in params.yaml"


class Task(about.Task, ChecksTask):
    """Texts of one or two columns, and their labels."""

    text_columns: ClassVar[tuple[str, ...]] = ("first", "second")

    def texts(self, batch: pa.RecordBatch) -> list[str]:
        """The text, or both of a pair."""
        pairs = zip(*(batch.column(name).to_pylist() for name in self.text_columns), strict=True)
        return ["\t".join(part for part in pair if part is not None) for pair in pairs]

    def data(self, folder: Path) -> DataSet:
        spec, section, least = self.spec, self.entry.key("data"), self.entry.params.data.min_examples
        if spec.name:
            classes = None if spec.is_regression else spec.labels
            meant = Meant(f"glue-{spec.name}", spec.columns, spec.answers, classes, len(spec.labels), least, GLUE_LOOK)
            return TextsData(meant, self.schema, folder, self.splits)
        known, others = ((), ()) if self.is_regression else all_labels_in(folder / "dev.parquet")
        meant = Meant(
            name=self.entry.verdict(),
            columns=("first", "second") if self._are_pairs(folder) else ("text",),
            values=spec.answers if self.is_regression else (0, len(known) + len(others) - 1),
            classes=None if self.is_regression else (*known, *others),
            required=len(known),
            min_examples=least,
            look=f"look at train_path, dev_path, columns and dataset of {section} in params.yaml",
        )
        return TextsData(meant, self.schema, folder, self.splits)

    def _are_pairs(self, folder: Path) -> bool:
        """Whether the training examples are: the first one says it for all, as the checks then do."""
        rows = read_batches(folder / f"{TRAIN}.parquet", ("second",), 1, self.entry.stage("examples"))
        return any(one is not None for one in next(rows, pa.record_batch({"second": []}))["second"].to_pylist())

    def row_rules(self, limits: RowLimits, examples: Examples, *, training: bool) -> RowRules:
        return LabelRules(limits, training=training, expected=partial(self._expected_labels, examples, limits.folder))

    def _expected_labels(self, examples: Examples, rows: Path) -> np.ndarray:
        """Return the label that the rows in the folder `rows` should have of each example, -100 for none."""
        columns = [batch.column("label") for batch in examples.read(("label",), EXAMPLES_AT_ONCE)]
        labels = pa.chunked_array(columns).to_numpy() if columns else np.zeros(0)
        if self.labels:
            return labels
        # Names are compared: the classes of rows have the numbers that features.parquet states.
        known, others = all_labels_in(examples.path)
        numbers = {name: number for number, name in enumerate(labels_of_rows(rows))}
        return np.array([numbers.get(name, IGNORED) for name in (*known, *others)])[labels]


@dataclass(frozen=True)
class Meant:
    """What the examples of an entry are meant to be."""

    name: str
    """Of the verdict."""
    columns: tuple[str, ...]
    """What people call the one text or both."""
    values: tuple[float, float]
    """Smallest and largest label."""
    classes: tuple[str, ...] | None
    """By number: those that train must have, then others; None of values."""
    required: int
    """How many of them train must have."""
    min_examples: int
    """In each split."""
    look: str
    """Where to look for what is wrong with them."""


class TextsData(ExampleFiles):
    """The examples of an entry, all splits."""

    record = "example"

    def __init__(self, meant: Meant, schema: pa.Schema, folder: Path, splits: Sequence[str]) -> None:
        """Open the splits in `folder`.

        Raises:
            InputError: one is not there.
        """
        super().__init__(folder, splits, schema, f"first, second: string; label: {schema.field('label').type}")
        self.meant, self.name = meant, meant.name
        (low, high), look = meant.values, meant.look
        self.record_checks: Sequence[Check] = (
            Check(
                "texts_present", ", ".join(meant.columns), "no text of train is null or empty", meant.look, maximum=0
            ),
            Check("labels_known", "label", f"{low:g} to {high:g}", look, maximum=0),
        )
        names = (meant.classes or ())[: meant.required]
        every = f"every class: {', '.join(names)}" if names else "two different values"
        lacking = f"what train lacks cannot be learnt; {look}"
        self.total_checks: Sequence[Check] = (
            *self.count_checks(meant.min_examples, f"give more examples, or lower min_examples; {look}"),
            Check("labels_in_train", "label", every, lacking, maximum=0),
        )
        self._labels: dict[str, dict[float, int]] = {split: {} for split in splits}
        self._texts = {split: text_features.Keys() for split in splits}
        self._labelled = text_features.Keys()
        self._lengths = {name: Lengths() for name in ("first", "second")[: len(meant.columns)]}

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
        low, high = self.meant.values
        missing = sum(text_features.is_missing(batch.column(name)) for name in self._lengths)
        return {
            RECORD: np.array([f"{split} example {first + i}" for i in range(len(label))], dtype=object),
            # GLUE's own development sets have a few; what is left out of train was counted when it was read.
            "texts_present": np.asarray(missing) * (split == TRAIN),
            "labels_known": (~((label >= low) & (label <= high) & np.isfinite(label))).astype(np.int64),
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
        seen, classes = self._labels[TRAIN], self.meant.classes
        if classes is None:
            return [] if len(seen) > 1 else ["a second value"]
        return [name for number, name in enumerate(classes[: self.meant.required]) if number not in seen]

    def statistics(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {f"{split} examples": count for split, count in self._count.items()}
        for number, name in enumerate(self.meant.classes or ()):
            alone = "" if number < self.meant.required else " (train has none: no model can answer it)"
            for split, seen in self._labels.items():
                numbers[f"{split} examples of class {name}{alone if split != TRAIN else ''}"] = seen.get(number, 0)
        numbers.update(self._repetitions())
        numbers.update(self.reading)
        titles = dict(zip(("first", "second"), self.meant.columns, strict=False))
        histograms = [
            lengths.histogram(f"Length of {titles[name]}", "characters") for name, lengths in self._lengths.items()
        ]
        return {"numbers": numbers, "histograms": histograms}

    def _repetitions(self) -> dict[str, int]:
        """Equal texts: GLUE's own training sets hold some, so they are told and not refused."""
        repeated, *in_train = repetitions(self._texts)
        names = (f"{split} examples whose text is also in train" for split in self.others)
        equal = self._count[TRAIN] - len(np.unique(self._labelled.all_hashes()))
        return {
            "train examples whose text came before": repeated,
            "of them with another label than before": repeated - equal,
            **dict(zip(names, in_train, strict=True)),
        }


def _texts(batch: pa.RecordBatch) -> np.ndarray:
    """Both texts of every example as one key. object [n]."""
    return text_features.strings(batch.column("first")) + "\t" + text_features.strings(batch.column("second"))


def _labelled(batch: pa.RecordBatch) -> np.ndarray:
    label = batch.column("label").to_numpy(zero_copy_only=False)
    return _texts(batch) + np.array([f"\t{value}" for value in label.tolist()], dtype=object)
