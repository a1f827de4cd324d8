"""Records of the user's tables: .jsonl, .json, .csv, .parquet, or rows of a Hub data set. Memory stays flat.

The caller names the column of each part of a record; records hold their values by part. A column whose name differs
only in case or white space is used, with a remark. If a required column is missing, the error lists the columns of the
table. Unused columns are reported. Text must be UTF-8 (a byte order mark is accepted).
"""

import codecs
import csv
import difflib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.files import parse_json, reject_duplicate_keys
from ipu_model.units import shorten
from tasks.params.downstream import OwnDataParams
from tasks.plan.named_files import require_readable
from tasks.records.hub_inputs import name_classes, open_dataset, read_class_names
from tasks.records.parquet import fold_name, open_parquet
from tasks.records.text_files import (
    BLOCK_BYTES,
    MAX_LINE_BYTES,
    NUMERIC_IDS,
    ReadLog,
    file_suffix,
    open_unpacked,
    peek,
    read_lines,
    refuse_empty,
)
from tasks.stage.errors import InputError
from tasks.stage.memory import iterate_limited

_BEGIN, _NEXT = re.compile(r"\s*\[\s*"), re.compile(r"\s*,\s*")
"""Text before the first record, and before the others."""
_EMPTY, _END = re.compile(r"\s*\[\s*\]\s*"), re.compile(r"\s*\]\s*")
_PARSER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys)
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""Possible separators of a .csv file and their names, most preferred first."""
SNIFFED_LINES, SNIFFED_CHARACTERS = 20, 1 << 20
"""Lines used to detect the separator, and the number of characters after which no further line is used."""
QUOTED = 40
"""Characters of a quoted field shown in messages."""
BATCH_RECORDS = 1024
BATCH_BYTES = 16 << 20
"""Approximate bytes of a Parquet file decoded at a time; a batch has fewer records if they are long."""
MAX_COLUMNS = 10_000
SHOWN_COLUMNS, SHOWN_CHARACTERS, SHOWN_FILES = 20, 80, 5
BLANK_LINES = "blank lines skipped"
NO_ROWS = "has a header and no rows"
HUB_SPLITS = {"train": "train", "dev": "validation"}
"""Podium's split -> name of the split in Hub data sets."""
TABLES_WITH_HEADER = (".csv", ".tsv", ".parquet")
"""Tables that name their columns even without rows."""
ENDINGS = (".jsonl", ".csv", ".parquet")
"""Suffixes of tables that every input accepts; some inputs also accept .tsv or .json."""


def is_json_array(path: Path, key: str) -> bool:
    """Tell whether a file contains a JSON list, by its first character that is not white space.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return peek(path, BLOCK_BYTES).startswith(b"[")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}) ({key})") from None


def read_array(path: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list, in order.

    Raises:
        InputError: not UTF-8, not JSON, something other than objects, or an object that is too long; the message has
            the record and the line in which it begins.
    """
    text, number, line = "", 0, 1
    for block, is_last in _read_blocks(path, key):
        text, at = text + block, 0
        while True:
            joint = (_NEXT if number else _BEGIN).match(text, at)
            start = joint.end() if joint else at
            where = f"{path}, record {number} (line {line + text.count(chr(10), at, start)})"
            try:
                if joint is None:
                    raise json.JSONDecodeError("expecting ',' or ']'", text, at)
                values, end = _PARSER.raw_decode(text, start)
            except json.JSONDecodeError as error:
                if not is_last and len(text) - at <= MAX_LINE_BYTES:
                    break  # the record may continue in the next block
                if (_END if number else _EMPTY).fullmatch(text, at):
                    return
                raise InputError(f"{where} is not JSON ({error.msg}); a list of objects is required ({key})") from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} cannot be read ({error}) ({key})") from None
            if not isinstance(values, dict):
                raise InputError(f"{where} is {type(values).__name__}; a list of objects is required ({key})")
            yield values
            line += text.count("\n", at, end)
            number, at = number + 1, end
        text = text[at:]


def _read_blocks(path: Path, key: str) -> Iterator[tuple[str, bool]]:
    """Yield the text of a file in blocks, each with whether it is the last one, which is empty."""
    decoder, offset = codecs.getincrementaldecoder("utf-8-sig")(), 0
    try:
        with open_unpacked(path) as stream:
            while block := stream.read(BLOCK_BYTES):
                yield decoder.decode(block), False
                offset += len(block)
        yield decoder.decode(b"", final=True), True
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8: found byte 0x{error.object[error.start]:02x} near offset {offset + error.start}. "
            f"Convert the file, e.g. iconv -f LATIN1 -t UTF-8 ({key})"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read at offset {offset} ({error.strerror or error}) ({key})") from None


class CsvRow(NamedTuple):
    """Fields of a row and its lines."""

    first: int
    """First line, counted from 1."""
    last: int
    fields: list[str]


def read_rows(
    path: Path, key: str, separator: str | None, names: Collection[str], reading: ReadLog
) -> Iterator[CsvRow]:
    """Yield the rows of a file, the header first. Quotes have no special meaning in .tsv files.

    Args:
        path: the file.
        key: params key that named it, for messages.
        separator: field separator; None: a tab in .tsv, else detected from the first lines.
        names: names of the columns to read.
        reading: gets a remark if the separator of a .csv file is not a comma.

    Raises:
        InputError: text that is not UTF-8, a row that is too long, or unmatched quotes.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    is_tsv, lines = file_suffix(path) == ".tsv", read_lines(path, key)
    if separator is None and not is_tsv:
        head = _read_head(lines)
        separator, lines = _find_separator(head, names), itertools.chain(head, lines)
        if separator != ",":
            reading.remark(f"{path.name}: fields are separated by {SEPARATORS[separator]}")
    separator = separator or "\t"
    held: list[str] = []
    """Lines of the row being read."""
    rows = csv.reader(
        _collect_lines(lines, held, path, key, separator),
        delimiter=separator,
        quoting=csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL,
        strict=not is_tsv,
    )
    try:
        for fields in rows:
            yield CsvRow(rows.line_num - len(held) + 1, rows.line_num, fields)
            held.clear()
    except csv.Error as error:
        opened = _find_quote(held, separator)
        last, first = rows.line_num, rows.line_num - len(held) + 1
        if opened is not None and (first + opened[0] < last or "unexpected end" in str(error)):
            where, text = opened
            raise InputError(
                f"{path}, line {first + where}: the quote before {text!r} is not closed where its field ends "
                f"(line {last}: {error}). Close it, and double quotes inside a quoted field ({key})"
            ) from None
        raise InputError(f"{path}, line {last} is not valid CSV: {error}") from None


def _collect_lines(lines: Iterable[str], held: list[str], path: Path, key: str, separator: str) -> Iterator[str]:
    """Yield `lines` and append each to `held`, which the caller clears once a row is complete."""
    length = 0
    for number, line in enumerate(lines, 1):
        length = len(line) + (length if held else 0)
        held.append(line)
        if length > MAX_LINE_BYTES:
            where, _ = _find_quote(held, separator) or (0, "")
            raise InputError(
                f"{path}, line {number - len(held) + 1 + where}: a quote opens here, and the row is longer than "
                f"{MAX_LINE_BYTES >> 20} MB. Close the quote ({key})"
            )
        yield line


def _find_quote(lines: Sequence[str], separator: str) -> tuple[int, str] | None:
    """Return the line of the first quoted field that does not end properly, and how the field begins."""
    text, start, separator = "".join(lines), 0, re.escape(separator)
    sound = re.compile(rf'(?:"[^"]*(?:""[^"]*)*"|[^"{separator}\n][^{separator}\n]*)?(?:[{separator}\r\n]|\Z)')
    while start < len(text) and (field := sound.match(text, start)):
        start = field.end()
    if start == len(text):
        return None
    return text.count("\n", 0, start), text[start + 1 : start + 1 + QUOTED].partition("\n")[0]


def _read_head(lines: Iterator[str]) -> list[str]:
    head, length = [], 0
    for line in itertools.islice(lines, SNIFFED_LINES):
        head.append(line)
        length += len(line)
        if length > SNIFFED_CHARACTERS:
            break
    return head


def _find_separator(head: Sequence[str], names: Collection[str]) -> str:
    """Return the first separator that gives header and rows equally many fields, else that with the widest header."""
    widths = dict.fromkeys(SEPARATORS, 0)
    for separator in SEPARATORS:
        try:
            header, *rows = csv.reader(head, delimiter=separator)
        except (csv.Error, ValueError):  # ValueError: there is no header
            continue
        widths[separator] = len(header)
        whole = rows[: SNIFFED_LINES - 2]  # the last row may continue on the next line
        if header[:1] and header[0] in names:
            return separator
        if len(header) > 1 and all(len(row) in (0, len(header)) for row in whole):
            return separator
    return max(SEPARATORS, key=widths.__getitem__)


class ColumnSpec(NamedTuple):
    """A column to read."""

    name: str
    key: str
    """Key of params.yaml that sets its name."""
    required: bool


Columns = Mapping[str, ColumnSpec]
"""Part of a record -> its column."""
Selector = Callable[[Sequence[str]], Columns]
"""Chooses the columns to read from the column names of a table or of its first record."""
Located = tuple[str, dict[str, Any]]
"""Position of a record, for messages, and its values by column."""


class TableRow(NamedTuple):
    """One record of a table."""

    where: str
    """Position in the table, for messages."""
    values: dict[str, Any]
    """Values by part; parts without a column are absent."""
    columns: Columns = {}


def read_table(
    path: Path,
    columns: Columns | Selector,
    key: str,
    reading: ReadLog,
    separator: str | None = None,
    *,
    class_names: bool = True,
) -> Iterator[TableRow]:
    """Yield the records of a .jsonl, .json, .csv, .tsv or .parquet file, in order.

    Args:
        path: the file.
        columns: columns to read; other columns of a Parquet file are not decoded.
        key: params key that named the file, for messages.
        reading: counts blank lines and unused columns, and gets remarks, such as that a table has no rows.
        separator: field separator of .csv and .tsv files; None: detected (see readers.py).
        class_names: replace class numbers by the names that a Parquet file declares.

    Raises:
        InputError: another format than the suffix states, another encoding, damaged, or without a required column;
            the message names the file and the position.
    """
    refuse_empty(path, key)
    ending = file_suffix(path)
    if ending in (".csv", ".tsv"):
        lines = _read_delimited(path, columns, key, reading, separator)
    elif ending == ".parquet":
        lines = _read_parquet(path, columns, key, reading, class_names)
    else:
        lines = select_columns(_read_json(path, key, reading), columns, str(path), reading)
    rows = False
    for line in lines:
        rows = True
        yield line
    if not rows and ending in TABLES_WITH_HEADER:
        reading.remark(f"{path.name} {NO_ROWS}")


def hub_split_name(params: OwnDataParams, split: str) -> str:
    """Return the name of a Hub data set's split for messages."""
    return f"data set {params.dataset}, split {HUB_SPLITS[split]}"


def read_hub_rows(
    params: OwnDataParams, section: str, split: str, columns: Columns | Selector, reading: ReadLog
) -> Iterator[TableRow]:
    """Yield the records of a Hub data set's split, with class names instead of class numbers.

    Args:
        section: section of params.yaml, for messages.
        columns: columns to read.

    Raises:
        InputError: see `open_dataset`.
    """
    name, config, revision = params.dataset, params.dataset_config, params.dataset_revision
    rows = open_dataset(section, name, config, HUB_SPLITS[split], revision, class_names=True)
    return select_columns(number_records("row", rows), columns, hub_split_name(params, split), reading)


def number_records(what: str, records: Iterable[dict[str, Any]]) -> Iterator[Located]:
    """Yield each record with its position, such as "row 0"."""
    return ((f"{what} {number}", values) for number, values in enumerate(records))


def require_file(path: Path, key: str, endings: Sequence[str], what: str) -> str:
    """Return the suffix of a file of records, which must be one of `endings`.

    Args:
        path: the file.
        key: params key that named it, for messages.
        what: the kind of records, for messages.

    Raises:
        InputError: no such file, a folder, or another suffix.
    """
    require_readable(path, key)
    needed = f"{key} needs one file of {what} ({', '.join(endings)})"
    if path.is_dir():
        inside = sorted(file.name for file in path.iterdir() if file_suffix(file) in endings)[:SHOWN_FILES]
        raise InputError(f"{path} is a folder (with {', '.join(inside) or 'no such file'}): {needed}")
    if (ending := file_suffix(path)) not in endings:
        raise InputError(f"{path} has {f'the suffix {ending}' if ending else 'no suffix'}: {needed}")
    return ending


def list_empty(reading: ReadLog) -> str:
    """Return which tables have no rows, for the message about an empty source; empty if none is known."""
    found = [text for text in reading.remarks if text.endswith(NO_ROWS)]
    return f" ({', '.join(found)})" if found else ""


def column_setting(section: str) -> str:
    """Return the setting that names the column of a part of an example, with {0} for the part.

    Args:
        section: key of the section `data` of an entry of `downstream`.
    """
    return f"{section}.columns.{{0}} (podium finetune: --column {{0}}=NAME)"


def check_columns(present: Sequence[str], columns: Columns, source: str, reading: ReadLog) -> dict[str, str]:
    """Match the columns of a table with `columns`, and report the unused ones to `reading`.

    Returns:
        Part -> name of its column, for the columns that exist.

    Raises:
        InputError: a column name is repeated, or required columns are missing (the message suggests similar names).
    """
    if len(present) > MAX_COLUMNS:
        raise InputError(f"{source} has {len(present):,} columns; at most {MAX_COLUMNS:,} are allowed. Remove some")
    repeated = sorted(name for name, count in Counter(present).items() if count > 1)
    if repeated:
        raise InputError(f"{source} has the column {repeated[0]!r} more than once. Rename one of them")
    alike = _match_similar_names(present, columns)
    for expected, name in alike.items():
        reading.remark(f"{source.rpartition('/')[2]}: column {name!r} is read as {expected!r}")
    available = {name: name for name in present} | alike
    if missing := [column for column in columns.values() if column.required and column.name not in available]:
        near = {one.name: difflib.get_close_matches(one.name, present, 1) for one in missing}
        found = shorten([one[:SHOWN_CHARACTERS] for one in present], SHOWN_COLUMNS)
        similar = [f"{one[0]} for {name}" if len(missing) > 1 else one[0] for name, one in near.items() if one]
        raise InputError(
            f"{source} has no column {' and no column '.join(repr(name) for name in near)}; "
            + (f"its columns are {found}" if found else "it has no columns")
            + (f"; did you mean {', '.join(similar)}? " if similar else ". ")
            + f"Set {', '.join(dict.fromkeys(one.key for one in missing))}"
        )
    names = {part: available[column.name] for part, column in columns.items() if column.name in available}
    reading.unused_columns |= set(present).difference(names.values())
    return names


def _match_similar_names(present: Sequence[str], columns: Columns) -> dict[str, str]:
    """Return missing column -> the only one that differs just in case or white space, if a required one is missing."""
    names, found = {one.name for one in columns.values()}, {}
    absent = [one for one in columns.values() if one.name not in present]
    for one in absent if any(one.required for one in absent) else ():
        same = [name for name in present if name not in names and fold_name(name) == fold_name(one.name)]
        if len(same) == 1:
            found[one.name] = same[0]
    return found


def pick_usual_name(present: Sequence[str], names: Sequence[str]) -> str:
    """Return the first of `names` that a table has, exactly or else but for case and white space; names[0] if none."""
    alike = Counter(map(fold_name, present))
    exact = [name for name in names if name in present]
    return (exact or [name for name in names if alike[fold_name(name)] == 1] or list(names))[0]


def match_name(present: Sequence[str], name: str) -> str:
    """Return the name of a column in a table: `name`, or the only one that differs just in case or white space."""
    same = [one for one in present if fold_name(one) == fold_name(name)]
    return same[0] if name not in present and len(same) == 1 else name


def convert_id(value: Any, reading: ReadLog) -> Any:
    """Convert an id that is a whole number to text and count it; return any other value unchanged."""
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        return value
    reading.counts[NUMERIC_IDS] += 1
    return str(int(value))


def select_columns(
    records: Iterable[Located], columns: Columns | Selector, source: str, reading: ReadLog
) -> Iterator[TableRow]:
    """Yield records by part. Columns are checked again whenever they differ from those of the previous record.

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
        yield TableRow(where, {part: values[name] for part, name in names.items()}, columns)


def read_json_lines(path: Path, key: str, reading: ReadLog) -> Iterator[Located]:
    """Yield the objects of a file with one JSON object per line.

    Raises:
        InputError: a line that is not a JSON object, or not UTF-8; the message has its number.
    """
    required = "a list of objects, or one object per line," if file_suffix(path) == ".json" else "one object per line"
    for number, line in enumerate(read_lines(path, key), 1):
        if not line.strip():
            reading.counts[BLANK_LINES] += 1
            continue
        try:
            values = parse_json(line, object_pairs_hook=reject_duplicate_keys)
        except ValueError as error:
            raise InputError(f"{path}, line {number} is not JSON ({error}); {required} is required") from None
        if not isinstance(values, dict):
            raise InputError(
                f"{path}, line {number} is {type(values).__name__}, not a JSON object; {required} is required"
            )
        yield f"line {number}", values


def _read_json(path: Path, key: str, reading: ReadLog) -> Iterator[Located]:
    if file_suffix(path) == ".jsonl" or not is_json_array(path, key):
        return read_json_lines(path, key, reading)
    return iterate_limited(number_records("record", read_array(path, key)), f"{path} ({key})")


def _read_delimited(
    path: Path, columns: Columns | Selector, key: str, reading: ReadLog, separator: str | None
) -> Iterator[TableRow]:
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
                f"{path}, line {last} has {len(fields)} fields, but the header has {len(header)}{begun}. "
                "Give every row the columns of the header (in .csv, quote fields that contain the separator)"
            )
        yield TableRow(f"line {last}", {part: fields[place] for part, place in places.items()}, columns)


def _read_parquet(
    path: Path, columns: Columns | Selector, key: str, reading: ReadLog, class_names: bool
) -> Iterator[TableRow]:
    rows = iterate_limited(_parquet_rows(path, columns, key, reading, class_names), f"{path} ({key})")
    number = 0
    for some, asked in rows:
        for values in some:
            yield TableRow(f"row {number}", values, asked)
            number += 1


def _parquet_rows(
    path: Path, columns: Columns | Selector, key: str, reading: ReadLog, class_names: bool
) -> Iterator[tuple[list[dict[str, Any]], Columns]]:
    """Yield batches of rows."""
    import pyarrow as pa

    row = 0
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            columns = columns(schema.names) if callable(columns) else columns
            names = check_columns(schema.names, columns, str(path), reading)
            classes = {part: read_class_names(schema, name) for part, name in names.items() if class_names}
            wanted = list(dict.fromkeys(names.values()))
            for batch in file.iter_batches(_records_at_once(file.metadata, path), columns=wanted, use_threads=False):
                _require_text(batch, path, row)
                parts = [batch.column(name) for name in names.values()]
                rows = pa.RecordBatch.from_arrays(parts, names=list(names)).to_pylist()
                if any(classes.values()):
                    rows = [{part: name_classes(value, classes[part]) for part, value in one.items()} for one in rows]
                yield rows, columns
                row += batch.num_rows
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path} cannot be read as Parquet from row {row} on ({error}). "
            f"It may be cut off: copy or create it again ({key})"
        ) from None


def _records_at_once(metadata: Any, path: Path) -> int:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    if widest > MAX_LINE_BYTES:
        raise InputError(
            f"{path} has rows of {int(widest):,} bytes; at most {MAX_LINE_BYTES:,} are allowed. Split long values into "
            "several rows"
        )
    return int(min(BATCH_RECORDS, max(1, BATCH_BYTES // max(1, widest))))


def _require_text(batch: Any, path: Path, first: int) -> None:
    """Refuse strings that are not UTF-8: Parquet files may contain any bytes."""
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as problem:
        for number in range(batch.num_rows):
            try:
                batch.slice(number, 1).validate(full=True)
            except pa.ArrowInvalid as error:
                raise InputError(
                    f"{path}, row {first + number} is damaged or not UTF-8 ({error}): create the file again"
                ) from None
        rows = f"rows {first} to {first + batch.num_rows - 1}"
        raise InputError(f"{path}, {rows} are damaged ({problem}): create the file again") from None
