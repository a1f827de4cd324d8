"""Questions from SQuAD's JSON or from tables: .csv, .jsonl, .parquet, JSON with one object per question, or a Hub data
set, with SQuAD's columns under any names.

The answers of a row are in one column, as {"text": [...], "answer_start": [...]} or as a list of {"text": ...,
"answer_start": ...}, both also as JSON text; or in two columns, answer_text and answer_start.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ipu_model.files import parse_json
from tasks.downstream.squad.format import (
    CHOICES,
    SquadProblems,
    SquadQuestion,
    parse_file,
    read_answers,
    read_article_records,
    read_flat_records,
    read_id,
    read_text,
    require_valid,
)
from tasks.downstream.squad.params import SquadColumnParams, SquadDataParams
from tasks.records.tables import ENDINGS as TABLES
from tasks.records.tables import Columns, ColumnSpec, TableRow, column_setting, read_table, require_file, select_columns
from tasks.records.text_files import ReadLog, file_suffix
from tasks.stage.errors import InputError

ENDINGS = (".json", *TABLES)
TEXT, START, ANSWERS = "answer_text", "answer_start", "answers"
IMPOSSIBLE = "is_impossible"
MADE = "ids generated from context, question and position, without an id column"
_DATA = "downstream.*.data"
NAMED_BY = column_setting(_DATA)
"""Parameter that messages suggest for another column name."""
_WHOLE = re.compile(r"[+-]?\d+")


def question_columns(names: SquadColumnParams, named_by: str = NAMED_BY) -> Columns:
    """Return part of a question -> its column; unset names default to SQuAD's."""
    always = ("context", "question")
    columns = {
        part: ColumnSpec(name or part, named_by.format(part), part in always or name is not None)
        for part, name in names.model_dump().items()
    }
    return {**columns, IMPOSSIBLE: ColumnSpec(IMPOSSIBLE, _DATA, False)}


def read_records(
    path: Path, key: str, data: SquadDataParams, columns: Columns, problems: SquadProblems
) -> Iterator[TableRow]:
    """Yield the records of a table, of JSON with one object per question, or of SQuAD's articles, which have no
    columns.

    Args:
        key: parameter with the path, for messages.
        data: has the field separator.
        problems: receives problems of articles; its `reading` receives the unused columns.

    Raises:
        InputError: an unreadable file or a missing column.
    """
    problems.reading.files += 1
    if require_file(path, key, ENDINGS, "questions") != ".json":
        return read_table(path, columns, key, problems.reading, data.separator)
    values = parse_file(path, key)
    records = read_flat_records(values, {column.name for part, column in columns.items() if column.name != part})
    if records is None:
        return itertools.starmap(TableRow, read_article_records(values, problems))
    return select_columns(records, columns, problems.source, problems.reading)


def read_question_file(
    path: Path,
    key: str,
    data: SquadDataParams,
    reading: ReadLog,
    named_by: str = NAMED_BY,
    choices: str = CHOICES,
    most: int | None = None,
) -> list[SquadQuestion]:
    """Read the questions of a .json, .csv, .jsonl or .parquet file, including unanswerable ones unless refused.

    Args:
        key: parameter with the path, for messages.
        data: columns, and handling of unanswerable questions.
        reading: receives unused columns and counts of changes.
        most: maximum number of records to read.

    Raises:
        InputError: an unreadable file, a missing column, or invalid questions (all problems in one message).
    """
    problems = SquadProblems(f"{path} ({key})", data.unanswerable, choices, reading)
    lines = read_records(path, key, data, question_columns(data.columns, named_by), problems)
    is_csv = file_suffix(path) == ".csv"
    return parse_questions(itertools.islice(lines, most), data.columns, problems, named_by, numbers_are_text=is_csv)


def parse_questions(
    lines: Iterator[TableRow],
    names: SquadColumnParams,
    problems: SquadProblems,
    named_by: str = NAMED_BY,
    *,
    numbers_are_text: bool = False,
) -> list[SquadQuestion]:
    """Return checked questions from records, whose answers must all have one form.

    Args:
        lines: records read with `wanted_columns(names)`, or of articles.
        names: section `columns` of the data.
        numbers_are_text: parse numbers from text, as in CSV.

    Raises:
        InputError: no records, or invalid questions (all problems in one message).
    """
    rows = _Rows(question_columns(names, named_by), problems, numbers_are_text)
    rows.asks_flat = names.answer_text is not None or names.answer_start is not None
    return require_valid(list(rows.questions(lines)), problems)


class _Rows:
    """Conversion of the records of one file to questions; collects problems."""

    def __init__(self, columns: Columns, problems: SquadProblems, numbers_are_text: bool) -> None:
        self.columns, self.problems, self.reading = columns, problems, problems.reading
        self.numbers_are_text = numbers_are_text
        self.asks_flat = False
        """True if the parameters name two columns of answers."""
        self.contexts: dict[str, str] = {}
        """Distinct contexts; every row has its own copy."""
        self.forms: dict[str, str] = {}
        """Form of answers -> location of its first use."""

    def questions(self, lines: Iterator[TableRow]) -> Iterator[SquadQuestion]:
        flat: bool | None = None
        for line in lines:
            if flat is None:
                flat = bool(line.columns) and self._is_flat(line.values)
            question = self._question(line, flat)
            if question is not None:
                yield question
        if len(self.forms) > 1:
            met = "; ".join(f"{form} ({where})" for form, where in self.forms.items())
            self.problems.add(f"answers have {len(self.forms)} forms, all rows must have the same: {met}")

    def _is_flat(self, parts: Collection[str]) -> bool:
        columns = [self.columns[part] for part in (ANSWERS, TEXT, START)]
        answers, text, start = (one.name for one in columns)
        if not self.asks_flat and ANSWERS in parts:
            self.reading.unused_columns |= {self.columns[part].name for part in (TEXT, START) if part in parts}
            return False
        if {TEXT, START} <= set(parts):
            return True
        whole, words, place = (one.key for one in columns)
        present = [*(self.columns[part].name for part in parts), *sorted(self.reading.unused_columns)]
        raise InputError(
            f"{self.problems.source} has no column {answers!r}, and not both {text!r} and {start!r}; columns are "
            f"{', '.join(present)}. Set {whole}, or {words} and {place}"
        )

    def _question(self, line: TableRow, flat: bool) -> SquadQuestion | None:
        at, row, columns = line
        if columns and "id" not in row:
            row = {**row, "id": self._made_id(row)}
        name = read_id(row, at, self.problems)
        context, wording = (read_text(row, part, at, self.problems) for part in ("context", "question"))
        title = "" if row.get("title") is None else read_text(row, "title", at, self.problems)
        if columns and name is not None and not name.strip():
            self.problems.add(f"{at}.id is empty")
            name = None
        before = self.problems.count
        if columns:
            row = {**row, ANSWERS: self._flat_answers(row, at) if flat else self._answers(row.get(ANSWERS), at)}
        if self.problems.count > before:
            return None
        impossible = self._is_true(row.get(IMPOSSIBLE), at, strict=not columns)
        answers = read_answers(row, impossible, at, self.problems)
        if name is None or context is None or wording is None or title is None or answers is None:
            return None
        return SquadQuestion(name, title, self.contexts.setdefault(context, context), wording, answers)

    def _made_id(self, row: Mapping[str, Any]) -> str:
        """Return an id that depends only on the question and its position in the table."""
        self.reading.counts[MADE] += 1
        place = [str(row.get(part)) for part in ("context", "question")] + [str(self.reading.counts[MADE])]
        return hashlib.sha256(json.dumps(place).encode("ascii")).hexdigest()[:24]

    def _answers(self, value: Any, at: str) -> Any:
        """Return a list of {text, answer_start} from one cell; its items are checked later."""
        form = ""
        if isinstance(value, str) and value.strip():
            value, form = self._parsed(value, at), "JSON text of "
        if value is None or value == "":
            return []
        if isinstance(value, Mapping):
            self.forms.setdefault(f"{form}an object of lists", at)
            return self._paired(value.get("text"), value.get("answer_start"), at)
        if isinstance(value, list) and value:
            self.forms.setdefault(f"{form}a list of objects", at)
        return value

    def _parsed(self, text: str, at: str) -> Any:
        try:
            return parse_json(text)
        except json.JSONDecodeError as error:
            self.problems.add(
                f"{at}.answers is not JSON ({error.msg} at character {error.pos}; Python literals with single quotes "
                "are not supported). Export it with json.dumps, or as Parquet"
            )
        except ValueError as error:
            self.problems.add(f"{at}.answers is not JSON: {error}")
        return None

    def _flat_answers(self, row: Mapping[str, Any], at: str) -> Any:
        text, start = row.get(TEXT), row.get(START)
        if self.numbers_are_text and isinstance(start, str):
            start = int(start) if _WHOLE.fullmatch(start.strip()) else start or None
        if text is None or text == "":
            if start not in (None, -1):
                self.problems.add(f"{at} has answer_start {start!r} but no answer_text")
            return []
        self.forms.setdefault("two columns", at)
        return self._paired(text, start, at)

    def _paired(self, text: Any, start: Any, at: str) -> Any:
        if not isinstance(text, list) and not isinstance(start, list):
            text, start = [text], [start]
        if not (isinstance(text, list) and isinstance(start, list) and len(text) == len(start)):
            counts = [len(one) if isinstance(one, list) else type(one).__name__ for one in (text, start)]
            self.problems.add(f"{at}.answers: text and answer_start must be lists of equal length, found {counts}")
            return []
        return [{"text": one, "answer_start": place} for one, place in zip(text, start, strict=True)]

    def _is_true(self, value: Any, at: str, *, strict: bool) -> bool | None:
        words = {"true": True, "1": True, "false": False, "0": False, "": None, "none": None}
        word = str(value).strip().lower()
        if word not in words or (strict and not isinstance(value, bool | None)):
            self.problems.add(f"{at}.{IMPOSSIBLE} must be true or false, found {value!r}")
        return words.get(word)
