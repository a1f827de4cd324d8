"""Examples of a GLUE task from files or the Hub, each checked: texts, and a label that the task has.

Files are TSV (without quotes, as GLUE's own are, with a header or without) or a table that tables.py reads. A label is
a number or the name of a class, the same way in a whole file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.downstream.texts.own_files import TEXT_PARTS, Taken, usable, value_of
from tasks.downstream.texts.params import GlueData
from tasks.downstream.texts.tasks import TRAIN, Example, TextTask
from tasks.plan.named_files import files_in
from tasks.records.hub_inputs import open_dataset
from tasks.records.tables import BLANK_LINES, NO_ROWS, Column, Columns, Line, actual_name, ask_for, numbered, read_table
from tasks.records.tables import ENDINGS as TABLES
from tasks.records.text_files import Reading, ending_of, refuse_empty, text_lines
from tasks.stage.errors import InputError

KEY = "downstream.*.data.path"
LABEL = "label"
ENDINGS = (".tsv", *TABLES, ".json")
COLA_FIELDS = ("source", LABEL, "mark", "sentence")
"""Official files of CoLA have four fields and no header."""


class GlueTexts(NamedTuple):
    """The examples of a task: files in `data.path`/<task>/ or the folder of the official download, or a data set of the
    Hub with GLUE's configurations and columns."""

    data: GlueData
    task: TextTask

    def examples(self, split: str, reading: Reading, most: int | None = None) -> Iterator[Example]:
        """The examples of a split, in order; see `of_file`.

        Args:
            most: of each file at most so many are looked at.

        Raises:
            InputError: no file, several of different endings, or content that is not what the task needs; the message
                names file and line.
        """
        data, task = self
        if data.source == "files":
            for path in split_files(task, Path(data.path), split):
                yield from self.of_file(path, KEY, reading, most, split)
            return
        name = task.hub_split(split)
        rows = open_dataset("downstream.*.data", data.dataset, task.name, name, data.dataset_revision)
        source = f"data set {data.dataset}, {task.name}, split {name}"
        lines = ask_for(numbered("row", rows), columns_of(task, "downstream.*.data.dataset"), source, reading)
        yield from self._usable(source, itertools.islice(lines, most), label_of(task), split, reading)

    def of_file(
        self,
        path: Path,
        key: str,
        reading: Reading,
        most: int | None = None,
        split: str = "dev",
        *,
        labelled: bool = True,
    ) -> Iterator[Example]:
        """The examples of one file, TSV or a table, with labels or without.

        Those with an empty text are counted, and left out of training.

        Args:
            key: what messages call the file, or where it was named.
            most: at most so many are looked at.
        """
        reading.files += 1
        columns = columns_of(self.task, key, labelled=labelled)
        if ending_of(path) == ".tsv":
            lines = _read_tsv(self.task, path, columns, reading, key)
        else:
            lines = read_table(path, columns, key, reading, self.data.separator, class_names=False)
        taken = label_of(self.task) if labelled else None
        return self._usable(f"{path} ({key})", itertools.islice(lines, most), taken, split, reading)

    def _usable(
        self, source: str, lines: Iterator[Line], taken: Taken | None, split: str, reading: Reading
    ) -> Iterator[Example]:
        what = "left out" if split == TRAIN else "kept, as the official metrics count them"
        for one in usable(source, lines, taken, reading, may_be_empty=True):
            is_whole = all(one[: len(self.task.columns)])
            reading.counts[f"{split} examples with an empty text, {what}"] += not is_whole
            if is_whole or split != TRAIN:
                yield one


def columns_of(task: TextTask, key: str, *, labelled: bool = True) -> Columns:
    """Return what a table is asked for: of one without labels also the name of each example, where it has names."""
    texts = {part: Column(name, key, True) for part, name in zip(TEXT_PARTS, task.columns, strict=False)}
    return {**texts, LABEL: Column(LABEL, key, True)} if labelled else {**texts, "id": Column("id", key, False)}


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


def _read_tsv(task: TextTask, path: Path, columns: Columns, reading: Reading, key: str) -> Iterator[Line]:
    """Lines of a TSV file; what is quoted stays as it is."""
    refuse_empty(path, key)
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
                reading.unused_columns |= set(header) - {one.name for one in columns.values()}
                continue
        if len(fields) != len(header):
            raise InputError(
                f"{path}, line {number} has {len(fields)} fields, {len(header)} are required ({', '.join(header)}): "
                "apart by tabs, no tab inside a field"
            )
        values, rows = dict(zip(header, fields, strict=True)), True
        yield Line(f"line {number}", {part: values[one.name] for part, one in columns.items()}, columns)
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


def label_of(task: TextTask) -> Taken:
    """Return what makes labels of the cells of one file: all are numbers, or all names of classes."""
    classes = ", ".join(f"{index} ({name})" for index, name in enumerate(task.labels))
    low, high = task.answers
    required = f"a number from {low:g} to {high:g}" if task.is_regression else f"one of {classes}"
    forms: dict[str, bool] = {}

    def take(value: Any) -> tuple[float, str]:
        name = value.strip() if isinstance(value, str) and not task.is_regression else ""
        is_name = name in task.labels
        number, wrong = (float(task.labels.index(name)), "") if is_name else value_of(value)
        if wrong or not low <= number <= high or not (task.is_regression or number.is_integer()):
            unlabelled = " (-1 means no label, as in GLUE's test files, which cannot be used)" if number == -1 else ""
            return 0, f"a label that is not {required}{unlabelled}"
        if forms.setdefault("first", is_name) != is_name:
            kind = "a name" if is_name else "a number"
            return 0, f"a label that is {kind}, as the first is not: all must be numbers, or all names of classes"
        return number if task.is_regression else int(number), ""

    return take
