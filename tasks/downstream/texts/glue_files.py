"""Examples of a GLUE task from files or the Hub, each checked: texts, and a label that the task has.

Files are TSV (without quotes, as GLUE's own are, with a header or without) or a table that tables.py reads. A label is
a number or the name of a class, the same way in a whole file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tasks.downstream.texts.params import GlueData
from tasks.downstream.texts.tasks import Example, TextTask
from tasks.inputs.tables import BLANK_LINES, NO_ROWS, Column, Line, actual_name, read_table
from tasks.inputs.tables import ENDINGS as TABLES
from tasks.project.errors import InputError
from tasks.project.given import files_in
from tasks.reading.hub_inputs import open_dataset
from tasks.reading.text_files import Reading, ending_of, refuse_empty, text_lines

KEY = "downstream.*.data.path"
LABEL = "label"
ENDINGS = (".tsv", *TABLES, ".json")
COLA_FIELDS = ("source", LABEL, "mark", "sentence")
"""Official files of CoLA have four fields and no header."""


def examples_of_split(task: TextTask, data: GlueData, split: str, reading: Reading) -> Iterator[Example]:
    """The examples of a split: of the files in `data.path`/<task>/ or the folder of the official download, or of a data
    set of the Hub with GLUE's configurations and columns.

    Raises:
        InputError: no file, several of different endings, or content that is not what the task needs; the message
            names file and line.
    """
    if data.source == "files":
        for path in split_files(task, Path(data.path), split):
            yield from examples_from_file(task, path, reading, separator=data.separator)
        return
    name = task.hub_split(split)
    rows = open_dataset("downstream.*.data", data.dataset, task.name, name, data.dataset_revision)
    lines = (Line(f"row {number}", row) for number, row in enumerate(rows))
    yield from _examples(task, lines, f"data set {data.dataset}, {task.name}, split {name}")


def examples_from_file(
    task: TextTask, path: Path, reading: Reading, key: str = KEY, separator: str | None = None
) -> Iterator[Example]:
    """The examples of one file, TSV or a table, in order.

    Args:
        key: what messages call the file, or where it was named.
        separator: of the fields of .csv; None: it is found.

    Raises:
        InputError: content that is not what the task needs; the message names file and line.
    """
    reading.files += 1
    if ending_of(path) == ".tsv":
        lines = _read_tsv(task, path, reading, key)
    else:
        asked = [Column(name, key, True) for name in (*task.columns, LABEL)]
        lines = read_table(path, asked, key, reading, separator)
    yield from _examples(task, lines, str(path))


def split_files(task: TextTask, folder: Path, split: str) -> list[Path]:
    """The file of a split, or the parts of it (train-00000-of-00002.parquet, ...) in order.

    Raises:
        InputError: there is none, or it is there with several endings.
    """
    listed = files_in(folder, KEY)
    places = [place for name in (task.name, task.title) if (place := folder / name).is_dir()]
    if len(places) != 1:
        found = " and ".join(map(str, places)) or "neither"
        raise InputError(
            f"{KEY}={folder} must hold one folder of {task.title}, {task.name}/ or {task.title}/: found {found}"
        )
    stems = (split, task.hub_split(split))
    files = [
        path
        for path in listed
        if path.parent == places[0]
        and ending_of(path) in ENDINGS
        and any(_stem(path) == stem or path.name.startswith(f"{stem}-0") for stem in stems)
    ]
    files = [path for path in files if ending_of(path) != ".json"] or files
    if not files or len({(path.suffix, _stem(path).partition("-0")[0]) for path in files}) > 1:
        names = " or ".join(f"{stem}.tsv" for stem in dict.fromkeys(stems))
        found = ", ".join(path.name for path in files) or "none"
        raise InputError(
            f"{places[0]} must hold one file of the {split} examples, {names} (or "
            f"{', '.join(ENDINGS[1:])}): found {found}"
        )
    return files


def _stem(path: Path) -> str:
    """The name of a file without its ending, and without that of its packing."""
    return path.name.lower().partition(ending_of(path))[0]


def unused_files(task: TextTask, folder: Path) -> list[str]:
    """Names of the files of the task that no split is read from, such as GLUE's test files.

    Raises:
        InputError: as `split_files`.
    """
    used = {path for split in task.splits for path in split_files(task, folder, split)}
    place = next(iter(used)).parent
    return [path.relative_to(place).as_posix() for path in files_in(place, KEY) if path not in used]


def _read_tsv(task: TextTask, path: Path, reading: Reading, key: str) -> Iterator[Line]:
    """Lines of a TSV file under the task's own names of columns; what is quoted stays as it is."""
    refuse_empty(path, key)
    wanted = (*task.columns, LABEL)
    header: Sequence[str] | None = None
    rows = False
    for number, text in enumerate(text_lines(path, key), 1):
        fields = text.rstrip("\r\n").split("\t")
        if fields == [""]:
            reading.counts[BLANK_LINES] += 1
            continue
        if header is None:
            header, is_data = _header(task, fields, path, reading)
            if not is_data:
                reading.unused_columns |= set(header) - set(wanted)
                continue
        if len(fields) != len(header):
            raise InputError(
                f"{path}, line {number} has {len(fields)} fields, {len(header)} are required ({', '.join(header)}): "
                "apart by tabs, no tab inside a field"
            )
        values, rows = dict(zip(header, fields, strict=True)), True
        yield Line(f"line {number}", {name: values[name] for name in wanted})
    if not rows:
        reading.remark(f"{path.name} {NO_ROWS}")


def _header(task: TextTask, fields: Sequence[str], path: Path, reading: Reading) -> tuple[Sequence[str], bool]:
    """Names of the columns, the task's own where it needs them, and whether the first line is data already."""
    wanted = (*task.columns, LABEL)
    for names in (wanted, task.tsv):
        actual = [actual_name(fields, name) for name in names]
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
        f"{path}, line 1: found the fields {', '.join(fields)}; required is a header with "
        f"{', '.join(task.tsv or wanted)}, or no header and the fields {', '.join(wanted)}, apart by tabs"
    )


def _examples(task: TextTask, lines: Iterable[Line], source: str) -> Iterator[Example]:
    style: tuple[bool, str] | None = None
    for where, values in lines:
        place = f"{source}, {where}"
        texts = [text_of(values, column, place) for column in task.columns]
        label, is_name = _label(task, values.get(LABEL), place)
        if style is not None and style[0] != is_name:
            raise InputError(
                f"{place}: the label {values[LABEL]!r} is {'a name' if is_name else 'a number'}, that of {style[1]} is "
                "not: labels of one file are all numbers or all names of classes"
            )
        style = style or (is_name, where)
        number = label if task.is_regression else int(label)
        yield Example(texts[0], texts[1] if len(texts) > 1 else None, number)


def text_of(values: dict[str, Any], column: str, place: str) -> str:
    """A text of a record, its white space made single.

    Raises:
        InputError: it is absent, or no text.
    """
    if column not in values:
        raise InputError(f"{place} has no column {column!r}: found {', '.join(values)}")
    text = values[column]
    if not isinstance(text, str):
        raise InputError(f"{place}: {column} must be text, found {type(text).__name__} {text!r}")
    return " ".join(text.split())


def _label(task: TextTask, value: Any, place: str) -> tuple[float, bool]:
    """The label as a number, and whether it was the name of a class."""
    if isinstance(value, str) and value.strip() in task.labels and not task.is_regression:
        return float(task.labels.index(value.strip())), True
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        number = math.nan
    low, high = task.answers
    if not low <= number <= high or (not task.is_regression and number != int(number)):
        classes = ", ".join(f"{index} ({name})" for index, name in enumerate(task.labels))
        required = f"a number from {low:g} to {high:g}" if task.is_regression else f"one of {classes}"
        unlabelled = " (-1 means no label, as in GLUE's test files, which cannot be used)" if number == -1 else ""
        raise InputError(f"{place}: the label is {value!r}, required is {required}{unlabelled}")
    return number, False
