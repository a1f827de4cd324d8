"""Labels of texts as users write them: a class, several labels, or a value; names of classes and their order."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ipu_model.files import parse_json
from tasks.downstream.texts.task_table import TextTask
from tasks.params.sections import SEPARATOR_NAMES

MAX_LABEL_CHARACTERS = 200
FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
"""Cells of a column that tells whether a text has one label."""
_UNNAMED = re.compile(r"^LABEL_([0-9]{1,18})$")
_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.0+)?")
"""Integer as text; 007 is a code."""

LabelParser = Callable[[Any], Any]
"""Function that parses the label in a cell; raises ValueError with a description of what is wrong."""


def label_parser(task: TextTask, separator: str | None = None) -> LabelParser:
    """Return the parser of a task's labels. The labels of a GLUE file must all be numbers or all be class names.

    Args:
        separator: character between several labels in a text; None: they are lists.
    """
    if task.is_multilabel:
        return lambda value: parse_labels(value, separator)
    if not task.name:
        return parse_value if task.is_regression else parse_class
    (low, high), names = task.answers, () if task.is_regression else task.labels
    classes = ", ".join(f"{index} ({name})" for index, name in enumerate(names))
    required = f"one of {classes}" if names else f"a number from {low:g} to {high:g}"
    forms: dict[str, bool] = {}

    def parse(value: Any) -> float:
        is_name = isinstance(value, str) and value.strip() in names
        try:
            number = float(names.index(value.strip())) if is_name else parse_value(value)
        except ValueError:
            number = math.nan
        if not low <= number <= high or (names and not number.is_integer()):
            unlabelled = " (-1 means no label; GLUE's test files cannot be used)" if number == -1 else ""
            raise ValueError(f"a label that is not {required}{unlabelled}")
        if forms.setdefault("first", is_name) != is_name:
            kind = "a name" if is_name else "a number"
            raise ValueError(f"a label that is {kind}, unlike the first: all must be numbers, or all class names")
        return int(number) if names else number

    return parse


def parse_class(value: Any) -> str:
    """Return the name of a class."""
    if isinstance(value, list):
        raise ValueError("a list of labels (for several labels set multilabel: true, or pass --multilabel)")
    if isinstance(value, float) and math.isfinite(value):
        if not value.is_integer():
            raise ValueError("a label that is a fraction (set regression: true for values)")
        value = int(value)
    if not isinstance(value, str | int | float | None):
        raise ValueError("a label that is not text or a number")
    name = str(value).lower() if isinstance(value, int) else value.strip() if isinstance(value, str) else ""
    if "." in name:
        name = _canonical_name(name)
    if not name:
        raise ValueError("a missing label")
    if len(name) > MAX_LABEL_CHARACTERS or not name.isprintable():
        raise ValueError(f"a label that is not a name (up to {MAX_LABEL_CHARACTERS} characters, on one line)")
    return name


def parse_labels(value: Any, separator: str | None) -> list[str]:
    """Return the names of all labels.

    Args:
        value: a list, also as JSON in a text; a text with a separator; or label -> 0 or 1.
    """
    if isinstance(value, dict):
        flags = {name: FLAGS.get(str(cell).strip().lower()) for name, cell in value.items()}
        if (wrong := next((name for name, flag in flags.items() if flag is None), None)) is not None:
            raise ValueError(f"a value that is not 0 or 1 in the column {wrong!r}")
        value = [name for name, flag in flags.items() if flag]
    elif separator is not None:
        separator = SEPARATOR_NAMES.get(separator, separator)
        if not isinstance(value, str):
            raise ValueError(f"labels that are not a text, as label_separator is {separator!r}")
        value = value.split(separator) if value.strip() else []
    elif isinstance(value, str) and value.strip()[:1] + value.strip()[-1:] == "[]":
        try:
            value = parse_json(value)
        except ValueError:
            raise ValueError("a text that is not a JSON list of labels") from None
    if not isinstance(value, list):
        raise ValueError(
            "missing labels ([] means that there is none)"
            if value is None or value == ""
            else "labels that are not a list (set label_separator for a text that names several)"
        )
    return [parse_class(one) for one in value]


def parse_value(value: Any) -> float:
    """Return a finite number."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ValueError("a missing value")
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or abs(number) > 1e30:
        raise ValueError("a value that is not a finite number")
    return number


def _canonical_name(name: str) -> str:
    """Return the canonical name of a class: 1 for 1.0, +1 and LABEL_1 (transformers' name of an unnamed class), true
    for True."""
    name = _UNNAMED.sub(r"\1", name)
    if _WHOLE.fullmatch(name):
        return str(int(name.partition(".")[0]))
    return name.lower() if name.lower() in ("true", "false") else name


def match_known(names: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Return class name -> name of the same class in `known`; unknown classes keep their name."""
    by_meaning = {_canonical_name(name): name for name in reversed(known)}
    return {name: name if name in known else by_meaning.get(_canonical_name(name), name) for name in names}


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Return sorted class names: integers by value, other names as text."""
    different = set(names)
    whole = all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in different)
    return tuple(sorted(different, key=lambda name: (int(name) if whole else 0, name)))
