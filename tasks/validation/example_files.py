"""Data sets of Parquet files, read in batches: a corpus, or the splits of an entry's examples."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.records.text_files import read_reading
from tasks.stage.errors import InputError
from tasks.validation import text_features
from tasks.validation.checks import RECORD, DataCheck, DataSet, Frame, Histogram, TotalFeature, Totals, merge_frames

MAY_BE_EMPTY = "title"


class ParquetFiles(DataSet):
    """Files of one schema; subclasses add checks, the features of a batch, totals and figures."""

    unit: ClassVar[str] = "characters"
    """Unit of the histograms."""
    texts: ClassVar[Mapping[str, str]] = {}
    """Noun -> column that must have text in every record."""

    def __init__(self, files: Mapping[str, Path], schema: pa.Schema, columns: str, stage: str) -> None:
        """Set the requirements.

        Args:
            files: files by name, in one folder, which has a reading.json.
            stage: stage that writes the files, for messages.
        """
        self.files, self.schema = files, schema
        folder = next(iter(files.values())).parent
        self.reading: dict[str, int] = read_reading(folder)["numbers"]
        advice = f"{folder} was not written by {stage}: delete it and run that stage"
        self.prerequisites = (DataCheck("schema", ", ".join(schema.names), columns, advice),)
        self._count = dict.fromkeys(files, 0)
        self._ids = text_features.KeyCounter()
        self._lengths: dict[str, Histogram] = {}
        """Histograms by noun for the measured texts."""

    def text_checks(self, advice: str) -> list[DataCheck]:
        """Return a check for each of `texts`."""
        allowed = {MAY_BE_EMPTY: "no title is null (an empty one is fine)"}
        return [
            DataCheck(f"{name}s_present", column, allowed.get(name, f"no {name} is null or empty"), advice)
            for name, column in self.texts.items()
        ]

    def prepare(self) -> Totals:
        differences = [text for path in self.files.values() for text in text_features.compare_schema(path, self.schema)]
        return {"schema": TotalFeature.from_differences(differences)}

    def frames(self) -> Iterator[Frame]:
        return merge_frames(self._frame(name, batch) for name in self.files for batch in self._read(name))

    def _read(self, name: str, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        return text_features.read_text_batches(self.files[name], columns or self.schema.names)

    def _frame(self, name: str, batch: pa.RecordBatch) -> Frame:
        labels = self._labels(name, batch)
        missing = {
            f"{text}s_present": text_features.is_null(batch.column(column))
            if text == MAY_BE_EMPTY
            else text_features.is_missing(batch.column(column))
            for text, column in self.texts.items()
        }
        if "id" in self.texts:
            self._ids.add(text_features.to_strings(batch.column(self.texts["id"]))[missing["ids_present"] == 0])
        self._count[name] += len(batch)
        return {RECORD: np.array(labels, dtype=object), **missing, **self._features(name, batch, labels)}

    def _labels(self, name: str, batch: pa.RecordBatch) -> list[str]:
        """Return a label for each record."""
        first = self._count[name]
        return [f"{name} {self.record} {number}" for number in range(first, first + len(batch))]

    @abstractmethod
    def _features(self, name: str, batch: pa.RecordBatch, labels: Sequence[str]) -> Frame:
        """Return the features of the record checks without those of `texts`; `_count` includes the batch."""

    def repeated_ids(self) -> TotalFeature:
        """Count repeated ids, compared as text if their hashes are equal."""
        column = self.texts["id"]
        repeated, examples = self._ids.repetitions(
            lambda: (
                text_features.to_strings(batch.column(column))
                for name in self.files
                for batch in self._read(name, [column])
            )
        )
        shown = f"{repeated:,} of {sum(self._count.values()):,} {self.record}s repeat an id"
        return TotalFeature(repeated, shown, examples)

    def histograms(self) -> list[dict[str, Any]]:
        return [lengths.histogram(f"Length of {name}", self.unit) for name, lengths in self._lengths.items()]


class ExampleFiles(ParquetFiles):
    """Examples of an entry, all splits."""

    def __init__(self, folder: Path, splits: Sequence[str], schema: pa.Schema, columns: str) -> None:
        """Open the splits in `folder`.

        Args:
            splits: names of the splits, training first.

        Raises:
            InputError: the file of a split is missing.
        """
        files = {split: Path(folder) / f"{split}.parquet" for split in splits}
        for path in files.values():
            if not path.is_file():
                raise InputError(f"{path} does not exist: run its stage examples first")
        super().__init__(files, schema, columns, "the stage examples")
        self._keys = {split: text_features.KeyCounter() for split in splits}
        """Split -> keys that identify equal examples."""

    def count_checks(self, least: int, advice: str) -> list[DataCheck]:
        """Return a check of the number of examples for each split.

        Args:
            least: examples that every split must have.
            advice: may contain {split}.
        """
        return [
            DataCheck(
                f"{split}_{self.record}s",
                f"{split}.parquet",
                f"at least {least:,} {self.record}s",
                advice.format(split=split),
                minimum=least,
            )
            for split in self.files
        ]

    def totals(self) -> Totals:
        return {f"{split}_{self.record}s": TotalFeature(count) for split, count in self._count.items()}

    def numbers(self) -> dict[str, Any]:
        return {f"{split} {self.record}s": count for split, count in self._count.items()}

    def _repetitions(self, before: str, in_train: str, further: Mapping[str, int] | None = None) -> dict[str, int]:
        """Count examples that repeat a training example: most data sets have some, so they are reported, not refused.

        Args:
            before: label of repeated training examples, after the name of the split.
            in_train: label of another split's examples that are also in training.
            further: further figures of the training examples.
        """
        (training, ours), *others = ((split, keys.all_hashes()) for split, keys in self._keys.items())
        return {
            f"{training} {before}": len(ours) - len(np.unique(ours)),
            **(further or {}),
            **{f"{split} {in_train}": int(np.isin(keys, ours).sum()) for split, keys in others},
        }
