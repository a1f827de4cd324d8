"""The examples of an entry as they are judged: a Parquet file a split, read one batch after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.project.errors import InputError
from tasks.reading.text_files import read_reading
from tasks.validation import text_features
from tasks.validation.checks import Check, Frame, Totals, differing, gathered


class ExampleFiles(ABC):
    """What a kind of task adds: its checks, the features of a batch, totals and statistics."""

    record: str
    """What one example is called."""

    def __init__(self, folder: Path, splits: Sequence[str], schema: pa.Schema, columns: str) -> None:
        """Open the splits in `folder`.

        Args:
            folder: of the examples, with reading.json.
            splits: training first.
            schema: required of every file.
            columns: the schema in words.

        Raises:
            InputError: a split is not there.
        """
        self.files = {split: Path(folder) / f"{split}.parquet" for split in splits}
        for path in self.files.values():
            if not path.is_file():
                raise InputError(f"{path} is not there: run its stage of examples first")
        self.reading: dict[str, int] = read_reading(folder)["numbers"]
        self.schema = schema
        self.prerequisites: Sequence[Check] = (
            Check(
                "schema",
                ", ".join(schema.names),
                columns,
                f"{folder} was written by something else than the stage examples: delete it and run that stage",
                maximum=0,
            ),
        )
        self._count = dict.fromkeys(splits, 0)

    @property
    def others(self) -> list[str]:
        """The splits but training."""
        return list(self.files)[1:]

    def count_checks(self, least: int, fix: str) -> list[Check]:
        """Return a check for each split that it has at least so many examples."""
        return [
            Check(
                f"{split}_{self.record}s",
                f"{split}.parquet",
                f"at least {least:,} {self.record}s",
                fix,
                minimum=least,
            )
            for split in self.files
        ]

    def prepare(self) -> Totals:
        """How the files differ from the schema."""
        found = [text for path in self.files.values() for text in text_features.schema_differences(path, self.schema)]
        return Totals({"schema": len(found)}, {"schema": found}, {"schema": differing(found)})

    def frames(self) -> Iterator[Frame]:
        """The features of all records, split by split."""
        return gathered(self._features(split, batch) for split in self.files for batch in self._read(split))

    def _read(self, split: str, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        return text_features.batches(self.files[split], columns or self.schema.names)

    @abstractmethod
    def _features(self, split: str, batch: pa.RecordBatch) -> Frame:
        """What the checks of every record look at."""


def repetitions(keys: Mapping[str, text_features.Keys]) -> list[int]:
    """Count the training examples that came before, and those of each other split that are also in training.

    Args:
        keys: of the examples of each split, training first.
    """
    train, *others = (one.all_hashes() for one in keys.values())
    return [len(train) - len(np.unique(train)), *(int(np.isin(one, train).sum()) for one in others)]
