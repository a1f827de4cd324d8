"""Records of the user's own tables: .jsonl, .json, .csv, .parquet, or rows of a Hub data set. Memory stays flat.

A table is asked for columns. One whose name differs in case or blanks alone is taken and remarked on; one that is
required and absent is refused with the columns that are there, one that nobody asks for is noted. Text must be UTF-8 (a
byte order mark is accepted).
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.files import each_key_once, parse_json
from tasks.inputs.readers import begins_array, read_array, read_rows
from tasks.project.errors import InputError
from tasks.project.memory import limited_steps
from tasks.project.param_downstream import OwnDataParams
from tasks.reading.hub_inputs import open_dataset, stated_classes, with_names
from tasks.reading.parquet import folded, open_parquet
from tasks.reading.text_files import MAX_LINE_BYTES, NUMBERS, Reading, ending_of, refuse_empty, text_lines

BATCH_RECORDS = 1024
BATCH_BYTES = 16 << 20
"""Bytes of a Parquet file that are decoded at a time, about; a batch has fewer records where they are long."""
MAX_COLUMNS = 10_000
SHOWN_COLUMNS, SHOWN_CHARACTERS = 20, 80
BLANK_LINES = "blank lines passed over"
NO_ROWS = "has a header and no rows"
HUB_SPLITS = {"train": "train", "dev": "validation"}
"""What data sets of the Hub call the splits."""


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


def read_table(
    path: Path,
    columns: Sequence[Column],
    key: str,
    reading: Reading,
    separator: str | None = None,
    classes: str | None = None,
) -> Iterator[Line]:
    """Yield the records of a .jsonl, .json, .csv, .tsv or .parquet file, in order.

    Args:
        path: the file.
        columns: what is asked for; of Parquet files nothing else is read.
        key: the params key that named the file, for messages.
        reading: gets the blank lines, the columns that nobody asked for, that there are no rows, and remarks.
        separator: of the fields of .csv and .tsv files; None: it is found (see readers.py).
        classes: the column of class numbers, or of lists of them; they come as names where a Parquet file states these.

    Raises:
        InputError: not what its ending says, another encoding, damaged, or without a required column; the message
            names the file and the place.
    """
    refuse_empty(path, key)
    ending = ending_of(path)
    if ending in (".csv", ".tsv"):
        lines = _read_delimited(path, columns, key, reading, separator)
    elif ending == ".parquet":
        lines = _read_parquet(path, columns, key, reading, classes)
    else:
        lines = _read_json(path, columns, key, reading)
    rows = False
    for line in lines:
        rows = True
        yield line
    if not rows and ending in HEADED:
        reading.remark(f"{path.name} {NO_ROWS}")


def hub_lines(
    params: OwnDataParams, section: str, split: str, classes: Sequence[str]
) -> tuple[str, list[str], Iterator[Line]]:
    """Open a split of a Hub data set.

    Args:
        section: of params.yaml, for messages.
        classes: see `open_dataset`.

    Returns:
        What messages call it, its columns, and its records.

    Raises:
        InputError: as `open_dataset`.
    """
    name = HUB_SPLITS[split]
    rows = open_dataset(section, params.dataset, params.dataset_config, name, params.dataset_revision, classes)
    first = next(rows, {})
    numbered = enumerate(itertools.chain([first] if first else [], rows))
    lines = (Line(f"row {number}", row) for number, row in numbered)
    return f"data set {params.dataset}, split {name}", list(first), lines


def without_rows(reading: Reading) -> str:
    """Return which tables have no rows, for messages on a source that holds nothing; empty where none is known."""
    found = [text for text in reading.remarks if text.endswith(NO_ROWS)]
    return f" ({', '.join(found)})" if found else ""


def stated_by(section: str) -> str:
    """What messages say to set for the part ({}) of an example that another column of a user's table holds.

    Args:
        section: the key of the section `data` of an entry of `downstream`.
    """
    return f"{section}.columns.{{0}} (podium finetune: --column {{0}}=NAME)"


def check_columns(
    present: Sequence[str], columns: Sequence[Column], source: str, reading: Reading
) -> Mapping[str, str]:
    """Note the columns of `present` that nobody asks for.

    Returns:
        The names of those that were taken for a column whose name differs in case or blanks -> that name.

    Raises:
        InputError: one stands twice, or required ones are absent (the nearest names are given).
    """
    if len(present) > MAX_COLUMNS:
        raise InputError(f"{source} has {len(present):,} columns; up to {MAX_COLUMNS:,} are read: leave some out")
    twice = sorted(name for name, count in Counter(present).items() if count > 1)
    if twice:
        raise InputError(f"{source} has the column {twice[0]!r} more than once: rename one of them")
    renamed = _renamed(present, columns)
    for name, asked in renamed.items():
        reading.remark(f"{source.rpartition('/')[2]}: column {name!r} is read as {asked!r}")
    there = {renamed.get(name, name) for name in present}
    if missing := [column for column in columns if column.required and column.name not in there]:
        near = {one.name: difflib.get_close_matches(one.name, present, 1) for one in missing}
        found = ", ".join(one[:SHOWN_CHARACTERS] for one in present[:SHOWN_COLUMNS]) or "no columns"
        others = f" and {len(present) - SHOWN_COLUMNS:,} more" if len(present) > SHOWN_COLUMNS else ""
        meant = [f"{one[0]} for {name}" if len(missing) > 1 else one[0] for name, one in near.items() if one]
        raise InputError(
            f"{source} has no column {' and none '.join(repr(name) for name in near)}: found {found}{others}"
            + (f"; did you mean {', '.join(meant)}?" if meant else "")
            + f"; set {', '.join(dict.fromkeys(one.key for one in missing))}"
        )
    reading.unused_columns |= set(present) - {column.name for column in columns} - set(renamed)
    return renamed


def _renamed(present: Sequence[str], columns: Sequence[Column]) -> dict[str, str]:
    """Return the columns that are asked for under a name that differs in case or blanks, where there is one candidate.

    A table that has all that is required by its very name keeps its other columns as they are.
    """
    names, found = {one.name for one in columns}, {}
    absent = [one for one in columns if one.name not in present]
    for one in absent if any(one.required for one in absent) else ():
        same = [name for name in present if name not in names and folded(name) == folded(one.name)]
        if len(same) == 1:
            found[same[0]] = one.name
    return found


def usual_name(present: Sequence[str], names: Sequence[str]) -> str:
    """Return the first of the usual `names` of a column that a table has, as it stands there or else but for case and
    blanks; the first of all where there is none."""
    alike = Counter(map(folded, present))
    exact = [name for name in names if name in present]
    return (exact or [name for name in names if alike[folded(name)] == 1] or list(names))[0]


def actual_name(present: Sequence[str], name: str) -> str:
    """Return what a table calls a column: `name`, or the one name that differs in case or blanks alone."""
    same = [one for one in present if folded(one) == folded(name)]
    return same[0] if name not in present and len(same) == 1 else name


def text_of_id(value: Any, reading: Reading) -> Any:
    """Return an id that is a whole number as text, and count it; any other as it is."""
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        return value
    reading.counts[NUMBERS] += 1
    return str(int(value))


def column_names(path: Path, key: str, separator: str | None = None) -> list[str]:
    """The columns of a table, of JSON those of its first record; none where it holds nothing.

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
    if ending_of(path) in HEADED:
        refuse_empty(path, key)
        return next(read_rows(path, key, separator, (), Reading())).fields
    return list(next((line.values for line in read_table(path, (), key, Reading())), {}))


def checked(lines: Iterable[Line], columns: Sequence[Column], source: str, reading: Reading) -> Iterator[Line]:
    """`lines`, their columns checked wherever they differ from those of the line before.

    Raises:
        InputError: see `check_columns`.
    """
    before: tuple[str, ...] | None = None
    renamed: Mapping[str, str] = {}
    for line in lines:
        present = tuple(line.values)
        if present != before:
            renamed = check_columns(present, columns, f"{source}, {line.where}", reading)
            before = present
        if renamed:
            line = line._replace(values={renamed.get(name, name): value for name, value in line.values.items()})
        yield line


def json_objects(path: Path, key: str, reading: Reading) -> Iterator[Line]:
    """The objects of a file with one a line.

    Raises:
        InputError: a line that is no JSON object, or text that is not UTF-8, with its number.
    """
    required = "a list of objects, or one object a line," if ending_of(path) == ".json" else "one object a line"
    for number, line in enumerate(text_lines(path, key), 1):
        if not line.strip():
            reading.counts[BLANK_LINES] += 1
            continue
        try:
            values = parse_json(line, object_pairs_hook=each_key_once)
        except ValueError as error:
            raise InputError(f"{path}, line {number} is not JSON ({error}): {required} is required") from None
        if not isinstance(values, dict):
            raise InputError(
                f"{path}, line {number} is no JSON object but {type(values).__name__}: {required} is required"
            )
        yield Line(f"line {number}", values)


def _read_json(path: Path, columns: Sequence[Column], key: str, reading: Reading) -> Iterator[Line]:
    if ending_of(path) == ".jsonl" or not begins_array(path, key):
        return checked(json_objects(path, key, reading), columns, str(path), reading)
    lines = (Line(f"record {number}", values) for number, values in enumerate(read_array(path, key)))
    return checked(limited_steps(lines, f"{path} ({key})"), columns, str(path), reading)


def _read_delimited(
    path: Path, columns: Sequence[Column], key: str, reading: Reading, separator: str | None
) -> Iterator[Line]:
    rows = read_rows(path, key, separator, {column.name for column in columns}, reading)
    header = next(rows).fields
    renamed = check_columns(header, columns, str(path), reading)
    names = [renamed.get(name, name) for name in header]
    for first, last, fields in rows:
        if not fields:
            reading.counts[BLANK_LINES] += 1
            continue
        if len(fields) != len(header):
            begun = f" (the row begins in line {first}: is a quote not closed there?)" if first < last else ""
            raise InputError(
                f"{path}, line {last} has {len(fields)} fields, the header has {len(header)}{begun}: "
                "every row needs the header's columns (in .csv, quote fields that hold commas)"
            )
        yield Line(f"line {last}", dict(zip(names, fields, strict=True)))


def _read_parquet(
    path: Path, columns: Sequence[Column], key: str, reading: Reading, classes: str | None
) -> Iterator[Line]:
    number = 0
    for rows in limited_steps(_parquet_rows(path, columns, key, reading, classes), f"{path} ({key})"):
        for values in rows:
            yield Line(f"row {number}", values)
            number += 1


def _parquet_rows(
    path: Path, columns: Sequence[Column], key: str, reading: Reading, classes: str | None
) -> Iterator[list[dict[str, Any]]]:
    """Some rows at a time."""
    import pyarrow as pa

    row = 0
    try:
        with open_parquet(path) as file:
            present = file.schema_arrow.names
            renamed = check_columns(present, columns, str(path), reading)
            asked = {column.name for column in columns}
            wanted = [name for name in present if renamed.get(name, name) in asked]
            names = [stated_classes(file.schema_arrow, name) for name in wanted if renamed.get(name, name) == classes]
            for batch in file.iter_batches(_records_at_once(file.metadata, path), columns=wanted, use_threads=False):
                _require_text(batch, path, row)
                rows = batch.rename_columns([renamed.get(name, name) for name in wanted]).to_pylist()
                if classes and any(names):
                    rows = [{**one, classes: with_names(one[classes], names[0])} for one in rows]
                yield rows
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


HEADED = (".csv", ".tsv", ".parquet")
"""Tables whose columns have names where there is no row."""
ENDINGS = (".jsonl", ".csv", ".parquet")
"""Of the tables that all inputs may be; what a .tsv or .json file is says each of them by itself."""
