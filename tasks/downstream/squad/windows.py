"""The windows of every question with their logits: features.parquet and logits.arrow, joined and checked.

Legend: F windows (features), C context tokens of all windows together, E examples (questions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.downstream.squad.files import reading_errors, require_columns
from tasks.project.errors import InputError
from tasks.reading.parquet import group_batches

Array = NDArray[Any]
PART_TOKENS = 1 << 20
"""Tokens of the windows of a part, about, and those of one example more at most: some 30 MB of offsets and logits."""
WINDOWS_AT_ONCE = 1024
NUMBERS = ("feature_id", "example_index", "n_tokens", "context_start")
LOGITS = ("start_logits", "end_logits")
FEATURES_SCHEMA = pa.schema(
    [
        pa.field("feature_id", pa.int32(), nullable=False),
        pa.field("example_id", pa.string(), nullable=False),
        pa.field("example_index", pa.int32(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("context_start", pa.int32(), nullable=False),
        pa.field("offsets", pa.list_(pa.int32()), nullable=False),
    ]
)
"""One line per feature: its example's id and line, its tokens, where the context begins among them, and
the characters (start, end, start, end, ...) of its context tokens."""


@dataclass(frozen=True)
class Windows:
    """Every window of every example, in order of feature id, context tokens only."""

    example_index: Array
    """int [F]: line of the questions; not decreasing."""
    bounds: Array
    """int [F + 1]: window f owns the context tokens bounds[f] to bounds[f + 1]."""
    characters: Array
    """int [C, 2]: start and end of each token in its context."""
    start_logits: Array
    """float32 [C]."""
    end_logits: Array
    """float32 [C]."""
    cls_logits: Array
    """float32 [F, 2]: start and end logit of each window's [CLS]."""

    def __len__(self) -> int:
        return len(self.example_index)


@dataclass(frozen=True)
class WindowFiles:
    """The windows of every question in features.parquet (of the rows) and logits.arrow (of the predict job)."""

    features: Path
    logits: Path
    example_ids: Sequence[str]
    """Id of every example, in the order of the questions, [E]."""

    def parts(self) -> Iterator[tuple[slice, Windows]]:
        """Yield some examples at a time, and their windows, whose `example_index` counts from the first of these.

        Raises:
            InputError: as `read`, or windows that are not in the order of the questions.
        """
        for windows in self._read(PART_TOKENS):
            first, last = int(windows.example_index[0]), int(windows.example_index[-1])
            yield slice(first, last + 1), replace(windows, example_index=windows.example_index - first)

    def read(self) -> Windows:
        """Return all of them, checked against each other and the questions.

        Raises:
            InputError: a file that cannot be read; logits that miss a feature, have another length than its
                tokens or are not finite; features of other questions, or an example without a feature.
        """
        [windows] = self._read()
        return windows

    def _read(self, tokens: int | None = None) -> Iterator[Windows]:
        """Yield windows, those of some examples at a time.

        Args:
            tokens: of the windows of a part, about; None: there is one part.
        """
        index = _read_index(self.features)
        _check_examples(index, self.example_ids, self.features)
        _check_ids(self.logits, len(index["n_tokens"]))
        stops = [len(index["n_tokens"])] if tokens is None else _stops(index, tokens, self.features)
        counts = np.diff([0, *stops]).tolist()
        parts = zip(counts, _offsets(self.features, counts), _logits(self.logits, counts), strict=True)
        first = 0
        for count, offsets, lists in parts:
            here = {name: index[name][first : first + count] for name in NUMBERS}
            counted = _context_tokens(here, offsets, first, self.features)
            starts, ends = (_flat(column, here["n_tokens"], first, self.logits) for column in lists)
            yield _joined(here, offsets.flatten().to_numpy().reshape(-1, 2), counted, starts, ends)
            first += count

    def windows_of_examples(self) -> list[int]:
        """Count the windows of each example."""
        index = _read_index(self.features)["example_index"]
        counts: list[int] = np.bincount(index, minlength=len(self.example_ids)).tolist()
        return counts


def example_ids(features: Path) -> list[str]:
    """The id of every example that has a window, in order.

    Raises:
        InputError: features.parquet cannot be read.
    """
    return list(dict.fromkeys(_read_index(features)["example_id"].tolist()))


def _context_tokens(index: dict[str, Array], offsets: pa.ListArray, first: int, path: Path) -> Array:
    """Count the context's tokens of some windows, of which `first` is the first one's number."""
    lengths = np.asarray(offsets.value_lengths())
    if (lengths % 2).any():
        raise InputError(f"{path}: offsets must be pairs of start and end; run its stage of rows again")
    over = index["context_start"] + lengths // 2 > index["n_tokens"]
    if over.any():
        line = first + int(np.argmax(over))
        raise InputError(f"{path}: feature {line} has more context tokens than tokens; run its stage of rows again")
    counts: Array = lengths // 2
    return counts


def _joined(index: dict[str, Array], characters: Array, counts: Array, starts: Array, ends: Array) -> Windows:
    """Return windows with `counts` context tokens each; `starts` and `ends` are the logits of all their tokens."""
    bounds = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    first_token = np.concatenate(([0], np.cumsum(index["n_tokens"], dtype=np.int64)))[:-1]
    position = np.repeat(first_token + index["context_start"] - bounds[:-1], counts) + np.arange(bounds[-1])
    return Windows(
        example_index=index["example_index"],
        bounds=bounds,
        characters=characters,
        start_logits=starts[position],
        end_logits=ends[position],
        cls_logits=np.stack([starts[first_token], ends[first_token]], axis=1),
    )


def _stops(index: dict[str, Array], tokens: int, path: Path) -> list[int]:
    """Choose the window after each part."""
    steps = np.diff(index["example_index"])
    if (steps < 0).any():
        raise InputError(f"{path}: example_index must not decrease; run its stage of rows again")
    ends = np.concatenate((np.flatnonzero(steps) + 1, [len(steps) + 1]))
    before = np.cumsum(index["n_tokens"], dtype=np.int64)[ends - 1] // tokens
    return [int(end) for end, full in zip(ends, np.diff(before, append=before[-1] + 1), strict=True) if full]


def _cut(batches: Iterator[pa.RecordBatch], counts: Sequence[int]) -> Iterator[pa.Table]:
    """Yield the next so many rows each time."""
    waiting: list[pa.RecordBatch] = []
    for count in counts:
        while sum(map(len, waiting)) < count:
            waiting.append(next(batches))
        table = pa.Table.from_batches(waiting)
        yield table.slice(0, count).combine_chunks()
        waiting = table.slice(count).to_batches()


def _read_index(path: Path) -> dict[str, Array]:
    """Read what is small of each window: numbers and the id of its example."""
    names = [*NUMBERS, "example_id"]
    with reading_errors(path, "features", "its stage of rows"), pq.ParquetFile(path, pre_buffer=False) as file:
        require_columns([*names, "offsets"], file.schema_arrow.names, path, "its stage of rows")
        table = file.read(names, use_threads=False)
    columns = {name: table[name].to_numpy() for name in names}
    if not np.array_equal(columns["feature_id"], np.arange(table.num_rows)):
        raise InputError(f"{path}: feature_id must count 0, 1, ... line by line; run its stage of rows again")
    return columns


def _offsets(path: Path, counts: Sequence[int]) -> Iterator[pa.ListArray]:
    with reading_errors(path, "features", "its stage of rows"), pq.ParquetFile(path, pre_buffer=False) as file:
        for table in _cut(group_batches(file, ["offsets"], WINDOWS_AT_ONCE), counts):
            yield table["offsets"].combine_chunks()


def _check_ids(path: Path, features: int) -> None:
    """Refuse logits of other windows."""
    with reading_errors(path, "logits", "the stage predict"), pa.OSFile(str(path)) as source:
        schema = pa.ipc.open_file(source).schema
        require_columns(["feature_id", *LOGITS], schema.names, path, "the stage predict")
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index("feature_id")])
        reader = pa.ipc.open_file(source, options=options)
        batches = [reader.get_batch(number).column(0).to_numpy() for number in range(reader.num_record_batches)]
    ids = np.concatenate([np.empty(0, np.int32), *batches])
    if not np.array_equal(ids, np.arange(features)):
        absent = np.setdiff1d(np.arange(features), ids)
        what = f"misses feature {absent[0]}" if len(absent) else "has unknown, repeated or unsorted features"
        raise InputError(f"{path} {what}: {len(ids)} lines for {features} features; run the stage predict again")


def _logits(path: Path, counts: Sequence[int]) -> Iterator[tuple[pa.ListArray, pa.ListArray]]:
    with (
        reading_errors(path, "logits", "the stage predict"),
        pa.OSFile(str(path)) as source,
    ):  # a map would count as memory
        reader = pa.ipc.open_file(source)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        for table in _cut(batches, counts):
            yield table[LOGITS[0]].combine_chunks(), table[LOGITS[1]].combine_chunks()


def _check_examples(table: dict[str, Array], example_ids: Sequence[str], path: Path) -> None:
    index = table["example_index"]
    if len(index) and (index.min() < 0 or index.max() >= len(example_ids)):
        raise InputError(
            f"{path} speaks of question {int(index.max())}, there are {len(example_ids)}; run its stage of rows again"
        )
    wanted = np.asarray(example_ids, dtype=object)[index]
    other = np.flatnonzero(wanted != table["example_id"].astype(object))
    if len(other):
        line = int(other[0])
        raise InputError(
            f"{path}: feature {line} belongs to question {table['example_id'][line]!r}, the questions have "
            f"{wanted[line]!r} in its place; run its stage of rows again"
        )
    missing = np.setdiff1d(np.arange(len(example_ids)), index)
    if len(missing):
        raise InputError(
            f"{path} has no feature for {len(missing)} of {len(example_ids)} questions, first "
            f"{example_ids[int(missing[0])]!r}; run its stage of rows again"
        )


def _flat(lists: pa.ListArray, n_tokens: Array, first: int, path: Path) -> Array:
    """Return the logits of some windows, of which `first` is the first one's number."""
    lengths = np.asarray(lists.value_lengths().fill_null(-1))
    other = np.flatnonzero(lengths != n_tokens)
    if len(other):
        line = int(other[0])
        raise InputError(
            f"{path}: feature {first + line} has {lengths[line]} logits, its window has {n_tokens[line]} tokens; "
            "rows and predictions belong to different runs, run the stage predict again"
        )
    values: Array = lists.flatten().to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        line = first + int(np.searchsorted(np.cumsum(n_tokens), bad[0], side="right"))
        raise InputError(
            f"{path}: a logit of feature {line} is {values[bad[0]]}, all must be finite; the model is not "
            "usable (its training diverged, or precision is too low: try device.precision fp32)"
        )
    return values
