"""Reading and checking of a GLUE task's examples from files or the Hub.

Files are TSV (without quoting, like GLUE's, with or without a header) or a table supported by tables.py. Labels are
numbers or class names, the same in a whole file.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.downstream.texts.own_files import TEXT_PARTS, LabelParser, parse_value, read_valid_texts
from tasks.downstream.texts.params import GlueDataParams
from tasks.downstream.texts.task_table import TRAIN, TextExample, TextTask
from tasks.plan.named_files import list_files
from tasks.records.hub_inputs import open_dataset
from tasks.records.tables import (
    BLANK_LINES,
    NO_ROWS,
    Columns,
    ColumnSpec,
    TableRow,
    match_name,
    number_records,
    read_table,
    select_columns,
)
from tasks.records.tables import ENDINGS as TABLES
from tasks.records.text_files import ReadLog, file_suffix, read_lines, refuse_empty
from tasks.stage.errors import InputError

KEY = "downstream.*.data.path"
LABEL = "label"
ENDINGS = (".tsv", *TABLES, ".json")
COLA_FIELDS = ("source", LABEL, "mark", "sentence")
"""Fields of CoLA's official files, which have no header."""


class GlueReader(NamedTuple):
    """Reader of a task: files in `data.path`/<task>/ or the folder of the official download, or a Hub data set with
    GLUE's configurations and columns."""

    data: GlueDataParams
    task: TextTask

    def examples(self, split: str, reading: ReadLog, most: int | None = None) -> Iterator[TextExample]:
        """Yield the examples of a split, in order; see `of_file`.

        Args:
            most: maximum number of examples to read from each file.

        Raises:
            InputError: no file, several files with different extensions, or content that does not fit the task; the
                message names file and line.
        """
        data, task = self
        if data.source == "files":
            for path in split_files(task, Path(data.path), split):
                yield from self.of_file(path, KEY, reading, most, split)
            return
        name = task.hub_split(split)
        rows = open_dataset("downstream.*.data", data.dataset, task.name, name, data.dataset_revision)
        source = f"data set {data.dataset}, {task.name}, split {name}"
        lines = select_columns(
            number_records("row", rows), glue_columns(task, "downstream.*.data.dataset"), source, reading
        )
        yield from self._usable(source, itertools.islice(lines, most), label_parser(task), split, reading)

    def of_file(
        self,
        path: Path,
        key: str,
        reading: ReadLog,
        most: int | None = None,
        split: str = "dev",
        *,
        labelled: bool = True,
    ) -> Iterator[TextExample]:
        """Yield the examples of one file, TSV or a table, with or without labels.

        Examples with an empty text are counted, and dropped from training.

        Args:
            key: name of the file, or the parameter with its path, in messages.
            most: maximum number of examples to read.
        """
        reading.files += 1
        columns = glue_columns(self.task, key, labelled=labelled)
        if file_suffix(path) == ".tsv":
            lines = _read_tsv(self.task, path, columns, reading, key)
        else:
            lines = read_table(path, columns, key, reading, self.data.separator, class_names=False)
        taken = label_parser(self.task) if labelled else None
        return self._usable(f"{path} ({key})", itertools.islice(lines, most), taken, split, reading)

    def _usable(
        self, source: str, lines: Iterator[TableRow], taken: LabelParser | None, split: str, reading: ReadLog
    ) -> Iterator[TextExample]:
        what = "dropped" if split == TRAIN else "kept, because the official metrics include them"
        for one in read_valid_texts(source, lines, taken, reading, may_be_empty=True):
            is_whole = all(one[: len(self.task.columns)])
            reading.counts[f"{split} examples with an empty text, {what}"] += not is_whole
            if is_whole or split != TRAIN:
                yield one


def glue_columns(task: TextTask, key: str, *, labelled: bool = True) -> Columns:
    """Return the columns of a table; without labels also the optional id of each example."""
    texts = {part: ColumnSpec(name, key, True) for part, name in zip(TEXT_PARTS, task.columns, strict=False)}
    return {**texts, LABEL: ColumnSpec(LABEL, key, True)} if labelled else {**texts, "id": ColumnSpec("id", key, False)}


def split_files(task: TextTask, folder: Path, split: str) -> list[Path]:
    """Return the file of a split, or its parts (train-00000-of-00002.parquet, ...) in order.

    Raises:
        InputError: no file, or several with different extensions.
    """
    listed = list_files(folder, KEY)
    places = [place for name in (task.name, task.title) if (place := folder / name).is_dir()]
    if len(places) != 1:
        found = " and ".join(map(str, places)) or "neither"
        raise InputError(
            f"{KEY}={folder} must contain one folder of {task.title}, {task.name}/ or {task.title}/; found {found}"
        )
    stems = (split, task.hub_split(split))
    files = [
        path
        for path in listed
        if path.parent == places[0]
        and file_suffix(path) in ENDINGS
        and any(_stem(path) == stem or path.name.startswith(f"{stem}-0") for stem in stems)
    ]
    files = [path for path in files if file_suffix(path) != ".json"] or files
    if not files or len({(path.suffix, _stem(path).partition("-0")[0]) for path in files}) > 1:
        names = " or ".join(f"{stem}.tsv" for stem in dict.fromkeys(stems))
        found = ", ".join(path.name for path in files) or "none"
        raise InputError(
            f"{places[0]} must contain one file of {split} examples, {names} (or {', '.join(ENDINGS[1:])}); found "
            f"{found}"
        )
    return files


def _stem(path: Path) -> str:
    return path.name.lower().partition(file_suffix(path))[0]


def unused_files(task: TextTask, folder: Path) -> list[str]:
    """Return the names of unused files of the task, such as GLUE's test files.

    Raises:
        InputError: as `split_files`.
    """
    used = {path for split in task.splits for path in split_files(task, folder, split)}
    place = next(iter(used)).parent
    return [path.relative_to(place).as_posix() for path in list_files(place, KEY) if path not in used]


def _read_tsv(task: TextTask, path: Path, columns: Columns, reading: ReadLog, key: str) -> Iterator[TableRow]:
    """Yield the lines of a TSV file; quotes are not interpreted."""
    refuse_empty(path, key)
    header: Sequence[str] | None = None
    rows = False
    for number, text in enumerate(read_lines(path, key), 1):
        fields = text.rstrip("\r\n").split("\t")
        if fields == [""]:
            reading.counts[BLANK_LINES] += 1
            continue
        if header is None:
            header, is_data = _header(task, fields, path, reading)
            if not is_data:
                reading.unused_columns |= set(header) - {one.name for one in columns.values()}
                continue
        if len(fields) != len(header):
            raise InputError(
                f"{path}, line {number} has {len(fields)} fields, {len(header)} are required ({', '.join(header)}), "
                "separated by tabs"
            )
        values, rows = dict(zip(header, fields, strict=True)), True
        yield TableRow(f"line {number}", {part: values[one.name] for part, one in columns.items()}, columns)
    if not rows:
        reading.remark(f"{path.name} {NO_ROWS}")


def _header(task: TextTask, fields: Sequence[str], path: Path, reading: ReadLog) -> tuple[Sequence[str], bool]:
    """Return the column names, renamed to the task's, and True if the first line is data."""
    wanted = (*task.columns, LABEL)
    for names in (wanted, task.tsv):
        actual = [match_name(fields, name) for name in names]
        if names and set(actual) <= set(fields):
            for name, asked in zip(actual, names, strict=True):
                if name != asked:
                    reading.remark(f"{path.name}: column {name!r} is read as {asked!r}")
            own = dict(zip(actual, wanted, strict=True))
            return [own.get(field, f"({field})" if field in wanted else field) for field in fields], False
    if task.name == "cola" and len(fields) == len(COLA_FIELDS):
        return COLA_FIELDS, True
    if len(fields) == len(wanted):
        return wanted, True
    raise InputError(
        f"{path}, line 1: found the fields {', '.join(fields)}. Required is a header with "
        f"{', '.join(task.tsv or wanted)}, or no header and the fields {', '.join(wanted)}, separated by tabs"
    )


def label_parser(task: TextTask) -> LabelParser:
    """Return a function that parses the labels of one file, which must all be numbers or all be class names."""
    classes = ", ".join(f"{index} ({name})" for index, name in enumerate(task.labels))
    low, high = task.answers
    required = f"a number from {low:g} to {high:g}" if task.is_regression else f"one of {classes}"
    forms: dict[str, bool] = {}

    def take(value: Any) -> tuple[float, str]:
        name = value.strip() if isinstance(value, str) and not task.is_regression else ""
        is_name = name in task.labels
        number, wrong = (float(task.labels.index(name)), "") if is_name else parse_value(value)
        if wrong or not low <= number <= high or not (task.is_regression or number.is_integer()):
            unlabelled = " (-1 means no label; GLUE's test files cannot be used)" if number == -1 else ""
            return 0, f"a label that is not {required}{unlabelled}"
        if forms.setdefault("first", is_name) != is_name:
            kind = "a name" if is_name else "a number"
            return 0, f"a label that is {kind}, unlike the first: all must be numbers, or all class names"
        return number if task.is_regression else int(number), ""

    return take
