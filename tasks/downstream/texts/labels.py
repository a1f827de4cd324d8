"""Labels of texts, read with the parameters of their kind: a class, several labels, or a value of each text."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ipu_model.core.units import shorten
from tasks.downstream.texts.params import ClassificationDataParams
from tasks.downstream.texts.task_table import TextTask
from tasks.params.sections import SEPARATOR_NAMES
from tasks.records.label_forms import (
    SHOWN_LABELS,
    WHOLE,
    NumberReader,
    are_flags,
    is_empty,
    is_object,
    parse_value,
    read_flag_columns,
    read_list,
    read_name,
    sort_classes,
)
from tasks.records.names import find_name_problem
from tasks.records.plausibility import (
    AS_NAMES,
    DROP,
    MAX_DIFFERENT,
    MISSING_NAMES,
    CellLines,
    StandIns,
    find_implausible,
)
from tasks.records.text_files import ProblemList
from tasks.stage.errors import InputError

AS_LISTS = "--label-form lists (data.label_form) reads numbers of labels"


class LabelReader:
    """Reader of the labels of one source: it parses each label, and judges all of them at the end."""

    def __init__(self, task: TextTask, data: object, flags: Sequence[str] = (), *, is_decimal: bool = False) -> None:
        """Start reading.

        Args:
            data: section `data` of the entry.
            flags: labels that lists of 0 and 1 stand for, unless data.labels names them.
            is_decimal: see `NumberReader`.
        """
        self.task, self.data = task, data if isinstance(data, ClassificationDataParams) else ClassificationDataParams()
        self.labels: Sequence[str] = self.data.labels or ()
        self.flags = self.labels or flags
        self.names = Counter[str]()
        self.places = dict[str, str]()
        self.numbers = NumberReader(self.data.label_form, is_decimal=is_decimal)
        self.lines, self.stand_ins = CellLines(), StandIns()
        self.form = ""
        """Form of the first label: names, lists, flags or columns; of GLUE a name or a number."""

    def is_dropped(self, value: object) -> bool:
        """Tell whether a label is missing and its example is to be left out."""
        return self.data.missing_labels == "drop" and (is_empty(value) or self._marks_missing(str(value).strip()))

    def _marks_missing(self, name: str) -> bool:
        missing = name in MISSING_NAMES or (name == "-1" and bool(self.labels))
        return missing and name not in self.labels and self.data.missing_labels != "keep"

    def parse(self, value: object, where: str) -> Any:
        """Return the label in a cell, or in the flags of several columns.

        Raises:
            ValueError: what is wrong with it.
        """
        if self.task.name:
            return self._parse_glue(value)
        if self.task.is_regression:
            number = self.numbers.read(value, where)
            self.stand_ins.add(number, where)
            return number
        names = self._parse_labels(value) if self.task.is_multilabel else [self._parse_class(value)]
        for name in names:
            self.names[name] += 1
            self.places.setdefault(name, where)
        if len(self.names) > MAX_DIFFERENT:
            raise InputError(f"there are more than {MAX_DIFFERENT:,} different labels up to {where}. Check its column")
        return names if self.task.is_multilabel else names[0]

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

    def _parse_class(self, value: object) -> str:
        self.form = self.form or "names"
        if isinstance(value, list):
            raise ValueError("a list of labels (for several labels set multilabel: true, or pass --multilabel)")
        is_name = self.data.label_form == "names"
        if not is_name and isinstance(value, str) and read_list(value) is not None:
            raise ValueError(f"a list in a text: --multilabel reads it as several labels; {AS_NAMES}")
        if not is_name and isinstance(value, str) and is_object(value):
            raise ValueError(
                "an object in a text, as Label Studio writes several choices: write them as a list, which "
                f"--multilabel reads; {AS_NAMES}"
            )
        name = "" if is_empty(value) else value.strip() if is_name and isinstance(value, str) else read_name(value)
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
        named = not any(WHOLE.fullmatch(label) for label in self.labels)
        if named and re.fullmatch("[0-9]{1,9}", name) and int(name) < len(self.labels):
            return self.labels[int(name)]
        raise ValueError(f"a label that is not one of --labels ({', '.join(self.labels)})")

    def _parse_labels(self, value: object) -> list[str]:
        """Return the names of all labels: a list, also in a text; a text with a separator; or label -> 0 or 1."""
        separator = self.data.label_separator
        if isinstance(value, dict):
            self.form = "columns"
            return read_flag_columns(value)
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
            is_vector = self.data.label_form != "lists" and separator is None and len(value) > 1 and are_flags(value)
            self.form = "flags" if is_vector else "lists"
        return self._read_flags(value) if self.form == "flags" else [self._parse_class(item) for item in value]

    def _read_flags(self, value: list[object]) -> list[str]:
        """Return the labels of a list of 0 and 1."""
        if not self.flags:
            raise ValueError(
                f"a list of {len(value)} numbers that are 0 or 1: --labels A,B,... (data.labels) names the labels that "
                f"they are flags of; {AS_LISTS}"
            )
        if not are_flags(value) or len(value) != len(self.flags):
            raise ValueError(
                f"a list that is not one flag, 0 or 1, for each of the {len(self.flags)} labels "
                f"{shorten(self.flags, SHOWN_LABELS)}, as lists of 0 and 1 are read: {AS_LISTS}"
            )
        return [name for name, flag in zip(self.flags, value, strict=True) if flag]

    def describe(self) -> str:
        """Return the form of the labels that were read."""
        if self.task.name or self.task.is_regression:
            return "labels are values" if self.task.is_regression else f"a label is {self.form}"
        names = self.flags if self.form == "flags" else sort_classes(self.names)
        forms = {"flags": "lists of flags of ", "columns": "columns of 0 and 1 of ", "lists": "lists of "}
        return f"labels are {forms.get(self.form, '')}{len(names)} names ({shorten(names, SHOWN_LABELS)})"

    def judge(self, problems: ProblemList, *, is_train: bool) -> None:
        """Add the rules that the labels of the whole source violate to `problems`."""
        if self.numbers.doubtful:
            problems.add(
                "a value such as 1.213, next to whole numbers below 1000: --label-form decimal-comma (data.label_form) "
                "reads its dot as a sign that groups digits (1213), --label-form decimal-point as a decimal point",
                self.numbers.doubtful,
            )
        if self.task.is_regression and self.data.missing_labels != "keep":
            self.stand_ins.refuse(problems)
        if self.task.name or self.task.is_regression:
            return
        self.lines.refuse_rows(self.names.keys(), problems)
        for rule, names in find_implausible(self.names, self.data, is_train=is_train).items():
            for name in names:
                problems.add(rule.problem, self.places[name], name)
