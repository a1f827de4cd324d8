"""Reading of labelled texts from files or the Hub: CSV, TSV, JSON, Parquet; every text and label is checked.

A GLUE task is read like your own texts, with the columns and classes of its table. These differ: its files are in a
folder of the task, TSV files may have no header or the official one, and an empty text is dropped from train and kept
in the development sets, because the official metrics include it.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.units import shorten
from tasks.downstream.texts.labels import FLAGS, LabelParser, fold_flag, is_list_text, label_parser
from tasks.downstream.texts.params import ClassificationColumnParams, ClassificationDataParams, GlueDataParams
from tasks.downstream.texts.task_table import TRAIN, TextExample, TextTask
from tasks.plan.named_files import list_files
from tasks.records.hub_inputs import open_dataset
from tasks.records.parquet import fold_name
from tasks.records.tables import (
    BLANK_LINES,
    NO_ROWS,
    Columns,
    ColumnSpec,
    Located,
    Selector,
    TableRow,
    convert_id,
    list_empty,
    match_name,
    number_records,
    pick_usual_name,
    read_table,
    select_columns,
)
from tasks.records.text_files import ProblemList, ReadLog, file_suffix, find_surrogate, read_lines, refuse_empty
from tasks.stage.errors import InputError

ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
TEXT_PARTS, LABEL, FLAG = ("text", "text_pair"), "label", "flag "
"""Parts of a record; FLAG begins the parts of columns that are 0 or 1."""
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
    ("question", "sentence"),
)
"""Usual columns of a pair of texts."""
TEXTS = ("text", "sentence", "review", "comment", "content", "question", "sentence1", "premise")
LABELS = ("label", "labels", "class", "category", "target", "score", "value")
IDS = ("id", "idx")
COLA_FIELDS = ("source", LABEL, "mark", "sentence")
"""Fields of CoLA's official files, which have no header."""
DETECTION_ROWS, SHOWN_LABELS = 1000, 5


def choose_texts(names: ClassificationColumnParams, present: Sequence[str]) -> dict[str, str | None]:
    """Return the columns of text, text_pair and id: those set in the parameters, else those with usual names.

    Names that differ only in case or spaces also match; the reader of the table adds a remark.
    """
    text, pair, name = names.text, names.text_pair, names.id
    for there in (present, [one for one, count in Counter(map(fold_name, present)).items() if count == 1]):
        if text is None and pair is None:
            text, pair = next((both for both in PAIRS if set(both) <= set(there)), (None, None))
        text = text or _first(TEXTS, [one for one in there if one not in (pair, names.label)])
        name = name or _first(IDS, there)
        if text is not None:
            break
    return {"text": text, "text_pair": pair, "id": name}


def _first(names: Iterable[str], present: Sequence[str]) -> str | None:
    return next((name for name in names if name in present), None)


def glue_columns(task: TextTask, present: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the sentences and the label in a table: the task's, or those of the official downloads."""
    usual = (*task.columns, LABEL)
    official = {match_name(present, name) for name in task.tsv}
    return task.tsv if official and official <= set(present) and not _has_all(present, usual) else usual


def _has_all(present: Sequence[str], names: Iterable[str]) -> bool:
    return {match_name(present, name) for name in names} <= set(present)


class TextsReader(NamedTuple):
    """Reader of an entry's labelled texts."""

    task: TextTask
    data: ClassificationDataParams | GlueDataParams
    section: str
    """Section of params.yaml, for messages."""
    named_by: str = ""
    """See tables.column_setting; not used for GLUE, whose columns are fixed."""

    def examples(self, split: str, reading: ReadLog, most: int | None = None) -> Iterator[TextExample]:
        """Yield the examples of a split, in order.

        Args:
            reading: receives counts and the chosen columns (`layouts`).
            most: maximum number of examples to read from each file.

        Raises:
            InputError: no file, or an unreadable one; at the end, all problems with texts and labels.
        """
        if self.data.source == "files":
            for path, key in self._split_files(split):
                yield from self.of_file(path, key, reading, most, split)
            return
        data, name = self.data, self.task.hub_split(split)
        config = data.dataset_config if isinstance(data, ClassificationDataParams) else self.task.name
        names = not self.task.name
        rows = open_dataset(self.section, data.dataset, config, name, data.dataset_revision, class_names=names)
        source = ", ".join(filter(None, (f"data set {data.dataset}", self.task.name, f"split {name}")))
        columns = self._columns(source, f"{self.section}.dataset", reading)
        yield from self._valid(
            source, select_columns(number_records("row", rows), columns, source, reading), reading, split, most
        )

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
        """Yield the examples of a table, with or without labels; otherwise as `examples`.

        Args:
            key: name of the file, or the parameter with its path, in messages.
        """
        reading.files += 1
        source = f"{path} ({key})"
        columns = self._columns(source, key, reading, labelled=labelled)
        if self.task.name and file_suffix(path) == ".tsv":
            lines = select_columns(_read_glue_tsv(self.task, path, key, reading), columns, str(path), reading)
        else:
            lines = read_table(path, columns, key, reading, self.data.separator, class_names=not self.task.name)
        return self._valid(source, lines, reading, split, most, labelled=labelled)

    def _columns(self, source: str, key: str, reading: ReadLog, *, labelled: bool = True) -> Selector:
        """Return a function that chooses columns; those of labels only if `labelled`."""

        def choose(present: Sequence[str]) -> Columns:
            if isinstance(self.data, GlueDataParams):
                *texts, label = glue_columns(self.task, present)
                columns = {part: ColumnSpec(name, key, True) for part, name in zip(TEXT_PARTS, texts, strict=False)}
                return (
                    columns | {LABEL: ColumnSpec(label, key, True)}
                    if labelled
                    else columns | {"id": ColumnSpec("id", key, False)}
                )
            chosen, named = choose_texts(self.data.columns, present), self.data.columns.label
            parts = {part: name for part, name in {**chosen, "text": chosen["text"] or TEXTS[0]}.items() if name}
            layout = f"texts {' and '.join(parts[part] for part in TEXT_PARTS if part in parts)}"
            if labelled:
                labels = named if isinstance(named, list) else [named or pick_usual_name(present, LABELS)]
                parts |= {FLAG + name: name for name in labels} if labels is named else {LABEL: labels[0]}
                layout += f", labels {shorten(labels, SHOWN_LABELS)}"
            reading.layouts[source] = layout
            return {part: ColumnSpec(name, self._setting(part), True) for part, name in parts.items()}

        return choose

    def _setting(self, part: str) -> str:
        return self.named_by.format(LABEL if part.startswith(FLAG) else part)

    def _split_files(self, split: str) -> list[tuple[Path, str]]:
        """Return the files of a split, in order, each with the parameter that names it."""
        if isinstance(self.data, GlueDataParams):
            key = f"{self.section}.path"
            return [(path, key) for path in glue_files(self.task, Path(self.data.path), split, key)]
        key = f"{self.section}.{split}_path"
        return [(path, key) for path in list_tables(self.data.path_of(split), key)]

    def unused_files(self) -> list[str]:
        """Return the names of unused files of a GLUE task, such as its test files.

        Raises:
            InputError: as `glue_files`.
        """
        if not isinstance(self.data, GlueDataParams) or self.data.source != "files":
            return []
        used = {path for split in self.task.splits for path, _ in self._split_files(split)}
        place = next(iter(used)).parent
        return [str(path.relative_to(place)) for path in list_files(place, f"{self.section}.path") if path not in used]

    def _valid(
        self,
        source: str,
        lines: Iterable[TableRow],
        reading: ReadLog,
        split: str,
        most: int | None,
        *,
        labelled: bool = True,
    ) -> Iterator[TextExample]:
        """Yield the examples of a table; at the end, refuse all problems with texts and labels."""
        separator = self.data.label_separator if isinstance(self.data, ClassificationDataParams) else None
        parse = label_parser(self.task, separator) if labelled else None
        problems, count = ProblemList(source, "texts with labels"), 0
        for line in itertools.islice(lines, most):
            count += 1
            one = _make_example(line, parse, bool(self.task.name), problems, reading)
            if one is None:
                continue
            if self.task.name:
                what = "dropped" if split == TRAIN else "kept, because the official metrics include them"
                is_whole = all(one[: len(self.task.columns)])
                reading.counts[f"{split} examples with an empty text, {what}"] += not is_whole
                if split == TRAIN and not is_whole:
                    continue
            if isinstance(one.label, list):
                labels = list(dict.fromkeys(one.label))
                reading.counts[f"{split} examples without a label"] += not labels
                reading.counts[f"{split} examples that repeat a label"] += len(labels) < len(one.label)
                one = one._replace(label=labels)
            yield one
        problems.refuse()
        if not count:
            raise InputError(
                f"{source} contains no example{list_empty(reading)}. A header and rows with a text and its label are "
                "required"
            )


def _make_example(
    line: TableRow, parse: LabelParser | None, may_be_empty: bool, problems: ProblemList, reading: ReadLog
) -> TextExample | None:
    """Return an example, or None after adding what is wrong with it to `problems`.

    Args:
        parse: parses the label; None: there is none.
        may_be_empty: allow empty texts.
    """
    where, values, columns = line
    texts = {part: _clean_text(values.get(part), may_be_empty) for part in TEXT_PARTS if part in columns}
    flags = {part.removeprefix(FLAG): value for part, value in values.items() if part.startswith(FLAG)}
    label, wrong = parse(flags or values.get(LABEL)) if parse else (0, "")
    if wrong:
        problems.add(wrong, where, None if flags else values.get(LABEL))
    for part, (_, trouble) in texts.items():
        if trouble:
            problems.add(f"{trouble} in the column {columns[part].name!r}", where)
    if wrong or any(trouble for _, trouble in texts.values()):
        return None
    given = convert_id(values.get("id"), reading)
    first, second = (texts.get(part, (None, ""))[0] for part in TEXT_PARTS)
    return TextExample(str(first), second, label, None if given is None else str(given))


def _clean_text(value: Any, may_be_empty: bool) -> tuple[str, str]:
    """Return a text with collapsed white space, and what is wrong with it or an empty string."""
    if not isinstance(value, str):
        return "", "no text" if value is None else "a value that is not text"
    text = " ".join(value.split())
    if find_surrogate(text) is not None:
        return "", "half a surrogate pair (invalid Unicode)"
    return text, "" if text or may_be_empty else "an empty text"


def list_tables(path: Path, key: str) -> list[Path]:
    """Return a file, or the files of a folder sorted by name, which must have one known extension.

    Raises:
        InputError: no file, unknown extensions, or several.
    """
    files = list_files(path, key)
    tables = _without_metadata(files) if path.is_dir() else [one for one in files if file_suffix(one) in ENDINGS]
    endings = {file_suffix(one) for one in tables}
    if len(endings) != 1:
        found = f"{', '.join(sorted(endings))} in one folder" if endings else ", ".join(f.name for f in files[:5])
        raise InputError(
            f"{path}: {key} must be a table ({', '.join(ENDINGS)}) or a folder of tables of one kind; found "
            f"{found or 'nothing'}"
        )
    return tables


def _without_metadata(files: Iterable[Path]) -> list[Path]:
    """Return the tables: next to others, a .json file such as dataset_info.json is metadata."""
    tables = [one for one in files if file_suffix(one) in ENDINGS]
    return [one for one in tables if file_suffix(one) != ".json"] or tables


def glue_files(task: TextTask, folder: Path, split: str, key: str) -> list[Path]:
    """Return the file of a split, or its parts (train-00000-of-00002.parquet, ...) in order.

    Raises:
        InputError: no file, or several with different extensions.
    """
    listed = list_files(folder, key)
    places = [place for name in (task.name, task.title) if (place := folder / name).is_dir()]
    if len(places) != 1:
        found = " and ".join(map(str, places)) or "neither"
        raise InputError(
            f"{key}={folder} must contain one folder of {task.title}, {task.name}/ or {task.title}/; found {found}"
        )
    stems = dict.fromkeys((split, task.hub_split(split)))
    own = {path: path.name.lower().partition(file_suffix(path))[0] for path in listed if path.parent == places[0]}
    files = _without_metadata(
        path for path, stem in own.items() if stem in stems or path.name.startswith(tuple(f"{one}-0" for one in stems))
    )
    if len({(path.suffix, own[path].partition("-0")[0]) for path in files}) != 1:
        raise InputError(
            f"{places[0]} must contain one file of {split} examples, {' or '.join(f'{stem}.tsv' for stem in stems)} "
            f"(or {', '.join(one for one in ENDINGS if one != '.tsv')}); found "
            f"{', '.join(path.name for path in files) or 'none'}"
        )
    return files


def _read_glue_tsv(task: TextTask, path: Path, key: str, reading: ReadLog) -> Iterator[Located]:
    """Yield the lines of a TSV file with or without a header; quotes are not interpreted."""
    refuse_empty(path, key)
    header: Sequence[str] = ()
    rows = False
    for number, text in enumerate(read_lines(path, key), 1):
        fields = text.rstrip("\r\n").split("\t")
        if fields == [""]:
            reading.counts[BLANK_LINES] += 1
            continue
        if not header:
            header = _glue_header(task, fields, path)
            if header is fields:
                continue
        if len(fields) != len(header):
            raise InputError(
                f"{path}, line {number} has {len(fields)} fields, {len(header)} are required ({', '.join(header)}), "
                "separated by tabs"
            )
        rows = True
        yield f"line {number}", dict(zip(header, fields, strict=True))
    if not rows:
        reading.remark(f"{path.name} {NO_ROWS}")


def _glue_header(task: TextTask, fields: Sequence[str], path: Path) -> Sequence[str]:
    """Return the column names of a file: its first line, `fields`, or those of a file without a header."""
    usual = (*task.columns, LABEL)
    if _has_all(fields, glue_columns(task, fields)):
        return fields
    if task.name == "cola" and len(fields) == len(COLA_FIELDS):
        return COLA_FIELDS
    if len(fields) == len(usual):
        return usual
    raise InputError(
        f"{path}, line 1: found the fields {', '.join(fields)}. Required is a header with "
        f"{', '.join(task.tsv or usual)}, or no header and the fields {', '.join(usual)}, separated by tabs"
    )


def detect_labels(train: Path, columns: ClassificationColumnParams) -> dict[str, Any]:
    """Return the parameters for several labels if the first rows of a file have them beyond doubt, else none.

    They have if every label is a list, or if there is no column of labels and every column other than texts and id is 0
    or 1.
    """
    try:
        path = list_tables(train, "--train")[0]
        lines = read_table(path, _every_column, "--train", ReadLog())
        rows: list[Mapping[str, Any]] = [line.values for line in itertools.islice(lines, DETECTION_ROWS)]
    except (InputError, OSError):
        return {}  # the check of files reports it
    present = list(rows[0]) if rows else []
    label = columns.label or pick_usual_name(present, LABELS)
    if isinstance(label, list) or all(isinstance(row.get(label), list) or is_list_text(row.get(label)) for row in rows):
        return {"multilabel": True} if rows else {}
    chosen = choose_texts(columns, present)
    others = [name for name in present if name not in chosen.values()]
    flags = all(fold_flag(row.get(name)) in FLAGS for row in rows for name in others)
    if label in present or columns.label or chosen["text"] not in present or len(others) < 2 or not flags:
        return {}
    return {"multilabel": True, "data.columns.label": others}


def _every_column(present: Sequence[str]) -> Columns:
    return {name: ColumnSpec(name, "--column", False) for name in present}
