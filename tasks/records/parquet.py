"""Parquet and Arrow files in batches: users' files within a memory limit, and files of earlier stages."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ipu_model.core.files import open_regular
from tasks.stage.errors import InputError
from tasks.stage.memory import iterate_limited

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BUFFER_BYTES = 1 << 20
"""Bytes buffered for each column of a Parquet file."""
MAX_FOOTER_BYTES = 16 << 20
"""Longest footer that is read; a million rows in groups of a thousand with twenty columns have 3 MB."""
MAX_LISTED = 100_000
"""Columns or row groups in a footer at most: each takes a thousand times its bytes in memory."""
MAX_NAME_BYTES = 1 << 20
Record = TypeVar("Record")


def define_schema(**columns: pa.DataType) -> pa.Schema:
    """Return a schema of columns without nulls."""
    import pyarrow as pa

    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file to be read page by page: a row group need not fit into memory.

    Raises:
        InputError: its footer is too large.
        pyarrow.ArrowException, OSError: not a Parquet file, or damaged.
    """
    import pyarrow.parquet as pq

    with open_regular(path) as stream:
        size = stream.seek(0, os.SEEK_END)  # the length of the footer precedes the last four bytes
        stream.seek(max(0, size - 8))
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(0)
        if size >= length > MAX_FOOTER_BYTES:  # a length beyond the file is damage, which the library reports
            raise InputError(
                f"{path} has a footer of {length:,} bytes; at most {MAX_FOOTER_BYTES:,} are allowed. Write it with "
                "larger row groups or fewer columns"
            )
        options = {"thrift_string_size_limit": MAX_NAME_BYTES, "thrift_container_size_limit": MAX_LISTED}
        with pq.ParquetFile(stream, pre_buffer=False, buffer_size=BUFFER_BYTES, **options) as file:
            yield file


def read_checked_batches(path: Path, rows_at_once: int, source: str) -> Iterator[pa.RecordBatch]:
    """Yield validated record batches of a Parquet file, or of an Arrow file or stream (`datasets` writes streams).

    Raises:
        InputError: a batch takes more memory than allowed.
        pyarrow.ArrowException, OSError: another format, or damaged.
    """
    for batch in iterate_limited(_read_any_batches(path, rows_at_once), source):
        batch.validate(full=True)  # offsets of a damaged file may point anywhere
        yield batch


def _read_any_batches(path: Path, rows_at_once: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if path.suffix.lower() == ".parquet":
        with open_parquet(path) as parquet:
            yield from parquet.iter_batches(rows_at_once, use_threads=False)
        return
    with open_regular(path) as stream, pa.memory_map(f"/dev/fd/{stream.fileno()}") as memory:
        if memory.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(memory)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            memory.seek(0)
            yield from pa.ipc.open_stream(memory)


class RowGroupSize(NamedTuple):
    """Size of a row group, from the metadata of its file."""

    rows: int
    bytes: int
    """Decoded bytes of one column."""


def read_group_sizes(path: Path, column: str, stage: str) -> list[RowGroupSize]:
    """Return the rows, and the bytes of `column`, of each row group of a file, without reading a row.

    For other arguments and errors see `read_batches`.
    """
    sizes = []
    with open_stage_file(path, [column], stage) as parquet:
        for number in range(parquet.metadata.num_row_groups):
            group = parquet.metadata.row_group(number)
            chunks = (group.column(index) for index in range(group.num_columns))
            column_chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == column]
            sizes.append(RowGroupSize(group.num_rows, sum(chunk.total_uncompressed_size for chunk in column_chunks)))
    return sizes


def count_rows(path: Path, columns: Sequence[str], stage: str) -> int:
    """Return the number of rows of a file that has `columns`; for arguments and errors see `read_batches`."""
    with open_stage_file(path, columns, stage) as parquet:
        rows: int = parquet.metadata.num_rows
    return rows


def list_corpus_files(corpus: Path) -> list[Path]:
    """Return the Parquet files of a corpus, sorted by name; there is at least one."""
    files = sorted(Path(corpus).glob("*.parquet"))
    if not files:
        raise InputError(f"{corpus} has no .parquet file: run the corpus stage first (`dvc repro corpus`)")
    return files


def read_batches(
    path: Path, columns: Sequence[str] | None, rows_at_once: int, stage: str, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most `rows_at_once` rows of one row group; memory does not grow with the file.

    Without `columns` or `groups`, all are read. Messages name the stage that writes the file.

    Raises:
        InputError: the file is missing, damaged, or lacks one of `columns`.
    """
    with open_stage_file(path, columns or (), stage) as parquet:
        yield from read_group_batches(parquet, columns, rows_at_once, groups)


def read_group_batches(
    parquet: pq.ParquetFile, columns: Sequence[str] | None, rows_at_once: int, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of one row group at a time; `columns` and `groups` are as for `read_batches`.

    By default the library fills a batch from several groups, however large their rows are, and its threads read ahead
    without limit.
    """
    names = None if columns is None else list(columns)
    for group in range(parquet.num_row_groups) if groups is None else groups:
        yield from parquet.iter_batches(rows_at_once, [group], columns=names, use_threads=False)


def read_columns(path: Path, columns: Sequence[str], rows_at_once: int, stage: str) -> list[list[Any]]:
    """Return the values of each column of a file; for arguments and errors see `read_batches`."""
    columns_read: list[list[Any]] = [[] for _ in columns]
    for batch in read_batches(path, columns, rows_at_once, stage):
        for values, name in zip(columns_read, columns, strict=True):
            values += batch.column(name).to_pylist()
    return columns_read


def has_first_value(path: Path, column: str, stage: str) -> bool:
    """Tell whether the first row of a file has a value in a column; for arguments and errors see `read_batches`."""
    batch = next(read_batches(path, [column], 1, stage), None)
    return batch is not None and batch.column(0).null_count < len(batch)


def split_into_groups(
    records: Iterable[Record], length: Callable[[Record], int], most: int, characters: int
) -> Iterator[list[Record]]:
    """Yield the records of each row group: `most`, or fewer if they are long, which bounds the memory of readers.

    A group closes at a total `length` of `characters`.
    """
    group: list[Record] = []
    total = 0
    for record in records:
        group.append(record)
        total += length(record)
        if len(group) >= most or total >= characters:
            yield group
            group, total = [], 0
    if group:
        yield group


def write_records(
    records: Iterable[Any],
    path: Path,
    schema: pa.Schema,
    most: int,
    length: Callable[[Any], int] = lambda _: 0,
    characters: int = 1,
) -> int:
    """Write named tuples with the fields of `schema` to a Parquet file, and return their number.

    For other arguments see `split_into_groups`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in split_into_groups(records, length, most, characters):
            writer.write_table(pa.Table.from_pylist([record._asdict() for record in group], schema=schema))
            count += len(group)
    return count


@contextlib.contextmanager
def open_stage_file(path: Path, columns: Sequence[str], stage: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file that a stage wrote with at least these columns; see `read_batches`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    again = f"run `dvc repro {stage}`"
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist; the {stage} stage makes it: {again} first")
    try:
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            missing = sorted(set(columns) - set(parquet.schema_arrow.names))
            if missing:
                names = ", ".join(parquet.schema_arrow.names)
                raise InputError(f"{path} has the columns {names} but not {', '.join(missing)}: {again} again")
            yield parquet
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({error}): {again} again") from None
