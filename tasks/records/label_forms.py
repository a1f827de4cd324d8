"""Forms of labels: names of classes, numbers and their notation, flags, and lists in texts; names of one class."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ipu_model.core.files import parse_json
from ipu_model.core.units import shorten
from tasks.records.names import SPELLINGS, fold_label
from tasks.stage.errors import InputError

FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
"""Cells of a column that tells whether a text has one label."""
SHOWN_LABELS = 5
SIMILAR = (
    f"labels that differ {SPELLINGS}: --similar-labels fold (data.similar_labels) "
    "makes them one; --similar-labels keep leaves them apart"
)
WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.0+)?")
"""Integer as text; 007 is a code."""
_UNNAMED = re.compile(r"^LABEL_([0-9]{1,18})$")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_COMMA = re.compile(r"[+-]?(?:[0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+)(?:,[0-9]+)?")
"""Number with a decimal comma, in which dots group digits."""
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}\.[0-9]{3}")
_QUOTED = r"'(?:[^'\\]|\\['\"\\])*'|\"(?:[^\"\\]|\\['\"\\])*\""
_ITEM = re.compile(rf"{_QUOTED}|{_NUMBER.pattern}|True|False")
_LIST = re.compile(rf"\[\s*(?:(?:{_ITEM.pattern})(?:\s*,\s*|\s+|(?=\])))*\]")
"""List as Python or NumPy writes it: items between commas or blanks."""


def is_empty(value: Any) -> bool:
    """Tell whether a cell has no value: null, NaN or blank."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def read_name(value: Any) -> str:
    """Return the canonical name of a class in a cell: numbers are those of JSON, 1.0 is 1."""
    if not isinstance(value, str | int | float):
        raise ValueError("a label that is not text or a number")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    name = str(value).lower() if isinstance(value, bool) else str(value).strip()
    return canonical_name(name) if "." in name else name


def read_list(text: str) -> list[Any] | None:
    """Return the list in a text, as JSON, Python or NumPy write it, or None if it is not a list."""
    if isinstance(names := _parse_json(text, "["), list):
        return names
    return [_read_item(item) for item in _ITEM.findall(text)] if _LIST.fullmatch(text.strip()) else None


def is_object(text: str) -> bool:
    """Tell whether a text is an object of JSON."""
    return isinstance(_parse_json(text, "{"), dict)


def is_label_list(cell: Any) -> bool:
    """Tell whether a cell is a list of labels beyond doubt: a list, also as JSON in a text."""
    return isinstance(_parse_json(cell, "[") if isinstance(cell, str) else cell, list)


def _parse_json(text: str, begin: str) -> Any:
    """Return the JSON value in a text that begins so, else None."""
    try:
        return parse_json(text.strip()) if text.lstrip().startswith(begin) else None
    except ValueError:
        return None


def _read_item(item: str) -> Any:
    if item[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", item[1:-1])
    return item == "True" if item in ("True", "False") else float(item)


def are_flags(value: Sequence[Any]) -> bool:
    """Tell whether all items of a list are 0 or 1."""
    return all(isinstance(item, int | float) and item in (0, 1) for item in value)


def read_flag_columns(cells: Mapping[str, Any]) -> list[str]:
    """Return the columns, each named like a label, whose cells are 1.

    Raises:
        ValueError: a cell is neither 0 nor 1.
    """
    flags = {name: FLAGS.get(str(cell).strip().lower()) for name, cell in cells.items()}
    if (wrong := next((name for name, flag in flags.items() if flag is None), None)) is not None:
        raise ValueError(f"a value that is not 0 or 1 in the column {wrong!r}")
    return [name for name, flag in flags.items() if flag]


def canonical_name(name: str) -> str:
    """Return the canonical name of a class: 1 for 1.0, +1 and LABEL_1 (transformers' name of an unnamed class), true
    for True."""
    name = _UNNAMED.sub(r"\1", name)
    if WHOLE.fullmatch(name):
        return str(int(name.partition(".")[0]))
    return name.lower() if name.lower() in ("true", "false") else name


def match_known(names: Iterable[str], known: Sequence[str], *, fold: bool = False) -> dict[str, str]:
    """Return class name -> name of the same class in `known`; unknown classes keep their name.

    If `fold`, names that differ only in case, blanks or normal form are the same.
    """
    meaning = (lambda name: fold_label(canonical_name(name))) if fold else canonical_name
    by_meaning = {meaning(name): name for name in reversed(known)}
    return {name: name if name in known else by_meaning.get(meaning(name), name) for name in names}


def require_same_spelling(data: Any, names: Iterable[str], known: Sequence[str], subject: str, required: str) -> None:
    """Refuse names that only differ in case, blanks or normal form from a known one.

    The parts of the message begin with `subject` and `required`.
    """
    by_fold = {fold_label(name): name for name in known}
    unknown = [name for name, match in match_known(names, known).items() if match not in known]
    if data.similar_labels == "refuse" and (other := [name for name in unknown if fold_label(name) in by_fold]):
        spelled = shorten([by_fold[fold_label(name)] for name in other], SHOWN_LABELS)
        raise InputError(f"{subject} {shorten(other, SHOWN_LABELS)}, {required} {spelled}: {SIMILAR}")


def choose_classes(counts: Mapping[str, int], labels: Sequence[str] | None, *, fold: bool) -> tuple[str, ...]:
    """Return the classes of training examples, in order: that of data.labels, else sorted.

    If `fold`, of names that differ only in case, blanks or normal form, the one with most examples stands for all.
    """
    names = sorted(counts, key=lambda name: -counts[name])
    chosen = {fold_label(name): name for name in reversed(names)}.values() if fold else names
    if labels:
        return tuple(name for name in labels if name in chosen)
    return sort_classes(chosen)


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Return sorted class names: integers by value, other names as text."""
    different = set(names)
    whole = all(_INTEGER.fullmatch(name) for name in different)
    return tuple(sorted(different, key=lambda name: (int(name) if whole else 0, name)))


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


def parse_number(text: str) -> float | None:
    """Return the finite number that a text states, else None: float() also reads 1_5, which may be a name."""
    number = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
    return number if math.isfinite(number) else None


class NumberReader:
    """Reader of the numbers of one source; a dot may group digits (1.213) unless another number rules that out."""

    def __init__(self, form: str, *, is_decimal: bool = False) -> None:
        """Start reading with a notation, data.label_form; `is_decimal`: another split rules out grouping dots."""
        self.form, self.is_decimal = form, is_decimal
        self._grouped, self._has_whole = "", False

    def read(self, value: Any, where: str) -> float:
        """Return the number in a cell.

        Raises:
            ValueError: what is wrong with it.
        """
        if not isinstance(value, str) or not value.strip():
            return parse_value(value)
        text = value.strip()
        if self.form == "decimal-comma":
            if not _COMMA.fullmatch(text):
                raise ValueError("a value that is not a number such as 1.477,42")
            return parse_value(text.replace(".", "").replace(",", "."))
        if "," in text and _COMMA.fullmatch(text):
            raise ValueError(
                "a value with a comma: --label-form decimal-comma (data.label_form) reads 1.477,42 as 1477.42; write "
                "values without the comma if it groups digits"
            )
        number = parse_value(text)
        self._has_whole |= "." not in text
        if _GROUPED.fullmatch(text):
            self._grouped = self._grouped or where
        elif "." in text or abs(number) >= 1000 or "e" in text.lower():
            self.is_decimal = True
        return number

    @property
    def doubtful(self) -> str:
        """Position of the first number whose dot may group digits; empty if there is none."""
        return self._grouped if self.form == "auto" and self._has_whole and not self.is_decimal else ""
