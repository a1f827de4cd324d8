"""Texts with labels from files or the Hub: CSV, TSV, JSON, Parquet; every text and label is checked."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.downstream.texts.params import ColumnParams, TextsParams
from tasks.downstream.texts.tasks import Example
from tasks.inputs.tables import (
    Column,
    Line,
    checked,
    column_names,
    hub_lines,
    read_table,
    stated_by,
    text_of_id,
    usual_name,
    without_rows,
)
from tasks.project.errors import InputError
from tasks.project.given import files_in
from tasks.reading.parquet import folded
from tasks.reading.text_files import Problems, Reading, ending_of

ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
    ("question", "sentence"),
)
"""Columns that are taken for a pair of texts, where none are named."""
TEXTS = ("text", "sentence", "review", "comment", "content", "question", "sentence1", "premise")
LABELS = ("label", "labels", "class", "category", "target", "score", "value")
IDS = ("id", "idx")
MAX_LABEL_CHARACTERS = 200
_UNNAMED = re.compile(r"^LABEL_([0-9]{1,18})$")
_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.0+)?")
"""A whole number as text; 007 is a code."""


@dataclass(frozen=True)
class Columns:
    """Which column holds what."""

    text: str
    text_pair: str | None
    label: str
    id: str | None

    def __str__(self) -> str:
        texts = self.text if self.text_pair is None else f"{self.text} and {self.text_pair}"
        return f"texts {texts}, labels {self.label}"

    def wanted(self, named_by: str) -> list[Column]:
        """What is asked of a table, see `opened_file`."""
        parts = {"text": self.text, "text_pair": self.text_pair, "label": self.label, "id": self.id}
        return [Column(name, named_by.format(part), True) for part, name in parts.items() if name is not None]


Opened = tuple[str, Columns, Iterator[Line]]
"""What is read: its name, its columns and its records."""
Taken = Callable[[Any], tuple[Any, str]]
"""What makes a label of a cell, or says what is wrong with it."""


def columns_of(present: Sequence[str], names: ColumnParams) -> Columns:
    """The columns that are named, and for the others those of the usual names that are there.

    Where there is none, one whose name differs in case or blanks alone counts; who reads the table remarks on it.
    """
    text, pair, name = names.text, names.text_pair, names.id
    for there in (present, [one for one, count in Counter(map(folded, present)).items() if count == 1]):
        if text is None and pair is None:
            text, pair = next((both for both in PAIRS if set(both) <= set(there)), (None, None))
        text = text or _first(TEXTS, [one for one in there if one not in (pair, names.label)])
        name = name or _first(IDS, there)
        if text is not None:
            break
    return Columns(text or TEXTS[0], pair, names.label or usual_name(present, LABELS), name)


def _first(names: Iterable[str], present: Sequence[str]) -> str | None:
    return next((name for name in names if name in present), None)


def read_examples(
    params: TextsParams, section: str, split: str, regression: bool, reading: Reading, most: int | None = None
) -> Iterator[Example]:
    """The examples of a split, in order.

    Args:
        section: of params.yaml, for messages.
        reading: gets what was read, and by which columns (`layouts`).
        most: of each file at most so many are looked at.

    Raises:
        InputError: what cannot be read; at the end, all that is wrong with texts and labels.
    """
    taken = value_of if regression else class_of
    for opened in _sources(params, section, split, reading):
        yield from usable(opened, taken, reading, most)


def usable(opened: Opened, taken: Taken, reading: Reading, most: int | None = None) -> Iterator[Example]:
    """What `read_examples` gives, of a source that was opened.

    Args:
        taken: `class_of`, or what else makes a label of a cell or says what is wrong.
    """
    source, columns, lines = opened
    reading.layouts[source] = str(columns)
    problems, count = Problems(source, "texts with labels"), 0
    for line in itertools.islice(lines, most):
        count += 1
        if (one := _example(line, columns, taken, problems, reading)) is not None:
            yield one
    problems.refuse()
    if not count:
        raise InputError(
            f"{source} holds no example{without_rows(reading)}: a header and a text with its label are required"
        )


def _sources(params: TextsParams, section: str, split: str, reading: Reading) -> Iterator[Opened]:
    if params.source == "hub":
        classes = (params.columns.label,) if params.columns.label else LABELS
        source, present, lines = hub_lines(params, section, split, classes)
        columns = columns_of(present, params.columns)
        yield source, columns, checked(lines, columns.wanted(stated_by(section)), source, reading)
        return
    key = f"{section}.{split}_path"
    for path in files_of(Path(params.train_path if split == "train" else str(params.dev_path)), key):
        yield opened_file(path, key, params, reading, stated_by(section))


def opened_file(
    path: Path, key: str, params: TextsParams, reading: Reading, named_by: str, *, labelled: bool = True
) -> Opened:
    """A table of texts.

    Args:
        key: what messages call it.
        params: name its columns and their separator.
        named_by: see tables.stated_by.
        labelled: whether a column of labels must be there.
    """
    reading.files += 1
    columns = columns_of(column_names(path, key, params.separator), params.columns)
    wanted = (
        columns.wanted(named_by) if labelled else [one for one in columns.wanted(named_by) if one.name != columns.label]
    )
    return f"{path} ({key})", columns, read_table(path, wanted, key, reading, params.separator, columns.label)


def files_of(path: Path, key: str) -> list[Path]:
    """A file, or the files of a folder in order of their names: all of one known ending.

    Raises:
        InputError: nothing there, other endings, or several.
    """
    files = files_in(path, key)
    tables = [one for one in files if ending_of(one) in ENDINGS]
    if path.is_dir():  # beside other tables it says something of them, as dataset_info.json does
        tables = [one for one in tables if ending_of(one) != ".json"] or tables
    endings = {ending_of(one) for one in tables}
    if len(endings) != 1:
        found = f"{', '.join(sorted(endings))} in one folder" if endings else ", ".join(f.name for f in files[:5])
        raise InputError(
            f"{path}: {key} needs a table ({', '.join(ENDINGS)}), or a folder of tables of one kind: found "
            f"{found or 'nothing'}"
        )
    return tables


def _example(line: Line, columns: Columns, taken: Taken, problems: Problems, reading: Reading) -> Example | None:
    where, values = line
    names = [name for name in (columns.text, columns.text_pair) if name is not None]
    texts = [_text(values.get(name)) for name in names]
    label, wrong = taken(values.get(columns.label))
    if wrong:
        problems.add(wrong, where, values.get(columns.label))
    for name, (_, trouble) in zip(names, texts, strict=True):
        if trouble:
            problems.add(f"{trouble} in the column {name!r}", where)
    if wrong or any(trouble for _, trouble in texts):
        return None
    given = None if columns.id is None else text_of_id(values.get(columns.id), reading)
    return Example(texts[0][0], texts[1][0] if len(texts) > 1 else None, label, None if given is None else str(given))


def _text(value: Any) -> tuple[str, str]:
    """A text, its white space made single blanks; or else what is wrong with it."""
    if not isinstance(value, str):
        return "", "no text" if value is None else "something else than text"
    text = " ".join(value.split())
    try:
        text.encode()
    except UnicodeEncodeError:
        return "", "half a surrogate pair, which is no Unicode text,"
    return text, "" if text else "an empty text"


def class_of(value: Any) -> tuple[str, str]:
    """The name of a class, or else what is wrong."""
    if isinstance(value, bool):
        return str(value).lower(), ""
    if isinstance(value, float) and math.isfinite(value):
        if value != int(value):
            return "", "a label that is a broken number (state regression: true for values)"
        value = int(value)
    if isinstance(value, int):
        return str(value), ""
    name = value.strip() if isinstance(value, str) else ""
    if "." in name:
        name = _meaning(name)
    if not name:
        return "", "a missing label" if isinstance(value, str | float | None) else "a label that is no word or number"
    if len(name) > MAX_LABEL_CHARACTERS or not name.isprintable():
        return "", f"a label that is no name (of up to {MAX_LABEL_CHARACTERS} letters, on one line)"
    return name, ""


def _meaning(name: str) -> str:
    """Return what the names of one class have in common in all files: 1 of 1.0, +1 and LABEL_1, which is what
    transformers calls a class without a name, and true of True."""
    name = _UNNAMED.sub(r"\1", name)
    if _WHOLE.fullmatch(name):
        return str(int(name.partition(".")[0]))
    return name.lower() if name.lower() in ("true", "false") else name


def as_known(names: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Return names of classes -> what `known` calls the same class; a class that is not known keeps its name."""
    by_meaning = {_meaning(name): name for name in reversed(known)}
    return {name: name if name in known else by_meaning.get(_meaning(name), name) for name in names}


def value_of(value: Any) -> tuple[float, str]:
    """A finite number, or else what is wrong."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return 0.0, "a missing value"
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    wrong = not math.isfinite(number) or abs(number) > 1e30
    return number, "a value that is no finite number" if wrong else ""


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of classes sorted: whole numbers by what they count, other names as text."""
    different = set(names)
    whole = all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in different)
    return tuple(sorted(different, key=lambda name: (int(name) if whole else 0, name)))
