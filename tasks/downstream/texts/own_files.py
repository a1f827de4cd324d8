"""Reading of labelled texts from files or the Hub: CSV, TSV, JSON, Parquet; every text and label is checked."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.downstream.texts.params import ClassificationColumnParams, ClassificationDataParams
from tasks.downstream.texts.task_table import TextExample
from tasks.plan.named_files import list_files
from tasks.records.parquet import fold_name
from tasks.records.tables import (
    Columns,
    ColumnSpec,
    Selector,
    TableRow,
    convert_id,
    hub_split_name,
    list_empty,
    pick_usual_name,
    read_hub_rows,
    read_table,
)
from tasks.records.text_files import ProblemList, ReadLog, file_suffix, find_surrogate
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
"""Default columns of a pair of texts."""
TEXTS = ("text", "sentence", "review", "comment", "content", "question", "sentence1", "premise")
LABELS = ("label", "labels", "class", "category", "target", "score", "value")
IDS = ("id", "idx")
MAX_LABEL_CHARACTERS = 200
_UNNAMED = re.compile(r"^LABEL_([0-9]{1,18})$")
_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.0+)?")
"""Integer as text; 007 is a code."""


LabelParser = Callable[[Any], tuple[Any, str]]
"""Function that parses the label in a cell; returns it and a description of what is wrong."""


def column_chooser(
    names: ClassificationColumnParams, named_by: str, source: str, reading: ReadLog, *, labelled: bool = True
) -> Selector:
    """Return a function that chooses columns: those set in the parameters, else those with usual names.

    Names that differ only in case or spaces also match; the reader of the table adds a remark.

    Args:
        reading: receives the choice (`layouts`).
        labelled: require a column of labels.
    """

    def choose(present: Sequence[str]) -> Columns:
        text, pair, name = names.text, names.text_pair, names.id
        for there in (present, [one for one, count in Counter(map(fold_name, present)).items() if count == 1]):
            if text is None and pair is None:
                text, pair = next((both for both in PAIRS if set(both) <= set(there)), (None, None))
            text = text or _first(TEXTS, [one for one in there if one not in (pair, names.label)])
            name = name or _first(IDS, there)
            if text is not None:
                break
        label = (names.label or pick_usual_name(present, LABELS)) if labelled else None
        parts = {"text": text or TEXTS[0], "text_pair": pair, "label": label, "id": name}
        texts = " and ".join(filter(None, map(parts.get, TEXT_PARTS)))
        reading.layouts[source] = f"texts {texts}" + (f", labels {label}" if label else "")
        return {part: ColumnSpec(one, named_by.format(part), True) for part, one in parts.items() if one is not None}

    return choose


def _first(names: Iterable[str], present: Sequence[str]) -> str | None:
    return next((name for name in names if name in present), None)


class OwnTextsReader(NamedTuple):
    """Reader of an entry's labelled texts."""

    data: ClassificationDataParams
    section: str
    """Section of params.yaml, for messages."""
    taken: LabelParser
    """`parse_class` or `parse_value`."""
    named_by: str
    """See tables.stated_by."""

    def examples(self, split: str, reading: ReadLog, most: int | None = None) -> Iterator[TextExample]:
        """Yield the examples of a split, in order.

        Args:
            reading: receives counts and the chosen columns (`layouts`).
            most: maximum number of examples to read from each file.

        Raises:
            InputError: an unreadable file; at the end, all problems with texts and labels.
        """
        if self.data.source == "hub":
            source = hub_split_name(self.data, split)
            columns = column_chooser(self.data.columns, self.named_by, source, reading)
            lines = itertools.islice(read_hub_rows(self.data, self.section, split, columns, reading), most)
            yield from read_valid_texts(source, lines, self.taken, reading)
            return
        key = f"{self.section}.{split}_path"
        for path in list_tables(self.data.path_of(split), key):
            yield from self.of_file(path, key, reading, most)

    def of_file(
        self, path: Path, key: str, reading: ReadLog, most: int | None = None, *, labelled: bool = True
    ) -> Iterator[TextExample]:
        """Yield the examples of a table, with or without labels; otherwise as `examples`.

        Args:
            key: name of the file in messages.
        """
        reading.files += 1
        source = f"{path} ({key})"
        columns = column_chooser(self.data.columns, self.named_by, source, reading, labelled=labelled)
        lines = itertools.islice(read_table(path, columns, key, reading, self.data.separator), most)
        return read_valid_texts(source, lines, self.taken if labelled else None, reading)


def read_valid_texts(
    source: str, lines: Iterable[TableRow], taken: LabelParser | None, reading: ReadLog, *, may_be_empty: bool = False
) -> Iterator[TextExample]:
    """Yield the examples of a table; at the end, refuse all problems with texts and labels.

    Args:
        taken: parses a label, see `LabelParser`; None: there are no labels.
        may_be_empty: allow empty texts.
    """
    problems, count = ProblemList(source, "texts with labels"), 0
    for line in lines:
        count += 1
        if (one := _example(line, taken, may_be_empty, problems, reading)) is not None:
            yield one
    problems.refuse()
    if not count:
        raise InputError(
            f"{source} contains no example{list_empty(reading)}. A header and rows with a text and its label are "
            "required"
        )


def list_tables(path: Path, key: str) -> list[Path]:
    """Return a file, or the files of a folder sorted by name, which must have one known extension.

    Raises:
        InputError: no file, unknown extensions, or several.
    """
    files = list_files(path, key)
    tables = [one for one in files if file_suffix(one) in ENDINGS]
    if path.is_dir():  # next to other tables it is metadata, such as dataset_info.json
        tables = [one for one in tables if file_suffix(one) != ".json"] or tables
    endings = {file_suffix(one) for one in tables}
    if len(endings) != 1:
        found = f"{', '.join(sorted(endings))} in one folder" if endings else ", ".join(f.name for f in files[:5])
        raise InputError(
            f"{path}: {key} must be a table ({', '.join(ENDINGS)}) or a folder of tables of one kind; found "
            f"{found or 'nothing'}"
        )
    return tables


def _example(
    line: TableRow, taken: LabelParser | None, may_be_empty: bool, problems: ProblemList, reading: ReadLog
) -> TextExample | None:
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
    given = convert_id(values.get("id"), reading)
    first, second = (texts.get(part, (None, ""))[0] for part in TEXT_PARTS)
    return TextExample(str(first), second, label, None if given is None else str(given))


def _text(value: Any, may_be_empty: bool) -> tuple[str, str]:
    """Return a text with collapsed white space, and what is wrong with it or an empty string."""
    if not isinstance(value, str):
        return "", "no text" if value is None else "a value that is not text"
    text = " ".join(value.split())
    if find_surrogate(text) is not None:
        return "", "half a surrogate pair (invalid Unicode)"
    return text, "" if text or may_be_empty else "an empty text"


def parse_class(value: Any) -> tuple[str, str]:
    """Return the name of a class, and what is wrong with it or an empty string."""
    if isinstance(value, bool):
        return str(value).lower(), ""
    if isinstance(value, float) and math.isfinite(value):
        if value != int(value):
            return "", "a label that is a fraction (set regression: true for values)"
        value = int(value)
    if isinstance(value, int):
        return str(value), ""
    name = value.strip() if isinstance(value, str) else ""
    if "." in name:
        name = _meaning(name)
    if not name:
        return "", "a missing label" if isinstance(
            value, str | float | None
        ) else "a label that is not text or a number"
    if len(name) > MAX_LABEL_CHARACTERS or not name.isprintable():
        return "", f"a label that is not a name (up to {MAX_LABEL_CHARACTERS} characters, on one line)"
    return name, ""


def _meaning(name: str) -> str:
    """Return the canonical name of a class: 1 for 1.0, +1 and LABEL_1 (transformers' name of an unnamed class), true
    for True."""
    name = _UNNAMED.sub(r"\1", name)
    if _WHOLE.fullmatch(name):
        return str(int(name.partition(".")[0]))
    return name.lower() if name.lower() in ("true", "false") else name


def match_known(names: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Return class name -> name of the same class in `known`; unknown classes keep their name."""
    by_meaning = {_meaning(name): name for name in reversed(known)}
    return {name: name if name in known else by_meaning.get(_meaning(name), name) for name in names}


def parse_value(value: Any) -> tuple[float, str]:
    """Return a finite number, and what is wrong with it or an empty string."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return 0.0, "a missing value"
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    wrong = not math.isfinite(number) or abs(number) > 1e30
    return number, "a value that is not a finite number" if wrong else ""


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Return sorted class names: integers by value, other names as text."""
    different = set(names)
    whole = all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in different)
    return tuple(sorted(different, key=lambda name: (int(name) if whole else 0, name)))
