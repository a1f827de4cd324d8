"""Records of the user's own tables: .jsonl, .csv, .parquet, or rows of a Hub data set. Memory stays flat.

A table is asked for columns; one that is required and absent is refused with the columns that are there, one that
nobody asks for is noted. Text must be UTF-8 (a byte order mark is accepted).
"""

from __future__ import annotations

import csv
import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.project.errors import InputError
from tasks.project.files import each_key_once, parse_json
from tasks.project.memory import limited_steps
from tasks.reading.foreign_tables import open_parquet
from tasks.reading.packed import ending_of
from tasks.reading.text_files import MAX_LINE_BYTES, Reading, refuse_empty, text_lines

BATCH_RECORDS = 1024
BATCH_BYTES = 16 << 20
"""Bytes of a Parquet file that are decoded at a time, about; a batch has fewer records where they are long."""
MAX_COLUMNS = 10_000
SHOWN_COLUMNS, SHOWN_CHARACTERS = 20, 80
BLANK_LINES = "blank lines passed over"
NUMBERS = "ids that were numbers, taken as text"


class Line(NamedTuple):
    """One record of a table and where it stands, for messages."""

    where: str
    values: dict[str, Any]


class Column(NamedTuple):
    """A column that is asked for."""

    name: str
    key: str
    """Key of params.yaml that names it."""
    required: bool


def read_table(path: Path, columns: Sequence[Column], key: str, reading: Reading) -> Iterator[Line]:
    """The records of a .jsonl, .csv, .tsv or .parquet file, in order; in .tsv quotes are letters like others.

    Args:
        path: the file.
        columns: what is asked for; of Parquet files nothing else is read.
        key: the params key that named the file, for messages.
        reading: gets the blank lines and the columns that nobody asked for.

    Raises:
        InputError: not what its ending says, another encoding, damaged, or without a required column; the message
            names the file and the place.
    """
    refuse_empty(path, key)
    return _READ[ending_of(path)](path, columns, key, reading)


def stated_by(section: str) -> str:
    """What messages say to set for the part ({}) of an example that another column of a user's table holds.

    Args:
        section: the key of the section `data` of an entry of `downstream`.
    """
    return f"{section}.columns.{{0}} (podium finetune: --column {{0}}=NAME)"


def check_columns(present: Sequence[str], columns: Sequence[Column], source: str, reading: Reading) -> None:
    """Note the columns of `present` that nobody asks for.

    Raises:
        InputError: one stands twice, or required ones are absent (the nearest names are given).
    """
    if len(present) > MAX_COLUMNS:
        raise InputError(f"{source} has {len(present):,} columns; up to {MAX_COLUMNS:,} are read: leave some out")
    twice = sorted(name for name, count in Counter(present).items() if count > 1)
    if twice:
        raise InputError(f"{source} has the column {twice[0]!r} more than once: rename one of them")
    if missing := [column for column in columns if column.required and column.name not in present]:
        near = {one.name: difflib.get_close_matches(one.name, present, 1) for one in missing}
        found = ", ".join(one[:SHOWN_CHARACTERS] for one in present[:SHOWN_COLUMNS]) or "no columns"
        others = f" and {len(present) - SHOWN_COLUMNS:,} more" if len(present) > SHOWN_COLUMNS else ""
        meant = [f"{one[0]} for {name}" if len(missing) > 1 else one[0] for name, one in near.items() if one]
        raise InputError(
            f"{source} has no column {' and none '.join(repr(name) for name in near)}: found {found}{others}"
            + (f"; did you mean {', '.join(meant)}?" if meant else "")
            + f"; set {', '.join(dict.fromkeys(one.key for one in missing))}"
        )
    reading.unused_columns |= set(present) - {column.name for column in columns}


def column_names(path: Path, key: str) -> list[str]:
    """The columns of a table, of .jsonl those of its first record; none where it holds nothing.

    Raises:
        InputError: as `read_table`.
    """
    if path.suffix.lower() == ".parquet":
        import pyarrow as pa

        try:
            with open_parquet(path) as file:
                return list(file.schema_arrow.names)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path} is not a Parquet file ({error}) ({key})") from None
    return list(next((line.values for line in read_table(path, (), key, Reading())), {}))


def checked(lines: Iterable[Line], columns: Sequence[Column], source: str, reading: Reading) -> Iterator[Line]:
    """`lines`, their columns checked wherever they differ from those of the line before.

    Raises:
        InputError: see `check_columns`.
    """
    before: tuple[str, ...] | None = None
    for line in lines:
        present = tuple(line.values)
        if present != before:
            check_columns(present, columns, f"{source}, {line.where}", reading)
            before = present
        yield line


def _read_jsonl(path: Path, columns: Sequence[Column], key: str, reading: Reading) -> Iterator[Line]:
    return checked(json_objects(path, key, reading), columns, str(path), reading)


def json_objects(path: Path, key: str, reading: Reading) -> Iterator[Line]:
    """The objects of a file with one a line.

    Raises:
        InputError: a line that is no JSON object, or text that is not UTF-8, with its number.
    """
    for number, line in enumerate(text_lines(path, key), 1):
        if not line.strip():
            reading.counts[BLANK_LINES] += 1
            continue
        try:
            values = parse_json(line, object_pairs_hook=each_key_once)
        except ValueError as error:
            raise InputError(f"{path}, line {number} is not JSON ({error}): one object a line is required") from None
        if not isinstance(values, dict):
            raise InputError(
                f"{path}, line {number} is no JSON object but {type(values).__name__}: one object a line is required"
            )
        yield Line(f"line {number}", values)


def _read_csv(path: Path, columns: Sequence[Column], key: str, reading: Reading) -> Iterator[Line]:
    return _read_fields(path, columns, key, reading, strict=True)


def _read_tsv(path: Path, columns: Sequence[Column], key: str, reading: Reading) -> Iterator[Line]:
    return _read_fields(path, columns, key, reading, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_fields(path: Path, columns: Sequence[Column], key: str, reading: Reading, **form: Any) -> Iterator[Line]:
    csv.field_size_limit(MAX_LINE_BYTES)
    held = 0  # of the row that is being read: its quoted fields may hold line ends

    def lines() -> Iterator[str]:
        nonlocal held
        for line in text_lines(path, key):
            held += len(line)
            if held > MAX_LINE_BYTES:
                raise InputError(f"{path}: a row is longer than {MAX_LINE_BYTES >> 20} MB: close its quotes ({key})")
            yield line

    rows = csv.reader(lines(), **form)
    try:
        header = next(rows, [])
        check_columns(header, columns, str(path), reading)
        held = 0
        for row in rows:
            held = 0
            if not row:
                reading.counts[BLANK_LINES] += 1
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{path}, line {rows.line_num} has {len(row)} fields, the header has {len(header)}: "
                    "every row needs the header's columns (in .csv, quote fields that hold commas)"
                )
            yield Line(f"line {rows.line_num}", dict(zip(header, row, strict=True)))
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num} is not CSV: {error}") from None


def _read_parquet(path: Path, columns: Sequence[Column], key: str, reading: Reading) -> Iterator[Line]:
    number = 0
    for rows in limited_steps(_parquet_rows(path, columns, key, reading), f"{path} ({key})"):
        for values in rows:
            yield Line(f"row {number}", values)
            number += 1


def _parquet_rows(path: Path, columns: Sequence[Column], key: str, reading: Reading) -> Iterator[list[dict[str, Any]]]:
    """Some rows at a time."""
    import pyarrow as pa

    row = 0
    try:
        with open_parquet(path) as file:
            present = file.schema_arrow.names
            check_columns(present, columns, str(path), reading)
            wanted = [column.name for column in columns if column.name in present]
            for batch in file.iter_batches(_records_at_once(file.metadata, path), columns=wanted, use_threads=False):
                _require_text(batch, path, row)
                yield batch.to_pylist()
                row += batch.num_rows
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path} is not a Parquet file that can be read to its end (from row {row} on: {error}); "
            f"it may be cut off: copy or make it again ({key})"
        ) from None


def _records_at_once(metadata: Any, path: Path) -> int:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    if widest > MAX_LINE_BYTES:
        raise InputError(
            f"{path} states {int(widest):,} bytes for a row; up to {MAX_LINE_BYTES:,} are read: break long values into "
            "rows"
        )
    return int(min(BATCH_RECORDS, max(1, BATCH_BYTES // max(1, widest))))


def _require_text(batch: Any, path: Path, first: int) -> None:
    """Strings of a Parquet file are whatever bytes its writer put there."""
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as problem:
        for number in range(batch.num_rows):
            try:
                batch.slice(number, 1).validate(full=True)
            except pa.ArrowInvalid as error:
                raise InputError(
                    f"{path}, row {first + number} is damaged or not UTF-8 ({error}): make the file again"
                ) from None
        raise InputError(f"{path}, rows {first} to {first + batch.num_rows - 1} are damaged ({problem})") from None


_READ: dict[str, Callable[[Path, Sequence[Column], str, Reading], Iterator[Line]]] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".tsv": _read_tsv,
}
ENDINGS = (".jsonl", ".csv", ".parquet")
"""Of the tables that all inputs may be; what a .tsv file is says each of them by itself."""
