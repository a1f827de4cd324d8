"""Reading the Parquet artifacts of earlier stages, a few rows at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.project.errors import InputError


@dataclass(frozen=True)
class Size:
    """What a file's own description says of it; no row is read."""

    rows: int
    bytes: int
    """Bytes of the columns asked for, decoded."""


def sizes_of_groups(path: Path, column: str, stage: str) -> list[Size]:
    """Rows, and bytes of `column`, of each row group of the file.

    Args:
        stage: that writes the file, for the messages.

    Raises:
        InputError: as `read_batches`.
    """
    with _open(path, [column], stage) as parquet:
        groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
        return [Size(group.num_rows, _bytes_of(group, column)) for group in groups]


def _bytes_of(group: pq.RowGroupMetaData, column: str) -> int:
    chunks = [group.column(place) for place in range(group.num_columns)]
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] == column)


def size_of(path: Path, columns: Sequence[str], stage: str) -> Size:
    """Rows of the file, and bytes of `columns`.

    Args:
        stage: that writes the file, for the messages.

    Raises:
        InputError: as `read_batches`.
    """
    by_column = [sizes_of_groups(path, column, stage) for column in columns]
    return Size(sum(size.rows for size in by_column[0]), sum(size.bytes for sizes in by_column for size in sizes))


def read_batches(
    path: Path, columns: Sequence[str], rows_at_once: int, stage: str, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows_at_once` rows of one row group; memory does not grow with the file.

    Args:
        stage: that writes the file, for the messages.
        groups: row groups to read; None: all.

    Raises:
        InputError: missing, damaged, or without one of `columns`.
    """
    with _open(path, columns, stage) as parquet:
        yield from group_batches(parquet, columns, rows_at_once, groups)


def group_batches(
    parquet: pq.ParquetFile, columns: Sequence[str], rows_at_once: int, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of one row group at a time: by itself the library fills a batch from several, however large their
    rows are, and with threads it reads ahead without end.

    Args:
        groups: row groups to read; None: all.
    """
    for group in range(parquet.num_row_groups) if groups is None else groups:
        yield from parquet.iter_batches(rows_at_once, [group], columns=list(columns), use_threads=False)


@contextlib.contextmanager
def _open(path: Path, columns: Sequence[str], stage: str) -> Iterator[pq.ParquetFile]:
    again = f"run `dvc repro {stage}`"
    if not Path(path).is_file():
        raise InputError(f"{path} is not there: the {stage} stage makes it; {again} first")
    try:
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            missing = sorted(set(columns) - set(parquet.schema_arrow.names))
            if missing:
                found = ", ".join(parquet.schema_arrow.names)
                raise InputError(f"{path} has the columns {found} and lacks {', '.join(missing)}; {again} again")
            yield parquet
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({error}); {again} again") from None
