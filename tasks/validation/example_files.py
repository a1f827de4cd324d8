"""The examples of an entry as they are judged: a Parquet file a split, read one batch after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from tasks.project.errors import InputError
from tasks.reading.text_files import read_reading
from tasks.validation import text_features
from tasks.validation.checks import Check, Frame, Totals, differing, gathered


class ExampleFiles(ABC):
    """What a kind of task adds: its checks, the features of a batch, totals and statistics."""

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
