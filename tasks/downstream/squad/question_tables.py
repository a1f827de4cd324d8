"""Reading of SQuAD questions from files or the Hub.

A JSON file has articles with paragraphs and questions, as SQuAD is published, or one object per question, as `datasets`
exports it and run_qa.py reads it. Other tables (.csv, .jsonl, .parquet, a Hub data set) have SQuAD's columns under any
names.

The answers of a row are in one column, as {"text": [...], "answer_start": [...]} or as a list of {"text": ...,
"answer_start": ...}, both also as JSON text; or in two columns, answer_text and answer_start. Numeric ids are accepted
and spaces around answers are stripped; both are counted.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_model.files import parse_json
from tasks.downstream.squad.format import CHOICES, ReferenceAnswer, SquadQuestion, require_valid
from tasks.records.json_files import read_objects
from tasks.records.tables import ENDINGS as TABLES
from tasks.records.tables import (
    Columns,
    ColumnSpec,
    Records,
    RecordSpec,
    TableRow,
    column_setting,
    make_column,
    open_file,
    select_columns,
)
from tasks.records.text_files import NUMERIC_IDS, ProblemList, ReadLog, find_text_problem
from tasks.stage.errors import InputError
from tasks.stage.memory import require_memory

if TYPE_CHECKING:
    from tasks.downstream.squad.params import SquadColumnParams, SquadDataParams

ENDINGS = (".json", *TABLES)
TEXT, START, ANSWERS = "answer_text", "answer_start", "answers"
PARTS = ("id", "title", "context", "question", ANSWERS, TEXT, START)
"""Parts of a question."""
IMPOSSIBLE = "is_impossible"
MADE = "ids generated from context, question and position, without an id column"
_DATA = "downstream.*.data"
NAMED_BY = column_setting(_DATA)
"""Parameter that messages suggest for another column name."""
MEMORY_PER_BYTE = 3
"""Bytes of memory per byte of a large JSON file of questions, which need about two."""
_WHOLE = re.compile(r"[+-]?\d+")
_WORDS = {"true": True, "1": True, "false": False, "0": False, "": None, "none": None}


def question_spec(names: SquadColumnParams, named_by: str = NAMED_BY, parts: Sequence[str] = PARTS) -> RecordSpec:
    """Return what to read; unset names default to SQuAD's.

    Args:
        parts: parts of a question to read.
    """
    columns = {
        part: make_column(
            getattr(names, part), (part,), named_by.format(part), required=part in ("context", "question")
        )
        for part in parts
    }
    if ANSWERS in parts:
        columns[IMPOSSIBLE] = ColumnSpec((IMPOSSIBLE,), _DATA, False)
    return RecordSpec(
        "questions", [columns], ENDINGS, {".json": functools.partial(read_json_questions, columns=columns)}
    )


def read_json_questions(
    path: Path, key: str, reading: ReadLog, problems: ProblemList, *, columns: Columns
) -> Iterator[TableRow]:
    """Yield the questions of a JSON file, in articles or one object each."""
    objects = read_objects(path, key, reading)
    if (first := next(objects, None)) is None:
        return iter(())
    objects = itertools.chain([first], objects)
    if "paragraphs" not in first[1]:
        return select_columns(objects, [columns], problems.source, reading)
    return itertools.chain.from_iterable(_read_article(where, one, problems) for where, one in objects)


def _read_article(at: str, article: Mapping[str, Any], problems: ProblemList) -> Iterator[TableRow]:
    for paragraph, where in list_objects(article, "paragraphs", at, problems):
        for qa, place in list_objects(paragraph, "qas", where, problems):
            yield TableRow(place, {"title": article.get("title"), **paragraph, **qa})


def list_objects(
    parent: Mapping[str, Any], key: str, at: str, problems: ProblemList
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (object, its path) of the list `parent[key]`; add what is wrong to `problems`."""
    items = parent.get(key)
    if not isinstance(items, list):
        problems.add(f"{key} is not a list" if key in parent else f"{key} is missing", at, *([items] * (key in parent)))
        return
    for index, item in enumerate(items):
        if isinstance(item, dict):
            yield item, f"{at}.{key}[{index}]"
        else:
            problems.add(f"an item of {key} is not an object", f"{at}.{key}[{index}]", item)


def read_text(parent: Mapping[str, Any], key: str, at: str, problems: ProblemList) -> str | None:
    """Return the text `parent[key]`, or None after adding a problem."""
    value = parent.get(key)
    if problem := find_text_problem(value) if key in parent else "is missing":
        problems.add(f"{key} {problem}", at, value if key in parent else None)
    return None if problem else str(value)


def read_id(parent: Mapping[str, Any], at: str, problems: ProblemList, reading: ReadLog) -> str | None:
    """Return the id `parent["id"]`, integers as text, or None after adding a problem."""
    if type(parent.get("id")) is int:
        reading.counts[NUMERIC_IDS] += 1
        return str(parent["id"])
    return read_text(parent, "id", at, problems)


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
        path: the file.
        key: parameter with the path, for messages.
        data: columns, and handling of unanswerable questions.
        reading: receives unused columns and counts of changes.
        named_by: setting that messages suggest for another column name.
        choices: suggestion for refused questions without an answer.
        most: maximum number of records to read.

    Raises:
        InputError: an unreadable file, a missing column, or invalid questions (all problems in one message).
    """
    if path.suffix.lower() == ".json" and path.is_file():
        advice = "split it, or save it as .jsonl or .parquet"
        require_memory(f"{path} ({key})", path.stat().st_size, MEMORY_PER_BYTE, advice)
    records = open_file(path, key, question_spec(data.columns, named_by), reading, data.separator)
    first = records._replace(rows=itertools.islice(records.rows, most))
    return parse_questions(first, data, reading, named_by, choices)


def parse_questions(
    records: Records, data: SquadDataParams, reading: ReadLog, named_by: str = NAMED_BY, choices: str = CHOICES
) -> list[SquadQuestion]:
    """Return checked questions from records of `question_spec`, whose answers must all have one form.

    Raises:
        InputError: no records, or invalid questions (all problems in one message).
    """
    parser = _QuestionParser(data, records, reading, named_by)
    return require_valid(list(parser.questions(records.rows)), records.problems, data.unanswerable, choices, reading)


class _QuestionParser:
    """Conversion of the records of one source to questions; collects problems."""

    def __init__(self, data: SquadDataParams, records: Records, reading: ReadLog, named_by: str) -> None:
        self.data, self.reading, self.named_by = data, reading, named_by
        self.problems, self.is_text = records.problems, records.is_text
        self.contexts: dict[str, str] = {}
        """Distinct contexts; every row has its own copy."""
        self.forms: dict[str, str] = {}
        """Form of answers -> location of its first use."""

    def questions(self, rows: Iterable[TableRow]) -> Iterator[SquadQuestion]:
        flat: bool | None = None
        for row in rows:
            flat = self._is_flat(row) if flat is None else flat
            if (question := self._question(row, flat)) is not None:
                yield question
        if len(self.forms) > 1:
            kind = f"answers have {len(self.forms)} forms, all rows must have the same"
            for form, where in self.forms.items():
                self.problems.add(kind, f"{form} ({where})")

    def _is_flat(self, row: TableRow) -> bool:
        """Tell whether answers are in two columns."""
        names, columns = row.names, self.data.columns
        if not names:
            return False
        if ANSWERS in names and columns.answer_text is None and columns.answer_start is None:
            self.reading.unused_columns |= {names[part] for part in (TEXT, START) if part in names}
            return False
        if {TEXT, START} <= set(names):
            return True
        whole, text, start = (getattr(columns, part) or part for part in (ANSWERS, TEXT, START))
        keys = [self.named_by.format(part) for part in (ANSWERS, TEXT, START)]
        raise InputError(
            f"{self.problems.source} has no column {whole!r}, and not both {text!r} and {start!r}; columns are "
            f"{', '.join([*names.values(), *sorted(self.reading.unused_columns)])}. Set {keys[0]}, or {keys[1]} and "
            f"{keys[2]}"
        )

    def _question(self, row: TableRow, flat: bool) -> SquadQuestion | None:
        at, values, is_table = row.where, row.values, bool(row.names)
        before = self.problems.count
        if is_table:
            answers = self._flat_answers(values, at) if flat else self._answers(values.get(ANSWERS), at)
            values = {"id": self._make_id(values) if "id" not in values else "", **values, ANSWERS: answers}
        name = read_id(values, at, self.problems, self.reading)
        context, wording = (read_text(values, part, at, self.problems) for part in ("context", "question"))
        title = "" if values.get("title") is None else read_text(values, "title", at, self.problems)
        if is_table and name is not None and not name.strip():
            self.problems.add("id is empty", at)
        references = self._references(values, at, strict=not is_table)
        if self.problems.count > before or name is None or context is None or wording is None or title is None:
            return None
        return SquadQuestion(name, title, self.contexts.setdefault(context, context), wording, references)

    def _make_id(self, values: Mapping[str, Any]) -> str:
        """Return an id that depends only on the question and its position in the table."""
        self.reading.counts[MADE] += 1
        place = [str(values.get(part)) for part in ("context", "question")] + [str(self.reading.counts[MADE])]
        return hashlib.sha256(json.dumps(place).encode("ascii")).hexdigest()[:24]

    def _answers(self, value: Any, at: str) -> Any:
        """Return a list of {text, answer_start} from one cell; its items are checked later."""
        form = ""
        if isinstance(value, str) and value.strip():
            try:
                value, form = parse_json(value), "JSON text of "
            except ValueError as error:
                advice = "Python literals with single quotes are not supported: use json.dumps, or Parquet"
                self.problems.add(f"answers is not JSON ({advice})", f"{at}: {error}")
                return []
        if value is None or value == "":
            return []
        if isinstance(value, Mapping):
            self.forms.setdefault(f"{form}an object of lists", at)
            return self._pair(value.get("text"), value.get(START), at)
        if isinstance(value, list) and value:
            self.forms.setdefault(f"{form}a list of objects", at)
        return value

    def _flat_answers(self, values: Mapping[str, Any], at: str) -> Any:
        text, start = values.get(TEXT), values.get(START)
        if self.is_text and isinstance(start, str):
            start = int(start) if _WHOLE.fullmatch(start.strip()) else start or None
        if text is None or text == "":
            if start not in (None, -1):
                self.problems.add("answer_start without answer_text", at, start)
            return []
        self.forms.setdefault("two columns", at)
        return self._pair(text, start, at)

    def _pair(self, text: Any, start: Any, at: str) -> Any:
        if not isinstance(text, list) and not isinstance(start, list):
            text, start = [text], [start]
        if not (isinstance(text, list) and isinstance(start, list) and len(text) == len(start)):
            counts = [len(one) if isinstance(one, list) else type(one).__name__ for one in (text, start)]
            self.problems.add("text and answer_start are not lists of equal length", at, counts)
            return []
        return [{"text": one, START: place} for one, place in zip(text, start, strict=True)]

    def _references(self, values: Mapping[str, Any], at: str, *, strict: bool) -> tuple[ReferenceAnswer, ...]:
        """Return the answers; add what is wrong with them to the problems."""
        stated = values.get(IMPOSSIBLE)
        word = str(stated).strip().lower()
        if word not in _WORDS or (strict and not isinstance(stated, bool | None)):
            self.problems.add(f"{IMPOSSIBLE} is not true or false", at, stated)
        impossible = _WORDS.get(word)
        if impossible is not None and impossible == bool(values.get(ANSWERS)) and self.data.unanswerable != "refuse":
            kind = "is_impossible: true and an answer, or false and no answer; correct one of the two"
            self.problems.add(kind, repr(values.get("id")))
        if impossible:
            return ()
        answers = []
        for answer, place in list_objects(values, ANSWERS, at, self.problems):
            text, start = read_text(answer, "text", place, self.problems), answer.get(START)
            if START not in answer:
                self.problems.add(f"{START} is missing", place)
            elif type(start) is not int:
                self.problems.add(f"{START} is not an integer", place, start)
            elif text is not None:
                answers.append(ReferenceAnswer(text, start))
        return tuple(answers)
