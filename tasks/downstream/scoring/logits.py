"""Checked join of features.parquet (rows) and logits.arrow (predictions), one part at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.records.parquet import read_batches
from tasks.stage.errors import InputError

Array = NDArray[Any]
FEATURE_ID = "feature_id"
READ_AT_ONCE = 1024
"""Features decoded from Parquet at a time."""


class LogitsNotFinite(InputError):
    """A logit is NaN or infinite."""


@dataclass(frozen=True)
class FeatureFiles:
    """Files of features and logits, and the stages that write them."""

    features: Path
    logits: Path
    stage: Callable[[str], str]
    """Returns the name of a stage for messages; see `Entry.stage`."""

    def read_numbers(self, *names: str) -> dict[str, Array]:
        """Read columns with one value per feature.

        Raises:
            InputError: the file cannot be read, lacks a column, or does not number its features.
        """
        batches = list(read_batches(self.features, (FEATURE_ID, *names), READ_AT_ONCE, self.stage("rows")))
        columns: dict[str, Array] = {
            name: np.concatenate([np.empty(0, np.int64), *(_values(batch.column(name)) for batch in batches)])
            for name in (FEATURE_ID, *names)
        }
        numbers = columns.pop(FEATURE_ID)
        if not np.array_equal(numbers, np.arange(len(numbers))):
            raise self.refuse_rows(f"{FEATURE_ID} must be 0, 1, ... in order")
        return columns

    def read_lists(self, column: str, counts: Sequence[int]) -> Iterator[pa.ListArray]:
        """Yield a list column in parts of these numbers of features; raises the errors of `read_numbers`."""
        for table in _cut(read_batches(self.features, [column], READ_AT_ONCE, self.stage("rows")), counts):
            yield table[column].combine_chunks()

    def read_logits(self, columns: Sequence[str], lengths: Array, counts: Sequence[int]) -> Iterator[list[Array]]:
        """Yield the concatenated logits of each column in parts of these numbers of features.

        Args:
            lengths: number of logits of each feature.

        Raises:
            InputError: the file cannot be read, or has logits of other features or values that are not finite.
        """
        first = 0
        try:
            with pa.OSFile(str(self.logits)) as source:  # a memory map would count as memory
                reader = pa.ipc.open_file(source)
                if missing := [name for name in (FEATURE_ID, *columns) if name not in reader.schema.names]:
                    raise self.refuse_logits(f"lacks the columns {', '.join(missing)}")
                self._check_numbers(source, reader.schema, len(lengths))
                for table in _cut(map(reader.get_batch, range(reader.num_record_batches)), counts):
                    part = lengths[first : first + len(table)]
                    yield [self._flat(table[name].combine_chunks(), part, first) for name in columns]
                    first += len(table)
        except FileNotFoundError:
            raise self.refuse_logits("not found", "") from None
        except (pa.ArrowException, OSError) as error:
            raise self.refuse_logits(f"cannot be read as logits ({error})") from None

    def _check_numbers(self, source: pa.NativeFile, schema: pa.Schema, features: int) -> None:
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(FEATURE_ID)])
        reader = pa.ipc.open_file(source, options=options)
        parts = [_values(reader.get_batch(number).column(0)) for number in range(reader.num_record_batches)]
        numbers = np.concatenate([np.empty(0, np.int64), *parts])
        if not np.array_equal(numbers, np.arange(features)):
            absent = np.setdiff1d(np.arange(features), numbers)
            what = f"lacks feature {absent[0]}" if len(absent) else "has unknown, repeated or unsorted features"
            raise self.refuse_logits(f"{what}: {len(numbers)} lines for {features} features")

    def _flat(self, lists: pa.ListArray, lengths: Array, first: int) -> Array:
        counts = np.asarray(lists.value_lengths().fill_null(-1))
        if len(other := np.flatnonzero(counts != lengths)):
            line = int(other[0])
            raise self.refuse_logits(
                f"has {counts[line]} logits for feature {first + line}, {lengths[line]} are required: rows and "
                "predictions belong to different runs"
            )
        values = _values(lists.flatten())
        if len(bad := np.flatnonzero(~np.isfinite(values))):
            line = first + int(np.searchsorted(np.cumsum(lengths), bad[0], side="right"))
            raise LogitsNotFinite(
                f"{self.logits}: a logit of feature {line} is {values[bad[0]]}. The training diverged or the precision "
                "is too low: try device.precision fp32"
            )
        return values

    def refuse_rows(self, problem: str) -> InputError:
        """Return the error for unusable features."""
        return InputError(f"{self.features}: {problem}. Run `dvc repro {self.stage('rows')}` again")

    def refuse_logits(self, problem: str, again: str = " again") -> InputError:
        """Return the error for an unusable logits file."""
        return InputError(f"{self.logits} {problem}. Run the stage {self.stage('predict')}{again}")


def _values(array: pa.Array) -> Array:
    return array.to_numpy(zero_copy_only=False)


def _cut(batches: Iterator[pa.RecordBatch], counts: Sequence[int]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for count in counts:
        while sum(map(len, waiting)) < count:
            waiting.append(next(batches))
        if count:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, count).combine_chunks()
            waiting = table.slice(count).to_batches()
