"""Texts with labels from files or the Hub: CSV, TSV, JSON, Parquet; every text and label is checked."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.downstream.texts.params import ColumnParams, TextsParams
from tasks.downstream.texts.tasks import Example
from tasks.plan.named_files import files_in
from tasks.records.parquet import folded
from tasks.records.tables import (
    Choose,
    Column,
    Columns,
    Line,
    hub_lines,
    hub_source,
    read_table,
    text_of_id,
    usual_name,
    without_rows,
)
from tasks.records.text_files import Problems, Reading, ending_of, surrogate_in
from tasks.stage.errors import InputError

TEXT_PARTS = ("text", "text_pair")
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


Taken = Callable[[Any], tuple[Any, str]]
"""What makes a label of a cell, or says what is wrong with it."""


def columns_of(names: ColumnParams, named_by: str, source: str, reading: Reading, *, labelled: bool = True) -> Choose:
    """Return what chooses columns: those that are named, and for the others those of the usual names that are there.

    Where there is none, one whose name differs in case or blanks alone counts; who reads the table remarks on it.

    Args:
        named_by: see tables.stated_by.
        source: what messages call the table.
        reading: gets the choice (`layouts`).
        labelled: whether a column of labels must be there.
    """

    def choose(present: Sequence[str]) -> Columns:
        text, pair, name = names.text, names.text_pair, names.id
        for there in (present, [one for one, count in Counter(map(folded, present)).items() if count == 1]):
            if text is None and pair is None:
                text, pair = next((both for both in PAIRS if set(both) <= set(there)), (None, None))
            text = text or _first(TEXTS, [one for one in there if one not in (pair, names.label)])
            name = name or _first(IDS, there)
            if text is not None:
                break
        label = (names.label or usual_name(present, LABELS)) if labelled else None
        parts = {"text": text or TEXTS[0], "text_pair": pair, "label": label, "id": name}
        texts = " and ".join(filter(None, map(parts.get, TEXT_PARTS)))
        reading.layouts[source] = f"texts {texts}" + (f", labels {label}" if label else "")
        return {part: Column(one, named_by.format(part), True) for part, one in parts.items() if one is not None}

    return choose


def _first(names: Iterable[str], present: Sequence[str]) -> str | None:
    return next((name for name in names if name in present), None)


class OwnTexts(NamedTuple):
    """Texts with labels that an entry names."""

    data: TextsParams
    section: str
    """Of params.yaml, for messages."""
    taken: Taken
    """`class_of` or `value_of`."""
    named_by: str
    """See tables.stated_by."""

    def examples(self, split: str, reading: Reading, most: int | None = None) -> Iterator[Example]:
        """The examples of a split, in order.

        Args:
            reading: gets what was read, and by which columns (`layouts`).
            most: of each file at most so many are looked at.

        Raises:
            InputError: what cannot be read; at the end, all that is wrong with texts and labels.
        """
        if self.data.source == "hub":
            source = hub_source(self.data, split)
            columns = columns_of(self.data.columns, self.named_by, source, reading)
            lines = itertools.islice(hub_lines(self.data, self.section, split, columns, reading), most)
            yield from usable(source, lines, self.taken, reading)
            return
        key = f"{self.section}.{split}_path"
        for path in files_of(self.data.path_of(split), key):
            yield from self.of_file(path, key, reading, most)

    def of_file(
        self, path: Path, key: str, reading: Reading, most: int | None = None, *, labelled: bool = True
    ) -> Iterator[Example]:
        """The examples of a table, with labels or without; otherwise as `examples`.

        Args:
            key: what messages call it.
        """
        reading.files += 1
        source = f"{path} ({key})"
        columns = columns_of(self.data.columns, self.named_by, source, reading, labelled=labelled)
        lines = itertools.islice(read_table(path, columns, key, reading, self.data.separator), most)
        return usable(source, lines, self.taken if labelled else None, reading)


def usable(
    source: str, lines: Iterable[Line], taken: Taken | None, reading: Reading, *, may_be_empty: bool = False
) -> Iterator[Example]:
    """The examples that the records of a table hold; at the end, all that is wrong with texts and labels is refused.

    Args:
        source: what messages call it.
        taken: `class_of`, or what else makes a label of a cell or says what is wrong; None: there are no labels.
        may_be_empty: whether texts may.
    """
    problems, count = Problems(source, "texts with labels"), 0
    for line in lines:
        count += 1
        if (one := _example(line, taken, may_be_empty, problems, reading)) is not None:
            yield one
    problems.refuse()
    if not count:
        raise InputError(
            f"{source} holds no example{without_rows(reading)}: a header and a text with its label are required"
        )


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


def _example(
    line: Line, taken: Taken | None, may_be_empty: bool, problems: Problems, reading: Reading
) -> Example | None:
    where, values, columns = line
    texts = {part: _text(values.get(part), may_be_empty) for part in TEXT_PARTS if part in columns}
    label, wrong = taken(values.get("label")) if taken else (0, "")
    if wrong:
        problems.add(wrong, where, values.get("label"))
    for part, (_, trouble) in texts.items():
        if trouble:
            problems.add(f"{trouble} in the column {columns[part].name!r}", where)
    if wrong or any(trouble for _, trouble in texts.values()):
        return None
    given = text_of_id(values.get("id"), reading)
    first, second = (texts.get(part, (None, ""))[0] for part in TEXT_PARTS)
    return Example(str(first), second, label, None if given is None else str(given))


def _text(value: Any, may_be_empty: bool) -> tuple[str, str]:
    """A text, its white space made single blanks; or else what is wrong with it."""
    if not isinstance(value, str):
        return "", "no text" if value is None else "something else than text"
    text = " ".join(value.split())
    if surrogate_in(text) is not None:
        return "", "half a surrogate pair, which is no Unicode text,"
    return text, "" if text or may_be_empty else "an empty text"


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
