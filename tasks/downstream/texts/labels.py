"""Labels of texts as users write them: a class, several labels, or a value; names of classes and their order."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ipu_model.core.files import parse_json
from ipu_model.core.units import shorten
from tasks.downstream.texts.params import ClassificationDataParams
from tasks.downstream.texts.task_table import TextTask
from tasks.params.sections import SEPARATOR_NAMES
from tasks.records.csv_files import SEPARATORS
from tasks.records.names import find_name_problem, fold_label
from tasks.records.plausibility import AS_NAMES, DROP, MISSING_NAMES, SIMILAR, find_implausible
from tasks.records.tables import NUMBER, TableRow, parse_number
from tasks.records.text_files import ProblemList
from tasks.stage.errors import InputError

FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
"""Cells of a column that tells whether a text has one label."""
MAX_DIFFERENT, SHOWN_LABELS = 100_000, 5
AS_LISTS = "--label-form lists (data.label_form) reads numbers of labels"
_UNNAMED = re.compile(r"^LABEL_([0-9]{1,18})$")
_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.0+)?")
"""Integer as text; 007 is a code."""
_COMMA = re.compile(r"[+-]?(?:[0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+)(?:,[0-9]+)?")
"""Number with a decimal comma, in which dots group digits."""
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}\.[0-9]{3}")
_QUOTED = r"'(?:[^'\\]|\\['\"\\])*'|\"(?:[^\"\\]|\\['\"\\])*\""
_ITEM = re.compile(rf"{_QUOTED}|{NUMBER}|True|False")
_LIST = re.compile(rf"\[\s*(?:(?:{_ITEM.pattern})(?:\s*,\s*|\s+|(?=\])))*\]")
"""List as Python or NumPy writes it: items between commas or blanks."""


class LabelReader:
    """Reader of the labels of one source: it parses each label, and judges all of them at the end."""

    def __init__(self, task: TextTask, data: Any, flags: Sequence[str] = ()) -> None:
        """Start reading.

        Args:
            data: section `data` of the entry.
            flags: labels that lists of 0 and 1 stand for, unless data.labels names them.
        """
        self.task, self.data = task, data if isinstance(data, ClassificationDataParams) else ClassificationDataParams()
        self.labels: Sequence[str] = self.data.labels or ()
        self.flags = self.labels or flags
        self.names = Counter[str]()
        self.places = dict[str, str]()
        self.grouped = ""
        """Place of the first value such as 1.213, whose dot may group digits; "-": the values rule that out."""
        self.rows = dict[frozenset[str], tuple[str, str]]()
        """Fields at the ends of all lines of a cell -> its place and first line."""
        self.has_whole = False
        """A value without a dot was read."""
        self.form = ""
        """Form of the first label: names, lists, flags or columns; of GLUE a name or a number."""

    def is_dropped(self, value: Any) -> bool:
        """Tell whether a label is missing and its example is to be left out."""
        return self.data.missing_labels == "drop" and (is_empty(value) or self._marks_missing(str(value).strip()))

    def _marks_missing(self, name: str) -> bool:
        missing = name in MISSING_NAMES or (name == "-1" and bool(self.labels))
        return missing and name not in self.labels and self.data.missing_labels != "keep"

    def parse(self, value: Any, where: str) -> Any:
        """Return the label in a cell, or in the flags of several columns.

        Raises:
            ValueError: what is wrong with it.
        """
        if self.task.name:
            return self._parse_glue(value)
        if self.task.is_regression:
            return self._parse_number(value, where) if isinstance(value, str) and value.strip() else parse_value(value)
        found = self._parse_labels(value) if self.task.is_multilabel else [self._parse_class(value)]
        for name in found:
            self.names[name] += 1
            self.places.setdefault(name, where)
        if len(self.names) > MAX_DIFFERENT:
            raise InputError(f"there are more than {MAX_DIFFERENT:,} different labels up to {where}. Check its column")
        return found if self.task.is_multilabel else found[0]

    def _parse_number(self, text: str, where: str) -> float:
        """Return the number in a text, in the notation that data.label_form names."""
        text, form = text.strip(), self.data.label_form
        if form == "decimal-comma":
            if not _COMMA.fullmatch(text):
                raise ValueError("a value that is not a number such as 1.477,42")
            return parse_value(text.replace(".", "").replace(",", "."))
        if "," in text and _COMMA.fullmatch(text):
            raise ValueError(
                "a value with a comma: --label-form decimal-comma (data.label_form) reads 1.477,42 as 1477.42; write "
                "values without the comma if it groups digits"
            )
        number = parse_value(text)
        self.has_whole = self.has_whole or "." not in text
        if _GROUPED.fullmatch(text):
            self.grouped = self.grouped or where
        elif "." in text or abs(number) >= 1000 or "e" in text.lower():
            self.grouped = "-"
        return number

    def _parse_glue(self, value: Any) -> float:
        (low, high), names = self.task.answers, () if self.task.is_regression else self.task.labels
        is_name = isinstance(value, str) and value.strip() in names
        try:
            number = float(names.index(value.strip())) if is_name else parse_value(value)
        except ValueError:
            number = math.nan
        if not low <= number <= high or (names and not number.is_integer()):
            classes = ", ".join(f"{index} ({name})" for index, name in enumerate(names))
            required = f"one of {classes}" if names else f"a number from {low:g} to {high:g}"
            unlabelled = " (-1 means no label; GLUE's test files cannot be used)" if number == -1 else ""
            raise ValueError(f"a label that is not {required}{unlabelled}")
        form = "a name" if is_name else "a number"
        self.form = self.form or form
        if form != self.form:
            raise ValueError(f"a label that is {form}, unlike the first: all must be numbers, or all class names")
        return int(number) if names else number

    def _parse_class(self, value: Any) -> str:
        """Return the name of a class."""
        self.form = self.form or "names"
        if isinstance(value, list):
            raise ValueError("a list of labels (for several labels set multilabel: true, or pass --multilabel)")
        is_name = self.data.label_form == "names"
        if not is_name and isinstance(value, str) and read_list(value) is not None:
            raise ValueError(f"a list in a text: --multilabel reads it as several labels; {AS_NAMES}")
        if not is_name and isinstance(value, str) and _is_object(value):
            raise ValueError(
                "an object in a text, as Label Studio writes several choices: write them as a list, which "
                f"--multilabel reads; {AS_NAMES}"
            )
        name = "" if is_empty(value) else value.strip() if is_name and isinstance(value, str) else _name_cell(value)
        if not name:
            raise ValueError(f"a missing label: {DROP}")
        if self._marks_missing(name):
            raise ValueError(
                f"a label that may stand for a missing one: {DROP}; --missing-labels keep makes it a class"
            )
        if problem := find_name_problem(name):
            raise ValueError(f"a label that {problem}")
        if not self.labels or name in self.labels:
            return name
        named = not any(_WHOLE.fullmatch(label) for label in self.labels)
        if named and re.fullmatch("[0-9]{1,9}", name) and int(name) < len(self.labels):
            return self.labels[int(name)]
        raise ValueError(f"a label that is not one of --labels ({', '.join(self.labels)})")

    def _parse_labels(self, value: Any) -> list[str]:
        """Return the names of all labels: a list, also in a text; a text with a separator; or label -> 0 or 1."""
        separator = self.data.label_separator
        if isinstance(value, dict):
            self.form = "columns"
            return _read_columns(value)
        if separator is not None:
            separator = SEPARATOR_NAMES.get(separator, separator)
            if not isinstance(value, str):
                raise ValueError(f"labels that are not a text, as label_separator is {separator!r}")
            value = value.split(separator) if value.strip() else []
        elif isinstance(value, str) and (items := read_list(value)) is not None:
            value = items
        if not isinstance(value, list):
            raise ValueError(
                f"missing labels ([] means that there is none; {DROP})"
                if is_empty(value)
                else "labels that are not a list (--label-separator reads a text that names several)"
            )
        if not self.form:
            is_vector = self.data.label_form != "lists" and separator is None and len(value) > 1 and _is_flags(value)
            self.form = "flags" if is_vector else "lists"
        return self._read_flags(value) if self.form == "flags" else [self._parse_class(one) for one in value]

    def _read_flags(self, value: list[Any]) -> list[str]:
        """Return the labels of a list of 0 and 1."""
        if not self.flags:
            raise ValueError(
                f"a list of {len(value)} numbers that are 0 or 1: --labels A,B,... (data.labels) names the labels that "
                f"they are flags of; {AS_LISTS}"
            )
        if not _is_flags(value) or len(value) != len(self.flags):
            raise ValueError(
                f"a list that is not one flag, 0 or 1, for each of the {len(self.flags)} labels "
                f"{shorten(self.flags, SHOWN_LABELS)}, as lists of 0 and 1 are read: {AS_LISTS}"
            )
        return [name for name, flag in zip(self.flags, value, strict=True) if flag]

    def note_lines(self, row: TableRow) -> None:
        """Remember the cells of several lines that end, or begin, with the same fields as rows do."""
        for value in row.values.values():
            lines = value.split("\n") if isinstance(value, str) and "\n" in value else []
            for sign in SEPARATORS if len(lines) > 1 and len(self.rows) < MAX_DIFFERENT else ():
                for fields in (
                    {one.strip().rpartition(sign)[2].strip() for one in lines[:-1]},
                    {one.partition(sign)[0].strip() for one in lines[1:] if sign in one},
                ):
                    if 0 < len(fields) <= SHOWN_LABELS:
                        self.rows.setdefault(frozenset(fields), (row.where, lines[0]))

    def describe(self) -> str:
        """Return the form of the labels that were read."""
        if self.task.name or self.task.is_regression:
            return "labels are values" if self.task.is_regression else f"a label is {self.form}"
        names = self.flags if self.form == "flags" else sort_classes(self.names)
        forms = {"flags": "lists of flags of ", "columns": "columns of 0 and 1 of ", "lists": "lists of "}
        return f"labels are {forms.get(self.form, '')}{len(names)} names ({shorten(names, SHOWN_LABELS)})"

    def judge(self, problems: ProblemList, *, is_train: bool) -> None:
        """Add the rules that the labels of the whole source violate to `problems`."""
        if self.grouped not in ("", "-") and self.has_whole and self.data.label_form == "auto":
            problems.add(
                "a value such as 1.213, next to whole numbers below 1000: --label-form decimal-comma (data.label_form) "
                "reads its dot as a sign that groups digits (1213), --label-form decimal-point as a decimal point",
                self.grouped,
            )
        if self.task.name or self.task.is_regression:
            return
        for fields, (where, line) in self.rows.items():
            if fields <= self.names.keys():
                problems.add(
                    "a quoted cell whose lines look like rows: --quoting literal (data.quoting) reads them as rows, "
                    "--quoting enclosing as one cell",
                    where,
                    line,
                )
        for rule, names in find_implausible(self.names, self.data, is_train=is_train).items():
            for name in names:
                problems.add(rule.problem, self.places[name], name)


def is_empty(value: Any) -> bool:
    """Tell whether a cell has no value: null, NaN or blank."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def _name_cell(value: Any) -> str:
    """Return the canonical name of a class in a cell: numbers are those of JSON, 1.0 is 1."""
    if not isinstance(value, str | int | float):
        raise ValueError("a label that is not text or a number")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    name = str(value).lower() if isinstance(value, bool) else str(value).strip()
    return _canonical_name(name) if "." in name else name


def read_list(text: str) -> list[Any] | None:
    """Return the list in a text, as JSON, Python or NumPy write it, or None if it is not a list."""
    text = text.strip()
    if not text.startswith("["):
        return None
    try:
        found = parse_json(text)
        return found if isinstance(found, list) else None
    except ValueError:
        return [_read_item(item) for item in _ITEM.findall(text)] if _LIST.fullmatch(text) else None


def _is_object(text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False


def _read_item(item: str) -> Any:
    if item[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", item[1:-1])
    return item == "True" if item in ("True", "False") else float(item)


def _is_flags(value: Sequence[Any]) -> bool:
    return all(isinstance(one, int | float) and one in (0, 1) for one in value)


def _read_columns(cells: Mapping[str, Any]) -> list[str]:
    flags = {name: FLAGS.get(str(cell).strip().lower()) for name, cell in cells.items()}
    if (wrong := next((name for name, flag in flags.items() if flag is None), None)) is not None:
        raise ValueError(f"a value that is not 0 or 1 in the column {wrong!r}")
    return [name for name, flag in flags.items() if flag]


def is_label_list(cell: Any) -> bool:
    """Tell whether a cell is a list of labels beyond doubt: a list, also as JSON in a text."""
    if isinstance(cell, str) and cell.strip().startswith("["):
        try:
            cell = parse_json(cell)
        except ValueError:
            return False
    return isinstance(cell, list)


def parse_value(value: Any) -> float:
    """Return a finite number. Its digits are ASCII, without the underscores that Python allows.

    Raises:
        ValueError: it is missing, or is not such a number.
    """
    if is_empty(value):
        raise ValueError("a missing value")
    number = parse_number(value) if isinstance(value, str) else None if isinstance(value, bool | list) else float(value)
    if number is None or not math.isfinite(number) or abs(number) > 1e30:
        raise ValueError("a value that is not a finite number")
    return number


def _canonical_name(name: str) -> str:
    """Return the canonical name of a class: 1 for 1.0, +1 and LABEL_1 (transformers' name of an unnamed class), true
    for True."""
    name = _UNNAMED.sub(r"\1", name)
    if _WHOLE.fullmatch(name):
        return str(int(name.partition(".")[0]))
    return name.lower() if name.lower() in ("true", "false") else name


def match_known(names: Iterable[str], known: Sequence[str], *, fold: bool = False) -> dict[str, str]:
    """Return class name -> name of the same class in `known`; unknown classes keep their name.

    Args:
        fold: names that differ only in case, blanks or normal form are the same.
    """
    meaning = (lambda name: fold_label(_canonical_name(name))) if fold else _canonical_name
    by_meaning = {meaning(name): name for name in reversed(known)}
    return {name: name if name in known else by_meaning.get(meaning(name), name) for name in names}


def require_same_spelling(data: Any, names: Iterable[str], known: Sequence[str], found: str, required: str) -> None:
    """Refuse names that only differ in case, blanks or normal form from a known one.

    Args:
        found, required: beginnings of the parts of the message.
    """
    by_fold = {fold_label(name): name for name in known}
    unknown = [name for name, meant in match_known(names, known).items() if meant not in known]
    if data.similar_labels == "refuse" and (other := [name for name in unknown if fold_label(name) in by_fold]):
        spelled = shorten([by_fold[fold_label(name)] for name in other], SHOWN_LABELS)
        raise InputError(f"{found} {shorten(other, SHOWN_LABELS)}, {required} {spelled}: {SIMILAR}")


def choose_classes(counts: Mapping[str, int], labels: Sequence[str] | None, *, fold: bool) -> tuple[str, ...]:
    """Return the classes of training examples, in order: that of data.labels, else sorted.

    Args:
        counts: name -> its number of examples.
        fold: of names that differ only in case, blanks or normal form, the most frequent one stands for all.
    """
    names = sorted(counts, key=lambda name: -counts[name])
    chosen = {fold_label(name): name for name in reversed(names)}.values() if fold else names
    if labels:
        return tuple(name for name in labels if name in chosen)
    return sort_classes(chosen)


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Return sorted class names: integers by value, other names as text."""
    different = set(names)
    whole = all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in different)
    return tuple(sorted(different, key=lambda name: (int(name) if whole else 0, name)))
