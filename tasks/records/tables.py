"""Records of users' files and of Hub data sets, the one reader of both. Memory stays flat.

A kind states the columns of its records with their usual names; a record has its values by part. Tables are .jsonl,
.json, .csv, .tsv and .parquet files, and splits of Hub data sets; a kind may add parsers of formats of its own, by
suffix. A column whose name differs only in case or white space is used, with a remark. If a required column is missing,
the error lists the columns of the table. Unused columns are reported. Text must be UTF-8 (a byte order mark is
accepted).
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ipu_model.core.units import shorten
from tasks.records.csv_files import QUOTED, Quoting, detect_quoting, read_rows
from tasks.records.hub_inputs import name_classes, open_dataset, read_class_names
from tasks.records.interpretation import BLANK_LINES, BY_MODEL, BY_NAME, BY_USER, NUMERIC_IDS, Interpretation
from tasks.records.json_files import Located, read_objects
from tasks.records.label_forms import parse_number
from tasks.records.parquet import open_parquet
from tasks.records.text_files import (
    MAX_LINE_BYTES,
    WHOLE,
    FileRange,
    ProblemList,
    file_suffix,
    find_control,
    find_text_problem,
    refuse_empty,
)
from tasks.stage.errors import InputError
from tasks.stage.memory import iterate_limited

if TYPE_CHECKING:
    from tasks.params.downstream import DataParams, OwnDataParams

BATCH_RECORDS = 1024
BATCH_BYTES = 16 << 20
"""Approximate bytes of a Parquet file decoded at a time; a batch has fewer records if they are long."""
MAX_COLUMNS = 10_000
SHOWN_COLUMNS, SHOWN_CHARACTERS, SHOWN_FILES = 20, 80, 5
NO_ROWS = "has a header and no rows"
UNNAMED = "(no name)"
EXPORTS = {
    "annotations": "JSON of Label Studio is nested: export CSV instead, or CoNLL2003 for named entities",
    "messages": "A chat is not one text: write what the model is to read into a field of its own",
    "spans": "Spans of characters are not read: export CoNLL, or convert them (spaCy: offsets_to_biluo_tags)",
    "accept": "Prodigy's choices: write the accepted one into a field of its own",
}
"""Field of an export that has no columns of ours -> what to do."""
FEWEST_WORDS = 4
"""Words of a cell that is not the name of a column."""
JSON_FORMATS = ("JSON, UTF-8", "JSON lines, UTF-8")
HUB_SPLITS = {"train": "train", "dev": "validation"}
"""Podium's split -> name of the split in Hub data sets."""
TABLES_WITH_HEADER = (".csv", ".tsv", ".parquet")
"""Tables that name their columns even without rows."""
DELIMITED = (".csv", ".tsv")
SPLIT = "split"
"""Part of a record that names its split, see SPLIT_COLUMN."""
TRAIN_NAMES = frozenset(("train", "training"))
OTHER_NAMES = frozenset(
    ("dev", "development", "val", "valid", "validation", "eval", "evaluation", "test", "testing", "heldout", "held-out")
)
KEPT = "label (kept)"
"""Start of the parts of a record that are labels in a file to predict."""
ENDINGS = (".jsonl", ".csv", ".parquet")
"""Suffixes of tables that every input accepts; some inputs also accept .tsv or .json."""


class ColumnSpec(NamedTuple):
    """A column to read."""

    names: tuple[str, ...]
    """Accepted names, preferred first; messages show the first."""
    key: str
    """Key of params.yaml that sets its name."""
    required: bool = True
    is_named: bool = False


SPLIT_COLUMN = ColumnSpec(("split", "set", "fold", "subset", "partition"), "", False)
"""Column that says which records are for training; layouts of labelled records have it as the part SPLIT."""
HubSplit = tuple[str | None, str | None, str, str | None]
"""Name, configuration, split and revision of a Hub data set."""
Columns = Mapping[str, ColumnSpec]
"""Part of a record -> its column."""


class TableRow(NamedTuple):
    """One record."""

    where: str
    """Position in its source, for messages."""
    values: dict[str, Any]
    """Values by part; parts without a column are absent."""
    names: Mapping[str, str] = {}
    """Part -> name of its column; empty if the format has no columns."""


Parser = Callable[[Path, str, Interpretation, ProblemList], Iterator[TableRow]]
"""Reader of a format that only one kind has; gets the path and the params key that named it."""


class RecordSpec(NamedTuple):
    """The records that a kind reads."""

    what: str
    """Name of the records, for messages."""
    layouts: Sequence[Columns]
    """Possible columns; the first layout is used whose required columns a table has."""
    endings: Sequence[str]
    parsers: Mapping[str, Parser] = {}
    """Suffix -> reader of a format other than tables."""
    headers: Sequence[Sequence[str]] = ()
    """Possible columns of a .tsv file without a header, told apart by their number."""
    class_names: bool = True
    """Replace class numbers by the names that a data set or a Parquet file declares."""


class TableForm(NamedTuple):
    """Form of tables, as far as the user states it."""

    separator: str | None = None
    """Field separator of .csv and .tsv files; None: detected."""
    quoting: str | None = None
    """Quotes at the ends of cells: enclosing or literal; None: enclosing in .csv, detected in .tsv."""
    control_characters: str | None = None
    """Texts with C1 control characters: refuse, keep (count them), or None (do not look for them)."""


DETECTED = TableForm()


class Records(NamedTuple):
    """Records of an opened file or split."""

    rows: Iterator[TableRow]
    problems: ProblemList
    """Problems of the records; it names their source."""
    is_text: bool = False
    """True if all values are text, as in CSV."""


def make_column(name: str | None, usual: Sequence[str], key: str, *, required: bool = True) -> ColumnSpec:
    """Return a column with usual names, or with the name that params.yaml sets, which is then required."""
    return ColumnSpec((name,) if name else tuple(usual), key, required or name is not None, name is not None)


def table_form(data: DataParams) -> TableForm:
    """Return the form of tables that the section `data` of an entry states."""
    return TableForm(data.separator, data.quoting, data.control_characters)


def open_split(data: OwnDataParams, section: str, split: str, spec: RecordSpec, reading: Interpretation) -> Records:
    """Open the records of a split: a file (see `open_file`), or a split of a Hub data set (see `open_dataset`)."""
    if data.source != "hub":
        return open_file(data.path_of(split), f"{section}.{split}_path", spec, reading, table_form(data))
    address = (data.dataset, data.dataset_config, HUB_SPLITS[split], data.dataset_revision)
    return open_hub_split(section, address, spec, reading, table_form(data))


def open_hub_split(
    section: str, address: HubSplit, spec: RecordSpec, reading: Interpretation, form: TableForm = DETECTED
) -> Records:
    """Open the records of a split of a Hub data set; for arguments and errors see `open_dataset`."""
    name, config, split, _ = address
    source = ", ".join(filter(None, (f"data set {name}", config, f"split {split}")))
    rows = open_dataset(section, *address, class_names=spec.class_names)
    reading.formats["data set in Hub layout"] += 1
    records = Records(select_columns(rows, spec.layouts, source, reading), ProblemList(source, spec.what))
    return _refuse_splits(_check_controls(records, section, reading, form))


def open_file(
    path: Path,
    key: str,
    spec: RecordSpec,
    reading: Interpretation,
    form: TableForm = DETECTED,
    part: FileRange = WHOLE,
) -> Records:
    """Open the records of one file, or of a part of a .jsonl or .parquet file.

    `reading` counts blank lines and unused columns, and gets remarks, such as that a table has no rows.

    Raises:
        InputError: no such file, a folder, or another suffix; while records are read, another format than the suffix
            states, another encoding, damaged, or without a required column, with the file and the position.
    """
    from tasks.plan.named_files import require_readable

    require_readable(path, key)
    ending, needed = file_suffix(path), f"{key} needs one file of {spec.what} ({', '.join(spec.endings)})"
    if path.is_dir():
        inside = sorted(file.name for file in path.iterdir() if file_suffix(file) in spec.endings)[:SHOWN_FILES]
        raise InputError(f"{path} is a folder (with {', '.join(inside) or 'no such file'}): {needed}")
    if ending not in spec.endings:
        raise InputError(f"{path} has {f'the suffix {ending}' if ending else 'no suffix'}: {needed}")
    problems = ProblemList(f"{path} ({key})", spec.what)
    reading.files += part.number == 0
    if ending in spec.parsers:
        refuse_empty(path, key)
        records = Records(spec.parsers[ending](path, key, reading, problems), problems)
    else:
        records = Records(_read_rows(path, key, spec, reading, form, part), problems, ending in DELIMITED)
    return _refuse_splits(_check_controls(records, key.rpartition(".")[0], reading, form))


def _check_controls(records: Records, section: str, reading: Interpretation, form: TableForm) -> Records:
    """Return records whose C1 control characters are counted, or are problems."""
    if form.control_characters is None:
        return records
    problem = (
        "a C1 control character, which WINDOWS-1252 text has after a conversion from ISO-8859-1 (convert the original "
        f"with iconv -f WINDOWS-1252 -t UTF-8, or set {section}.control_characters=keep)"
    )

    def check() -> Iterator[TableRow]:
        for row in records.rows:
            for part, value in row.values.items():
                if sign := find_control(value):
                    where = f"{row.where}, {row.names.get(part, part)}"
                    if form.control_characters == "keep":
                        reading.count("texts with C1 control characters", where)
                    else:
                        records.problems.add(problem, where, sign)
            yield row

    return records._replace(rows=check())


def _refuse_splits(records: Records) -> Records:
    """Return records of which, according to a column, all are training examples or none is."""

    def check() -> Iterator[TableRow]:
        first: dict[bool, str] = {}
        for row in records.rows:
            name = str(row.values.get(SPLIT, "")).strip().lower()
            if name in TRAIN_NAMES or name in OTHER_NAMES:
                first.setdefault(name in TRAIN_NAMES, f"{row.values[SPLIT]!r:.40} in {row.where}")
            if len(first) > 1:
                raise InputError(
                    f"{records.problems.source}: the column {row.names.get(SPLIT, SPLIT)!r} says which records are for "
                    f"training ({first[True]}) and which are not ({first[False]}), and all of them would be read. "
                    "Write those of each split to a file of its own, or remove the column to use all"
                )
            yield row

    return records._replace(rows=check())


def select_files(
    path: Path, key: str, is_usable: Callable[[Path], bool], needed: str, reading: Interpretation
) -> list[Path]:
    """Return the usable files of a folder, sorted by name, or one file; add the others to `reading.ignored`.

    Raises:
        InputError: something cannot be read, or no file is usable; the message has the params key and what it needs.
    """
    from tasks.plan.named_files import list_files

    usable = []
    for file in list_files(path, key):
        if is_usable(file):
            usable.append(file)
        else:
            reading.ignored.append(file.relative_to(path).as_posix() if path.is_dir() else file.name)
    if not usable:
        content = f"contains only {', '.join(reading.ignored[:SHOWN_FILES])}" if reading.ignored else "is empty"
        suffix = f"the suffix {path.suffix}" if path.suffix else "no suffix"
        content = f"the folder {path} {content}" if path.is_dir() else f"{path} has {suffix}"
        raise InputError(f"{content}: {key} needs {needed}")
    return usable


def _read_rows(
    path: Path, key: str, spec: RecordSpec, reading: Interpretation, form: TableForm, part: FileRange
) -> Iterator[TableRow]:
    """Yield the records of a table; for arguments and errors see `open_file`."""
    refuse_empty(path, key)
    ending = file_suffix(path)
    if ending in DELIMITED:
        lines = _read_delimited(path, key, spec, reading, form)
    elif ending == ".parquet":
        reading.formats["Parquet"] += part.number == 0
        batches = iterate_limited(_read_parquet(path, key, spec, reading, part), f"{path} ({key})")
        lines = itertools.chain.from_iterable(batches)
    else:
        reading.formats[JSON_FORMATS[ending == ".jsonl"]] += part.number == 0
        lines = select_columns(read_objects(path, key, reading, part), spec.layouts, str(path), reading)
    rows = False
    for line in lines:
        rows = True
        yield line
    if not rows and part.stop is None and ending in TABLES_WITH_HEADER:
        reading.remark(f"{path.name} {NO_ROWS}")


def list_empty(reading: Interpretation) -> str:
    """Return which tables have no rows, for the message about an empty source; empty if none is known."""
    empty = ", ".join(text for text in reading.remarks if text.endswith(NO_ROWS))
    return empty and f" ({empty})"


def column_setting(section: str) -> str:
    """Return the setting in `section` that names the column of a part of an example, with {0} for the part."""
    return f"{section}.columns.{{0}} (podium finetune: --column {{0}}=NAME)"


def match_columns(
    present: Sequence[str], layouts: Sequence[Columns], source: str, reading: Interpretation, where: str = ""
) -> dict[str, str]:
    """Return part -> name of its column, in the first layout that fits, and report the unused columns to `reading`.

    Without layouts, all columns are read under their names. Errors locate the record at `where`.

    Raises:
        InputError: the name of a column to read is repeated, or required columns of the last layout are missing (the
            message suggests similar names).
    """
    location = source + where
    if len(present) > MAX_COLUMNS:
        raise InputError(f"{location} has {len(present):,} columns; at most {MAX_COLUMNS:,} are allowed. Remove some")
    counts = Counter(present)
    if not layouts:
        return {name: name for name in counts if counts[name] == 1}
    if (names := find_layout(present, layouts)) is None:
        raise InputError(f"{location} {_describe_missing(present, layouts[-1])}")
    matched = {part: name for part, (name, _) in names.items()}
    reasons = dict.fromkeys(matched, BY_NAME)
    for part, name in matched.items():
        trained_name = reading.trained.get(part, name)
        if any(columns[part].is_named and name in columns[part].names for columns in layouts if part in columns):
            reasons[part] = BY_USER
        elif trained_name != name and trained_name in counts:
            matched[part], reasons[part] = trained_name, BY_MODEL
    if repeated := [name for name in matched.values() if counts[name] > 1]:
        raise InputError(f"{location} has the column {repeated[0]!r} more than once. Rename one of them")
    used = {part: name for part, name in matched.items() if part != SPLIT}
    for part, name in used.items():
        reading.use_column(part, name, reasons[part])
    reading.unused_columns |= {name or UNNAMED for name in counts.keys() - used.values()}
    return matched


def find_layout(present: Sequence[str], layouts: Sequence[Columns]) -> dict[str, tuple[str, str]] | None:
    """Return part -> the name and the expected name of its column, in the first layout whose required columns exist.

    A name that differs in case or white space is used for a part without an exact name, if it is unambiguous.
    """
    matches = ((_match(present, columns), columns) for columns in layouts)
    fitting = (
        names for names, columns in matches if all(p in names for p, column in columns.items() if column.required)
    )
    return next(fitting, None)


def _match(present: Sequence[str], columns: Columns) -> dict[str, tuple[str, str]]:
    """Return part -> name and expected name of its column. A name that params.yaml sets is not used for other parts."""
    user_names = {column.names[0] for column in columns.values() if len(column.names) == 1}
    folded = Counter(map(fold_name, present))
    by_fold = {fold_name(name): name for name in present}
    matched: dict[str, tuple[str, str]] = {}
    for part, column in columns.items():
        names = [name for name in column.names if len(column.names) == 1 or name not in user_names]
        exact = [(name, name) for name in names if name in present]
        similar = [(by_fold[fold_name(name)], name) for name in names if folded.get(fold_name(name)) == 1]
        if exact or similar:
            matched[part] = (exact or similar)[0]
    return matched


def fold_name(name: str) -> str:
    """Return a column name in lower case and without white space, so that similar names compare equal."""
    return "".join(name.split()).casefold()


def _describe_missing(present: Sequence[str], columns: Columns) -> str:
    matched = _match(present, columns)
    missing = [column for part, column in columns.items() if column.required and part not in matched]
    taken = {name: f"{name!r} besides that of {part}" for part, (name, _) in matched.items()}
    free = [name for name in present if name not in taken]
    near = {column.names[0]: difflib.get_close_matches(column.names[0], free, 1) for column in missing}
    shown = shorten([name[:SHOWN_CHARACTERS] for name in present], SHOWN_COLUMNS)
    similar = [
        f"{matches[0]} for {name}" if len(missing) > 1 else matches[0] for name, matches in near.items() if matches
    ]
    return (
        f"has no column {' and no column '.join(taken.get(name, repr(name)) for name in near)}; "
        + (f"its columns are {shown}" if shown else "it has no columns")
        + (f"; did you mean {', '.join(similar)}? " if similar else ". ")
        + f"Set {', '.join(dict.fromkeys(column.key for column in missing))}"
        + "".join(f". {EXPORTS[name]}" for name in present if name in EXPORTS)
    )


def make_kept(names: Sequence[str], key: str) -> Columns:
    """Return columns of labels that predictions repeat and nothing else uses: the first that a table has."""
    return {KEPT: ColumnSpec(tuple(names), key, False)}


def read_kept(row: TableRow) -> dict[str, Any]:
    """Return column -> value of the labels that predictions repeat."""
    return {row.names[part]: value for part, value in row.values.items() if part.startswith(KEPT)}


def name_record(row: TableRow, reading: Interpretation) -> str:
    """Return the name of a record: its id, or its position in its source."""
    record_id = convert_id(row.values.get("id"), reading)
    return row.where if record_id in (None, "") else str(record_id)


def read_texts(
    line: TableRow, parts: Iterable[str], problems: ProblemList, *, may_be_empty: bool = False
) -> dict[str, str]:
    """Return the texts of these parts of a record, with single spaces; add what is wrong with them to `problems`."""
    texts = dict[str, str]()
    for part in (part for part in parts if part in line.names):
        value: Any = line.values.get(part)
        wrong = find_text_problem(value)
        texts[part] = "" if wrong else " ".join(value.split())
        if wrong or not (texts[part] or may_be_empty):
            kind = "no text" if value is None else f"a value that {wrong}" if wrong else "an empty text"
            problems.add(f"{kind} in the column {line.names[part]!r}", line.where)
    return texts


def convert_id(value: Any, reading: Interpretation) -> Any:
    """Convert an id that is a whole number to text and count it; return any other value unchanged."""
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        return value
    reading.counts[NUMERIC_IDS] += 1
    return str(int(value))


def select_columns(
    records: Iterable[Located], layouts: Sequence[Columns], source: str, reading: Interpretation
) -> Iterator[TableRow]:
    """Yield records by part. Columns are matched again whenever they differ from those of the previous record."""
    before: tuple[str, ...] | None = None
    names: Mapping[str, str] = {}
    for where, values in records:
        if (present := tuple(values)) != before:
            names, before = match_columns(present, layouts, source, reading, f", {where}"), present
        yield TableRow(where, {part: values[name] for part, name in names.items()}, names)


def _read_delimited(
    path: Path, key: str, spec: RecordSpec, reading: Interpretation, form: TableForm
) -> Iterator[TableRow]:
    layouts, headers = spec.layouts, spec.headers if file_suffix(path) == ".tsv" else ()
    single = {column.names[0] for columns in layouts for column in columns.values() if len(column.names) == 1}
    if form.quoting or headers or file_suffix(path) != ".tsv":
        quoting = Quoting(form.quoting == "enclosing" if form.quoting or headers else True)
    else:
        quoting = detect_quoting(path, key, form.separator)
    rows = read_rows(path, key, form.separator, single, reading, is_quoted=quoting.encloses)
    start = next(rows)
    header: Sequence[str] = start[2]
    if headers and find_layout(header, layouts) is None:
        header = next((candidate for candidate in headers if len(candidate) == len(header)), header)
    try:
        names = match_columns(header, layouts, str(path), reading)
    except InputError as error:
        if header is start[2] and any(
            parse_number(cell) is not None or len(cell.split()) >= FEWEST_WORDS for cell in header
        ):
            raise InputError(f"{error}. Its first line was read as the header: if it is a row, add a header") from None
        raise
    places = {part: header.index(name) for part, name in names.items()}
    if doubtful := min((pair for number, pair in quoting.doubtful.items() if number in places.values()), default=None):
        line, cell = doubtful
        setting = f"{key.rpartition('.')[0]}.quoting" if "." in key else "--quoting"
        raise InputError(
            f"{path}, line {line} has the cell {cell[:QUOTED]!r}: its quotes enclose the cell or are part of the text, "
            f"and both readings fit the file. Set {setting} to enclosing or literal"
        )
    for first, last, fields in rows if header is start[2] else itertools.chain([start], rows):
        if not fields or (len(header) > 1 and not "".join(fields).strip()):
            reading.count(BLANK_LINES, f"line {last}")
            continue
        if len(fields) != len(header):
            begun = f" (the row begins in line {first}: is a quote not closed there?)" if first < last else ""
            raise InputError(
                f"{path}, line {last} has {len(fields)} fields, but the header has {len(header)}{begun}. "
                f"Give every row the columns {shorten(header, SHOWN_COLUMNS)} (in .csv, quote fields that contain the "
                "separator)"
            )
        if fields == start[2] and header is start[2] and len(header) > 1:
            raise InputError(f"{path}, line {first} repeats the header: remove it ({key})")
        yield TableRow(f"line {first}", {part: fields[index] for part, index in places.items()}, names)


def _read_parquet(
    path: Path, key: str, spec: RecordSpec, reading: Interpretation, part: FileRange
) -> Iterator[list[TableRow]]:
    """Yield batches of records."""
    import pyarrow as pa

    row = 0
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            names = match_columns(schema.names, spec.layouts, str(path), reading)
            classes = {part: read_class_names(schema, name) for part, name in names.items() if spec.class_names}
            columns = list(dict.fromkeys(names.values()))
            row = sum(file.metadata.row_group(number).num_rows for number in range(part.start))
            groups = list(range(part.start, file.num_row_groups if part.stop is None else part.stop))
            most = _records_at_once(file.metadata, path)
            for batch in file.iter_batches(most, groups, columns=columns, use_threads=False):
                _require_text(batch, path, row)
                parts = [batch.column(name) for name in names.values()]
                rows = pa.RecordBatch.from_arrays(parts, names=list(names)).to_pylist()
                if any(classes.values()):
                    rows = [
                        {part: name_classes(value, classes[part]) for part, value in values.items()} for values in rows
                    ]
                yield [TableRow(f"row {number}", values, names) for number, values in enumerate(rows, row)]
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

    def find_problem(part: Any) -> str:
        try:
            part.validate(full=True)
        except pa.ArrowInvalid as error:
            return f"({error}): create the file again"
        return ""

    if problem := find_problem(batch):
        for number in range(batch.num_rows):
            if defect := find_problem(batch.slice(number, 1)):
                raise InputError(f"{path}, row {first + number} is damaged or not UTF-8 {defect}")
        raise InputError(f"{path}, rows {first} to {first + batch.num_rows - 1} are damaged {problem}")
