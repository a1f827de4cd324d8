"""Records of the user's own tables: .jsonl, .json, .csv, .parquet, or rows of a Hub data set. Memory stays flat.

A table is asked for the parts of a record, each in a column, and gives them by the names of the parts. A column whose
name differs in case or blanks alone is taken and remarked on; one that is required and absent is refused with the
columns that are there, one that nobody asks for is noted. Text must be UTF-8 (a byte order mark is accepted).
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.files import each_key_once, parse_json
from ipu_model.units import shorten
from tasks.params.downstream import OwnDataParams
from tasks.plan.named_files import require_readable
from tasks.records.hub_inputs import open_dataset, stated_classes, with_names
from tasks.records.parquet import folded, open_parquet
from tasks.records.readers import begins_array, read_array, read_rows
from tasks.records.text_files import MAX_LINE_BYTES, NUMBERS, Reading, ending_of, refuse_empty, text_lines
from tasks.stage.errors import InputError
from tasks.stage.memory import limited_steps

BATCH_RECORDS = 1024
BATCH_BYTES = 16 << 20
"""Bytes of a Parquet file that are decoded at a time, about; a batch has fewer records where they are long."""
MAX_COLUMNS = 10_000
SHOWN_COLUMNS, SHOWN_CHARACTERS, SHOWN_FILES = 20, 80, 5
BLANK_LINES = "blank lines passed over"
NO_ROWS = "has a header and no rows"
HUB_SPLITS = {"train": "train", "dev": "validation"}
"""What data sets of the Hub call the splits."""


class Column(NamedTuple):
    """A column that is asked for."""

    name: str
    key: str
    """Key of params.yaml that names it."""
    required: bool


Columns = Mapping[str, Column]
"""Part of a record -> the column that holds it."""
Choose = Callable[[Sequence[str]], Columns]
"""Chooses the columns to ask for, of those that a table, or the first of its records, has."""
Numbered = tuple[str, dict[str, Any]]
"""Where a record stands, for messages, and its values by column."""


class Line(NamedTuple):
    """One record of a table."""

    where: str
    """Its place, for messages."""
    values: dict[str, Any]
    """By part; what has no column is left out."""
    columns: Columns = {}


def read_table(
    path: Path,
    columns: Columns | Choose,
    key: str,
    reading: Reading,
    separator: str | None = None,
    *,
    class_names: bool = True,
) -> Iterator[Line]:
    """Yield the records of a .jsonl, .json, .csv, .tsv or .parquet file, in order.

    Args:
        path: the file.
        columns: what is asked for; of Parquet files nothing else is read.
        key: the params key that named the file, for messages.
        reading: gets the blank lines, the columns that nobody asked for, that there are no rows, and remarks.
        separator: of the fields of .csv and .tsv files; None: it is found (see readers.py).
        class_names: give the names of classes for their numbers, where a Parquet file states these.

    Raises:
        InputError: not what its ending says, another encoding, damaged, or without a required column; the message
            names the file and the place.
    """
    refuse_empty(path, key)
    ending = ending_of(path)
    if ending in (".csv", ".tsv"):
        lines = _read_delimited(path, columns, key, reading, separator)
    elif ending == ".parquet":
        lines = _read_parquet(path, columns, key, reading, class_names)
    else:
        lines = ask_for(_read_json(path, key, reading), columns, str(path), reading)
    rows = False
    for line in lines:
        rows = True
        yield line
    if not rows and ending in HEADED:
        reading.remark(f"{path.name} {NO_ROWS}")


def hub_source(params: OwnDataParams, split: str) -> str:
    """Return what messages call a split of a Hub data set."""
    return f"data set {params.dataset}, split {HUB_SPLITS[split]}"


def hub_lines(
    params: OwnDataParams, section: str, split: str, columns: Columns | Choose, reading: Reading
) -> Iterator[Line]:
    """Yield the records of a split of a Hub data set, classes by their names.

    Args:
        section: of params.yaml, for messages.
        columns: what is asked for.

    Raises:
        InputError: as `open_dataset`.
    """
    name, config, revision = params.dataset, params.dataset_config, params.dataset_revision
    rows = open_dataset(section, name, config, HUB_SPLITS[split], revision, class_names=True)
    return ask_for(numbered("row", rows), columns, hub_source(params, split), reading)


def numbered(what: str, records: Iterable[dict[str, Any]]) -> Iterator[Numbered]:
    """Yield each record after its place, which is its number from 0."""
    return ((f"{what} {number}", values) for number, values in enumerate(records))


def require_file(path: Path, key: str, endings: Sequence[str], what: str) -> str:
    """Return the ending of a file of records, and refuse whatever is not one file with one of `endings`.

    Args:
        path: the file.
        key: what messages call it: the params key that named it.
        what: the file holds.

    Raises:
        InputError: no such file, a folder, or another ending.
    """
    require_readable(path, key)
    needed = f"{key} needs one file of {what} that ends in {', '.join(endings)}"
    if path.is_dir():
        inside = sorted(file.name for file in path.iterdir() if ending_of(file) in endings)[:SHOWN_FILES]
        raise InputError(f"{path} is a folder with {', '.join(inside) or 'no such file'}: {needed}")
    if (ending := ending_of(path)) not in endings:
        raise InputError(f"{path} ends in {ending or 'nothing'!r}: {needed}")
    return ending


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


def check_columns(present: Sequence[str], columns: Columns, source: str, reading: Reading) -> dict[str, str]:
    """Note the columns of `present` that nobody asks for.

    Returns:
        Part -> the name of its column, for those that are there.

    Raises:
        InputError: one stands twice, or required ones are absent (the nearest names are given).
    """
    if len(present) > MAX_COLUMNS:
        raise InputError(f"{source} has {len(present):,} columns; up to {MAX_COLUMNS:,} are read: leave some out")
    twice = sorted(name for name, count in Counter(present).items() if count > 1)
    if twice:
        raise InputError(f"{source} has the column {twice[0]!r} more than once: rename one of them")
    alike = _alike(present, columns)
    for asked, name in alike.items():
        reading.remark(f"{source.rpartition('/')[2]}: column {name!r} is read as {asked!r}")
    there = {name: name for name in present} | alike
    if missing := [column for column in columns.values() if column.required and column.name not in there]:
        near = {one.name: difflib.get_close_matches(one.name, present, 1) for one in missing}
        found = shorten([one[:SHOWN_CHARACTERS] for one in present], SHOWN_COLUMNS) or "no columns"
        meant = [f"{one[0]} for {name}" if len(missing) > 1 else one[0] for name, one in near.items() if one]
        raise InputError(
            f"{source} has no column {' and none '.join(repr(name) for name in near)}: found {found}"
            + (f"; did you mean {', '.join(meant)}?" if meant else "")
            + f"; set {', '.join(dict.fromkeys(one.key for one in missing))}"
        )
    names = {part: there[column.name] for part, column in columns.items() if column.name in there}
    reading.unused_columns |= set(present).difference(names.values())
    return names


def _alike(present: Sequence[str], columns: Columns) -> dict[str, str]:
    """Return the columns that are asked for -> their names that differ in case or blanks, where there is one candidate.

    A table that has all that is required by its very name keeps its other columns as they are.
    """
    names, found = {one.name for one in columns.values()}, {}
    absent = [one for one in columns.values() if one.name not in present]
    for one in absent if any(one.required for one in absent) else ():
        same = [name for name in present if name not in names and folded(name) == folded(one.name)]
        if len(same) == 1:
            found[one.name] = same[0]
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


def ask_for(records: Iterable[Numbered], columns: Columns | Choose, source: str, reading: Reading) -> Iterator[Line]:
    """Yield the parts of records, whose columns are checked wherever they differ from those of the record before.

    Raises:
        InputError: see `check_columns`.
    """
    before: tuple[str, ...] | None = None
    names: Mapping[str, str] = {}
    for where, values in records:
        present = tuple(values)
        if present != before:
            columns = columns(present) if callable(columns) else columns
            names = check_columns(present, columns, f"{source}, {where}", reading)
            before = present
        assert not callable(columns)
        yield Line(where, {part: values[name] for part, name in names.items()}, columns)


def json_objects(path: Path, key: str, reading: Reading) -> Iterator[Numbered]:
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
        yield f"line {number}", values


def _read_json(path: Path, key: str, reading: Reading) -> Iterator[Numbered]:
    if ending_of(path) == ".jsonl" or not begins_array(path, key):
        return json_objects(path, key, reading)
    return limited_steps(numbered("record", read_array(path, key)), f"{path} ({key})")


def _read_delimited(
    path: Path, columns: Columns | Choose, key: str, reading: Reading, separator: str | None
) -> Iterator[Line]:
    names = () if callable(columns) else {column.name for column in columns.values()}
    rows = read_rows(path, key, separator, names, reading)
    header = next(rows).fields
    columns = columns(header) if callable(columns) else columns
    places = {part: header.index(name) for part, name in check_columns(header, columns, str(path), reading).items()}
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
        yield Line(f"line {last}", {part: fields[place] for part, place in places.items()}, columns)


def _read_parquet(
    path: Path, columns: Columns | Choose, key: str, reading: Reading, class_names: bool
) -> Iterator[Line]:
    rows = limited_steps(_parquet_rows(path, columns, key, reading, class_names), f"{path} ({key})")
    number = 0
    for some, asked in rows:
        for values in some:
            yield Line(f"row {number}", values, asked)
            number += 1


def _parquet_rows(
    path: Path, columns: Columns | Choose, key: str, reading: Reading, class_names: bool
) -> Iterator[tuple[list[dict[str, Any]], Columns]]:
    """Some rows at a time."""
    import pyarrow as pa

    row = 0
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            columns = columns(schema.names) if callable(columns) else columns
            names = check_columns(schema.names, columns, str(path), reading)
            classes = {part: stated_classes(schema, name) for part, name in names.items() if class_names}
            wanted = list(dict.fromkeys(names.values()))
            for batch in file.iter_batches(_records_at_once(file.metadata, path), columns=wanted, use_threads=False):
                _require_text(batch, path, row)
                parts = [batch.column(name) for name in names.values()]
                rows = pa.RecordBatch.from_arrays(parts, names=list(names)).to_pylist()
                if any(classes.values()):
                    rows = [{part: with_names(value, classes[part]) for part, value in one.items()} for one in rows]
                yield rows, columns
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
