"""Reading of SQuAD questions from files or the Hub, and checks of them.

A JSON file has articles with paragraphs and questions, as SQuAD is published, or one object per question, as `datasets`
exports it and run_qa.py reads it. Other tables (.csv, .jsonl, .parquet, a Hub data set) have SQuAD's columns under any
names.

The answers of a row are in one column, as {"text": [...], "answer_start": [...]} or as a list of {"text": ...,
"answer_start": ...}, both also as JSON text; or in two columns, answer_text and answer_start. Numeric ids are accepted,
spaces around answers are stripped, and answers next to their place are moved if no other reading is possible; all are
counted. All problems of a source are reported in one message.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ipu_model.core.files import parse_json
from tasks.records.answer_places import MOVED, NOTED_SHARE, ReferenceAnswer, count_utf16, describe_place, find_place
from tasks.records.interpretation import NUMERIC_IDS, Interpretation
from tasks.records.json_files import read_objects
from tasks.records.label_forms import parse_number
from tasks.records.parquet import read_batches
from tasks.records.tables import ENDINGS as TABLES
from tasks.records.tables import (
    JSON_FORMATS,
    SPLIT,
    SPLIT_COLUMN,
    Columns,
    ColumnSpec,
    Records,
    RecordSpec,
    TableRow,
    column_setting,
    make_column,
    open_file,
    select_columns,
    table_form,
)
from tasks.records.text_files import ProblemList, find_text_problem, refuse_empty
from tasks.stage.errors import InputError
from tasks.stage.memory import require_memory

if TYPE_CHECKING:
    from tasks.downstream.squad.params import SquadColumnParams, SquadDataParams

ENDINGS = (".json", *TABLES)
TEXT, START, ANSWERS = "answer_text", "answer_start", "answers"
PARTS = ("id", "title", "context", "question", ANSWERS, TEXT, START)
"""Parts of a question."""
IMPOSSIBLE = "is_impossible"
MADE = "ids taken from the position, without an id column"
MISPLACED = "answers not at answer_start, dropped"
WITHOUT_PLACE = "questions dropped with their misplaced answers"
USED, DROPPED = "questions without an answer, used", "questions without an answer, dropped"
ARTICLES, LISTED = "SQuAD JSON, UTF-8", "[{text, answer_start}, ...]"
SECTION = "data"
"""Section of an entry, in messages of functions that read questions for any entry, or for none."""
NAMED_BY = column_setting(SECTION)
"""Parameter that messages suggest for another column name."""
UNANSWERABLE = f"{SECTION}.unanswerable"
CHOICES = (
    f"--unanswerable use ({UNANSWERABLE}) lets the model return no answer; --unanswerable drop skips such questions"
)
"""Suggestion for refused questions without an answer."""
MISPLACED_ANSWERS = f"{SECTION}.misplaced_answers"
NOT_IN_PLACE = (
    "an answer is not at answer_start; correct it, or drop such answers with --misplaced-answers drop "
    f"({MISPLACED_ANSWERS}), which needs some that are at their place"
)
SCORED = "the file on the command line"
MEMORY_PER_BYTE = 3
"""Bytes of memory per byte of a large JSON file of questions, which need about two."""
OF_A_BYTE, FREE_CHARACTERS = 32, 1 << 20
"""Bytes of memory per byte of text to build and predict its windows, and the characters from which on it is checked: 21
MB of English needed 27 bytes each."""
READ_AT_ONCE = 1024
_WORDS = {"true": True, "1": True, "false": False, "0": False, "": None, "none": None}


class SquadQuestion(NamedTuple):
    """SQuAD question with its context and reference answers; no answers if the context has none."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[ReferenceAnswer, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of the reference answers."""
        return tuple(answer.text for answer in self.answers)


def question_spec(names: SquadColumnParams, named_by: str = NAMED_BY, parts: Sequence[str] = PARTS) -> RecordSpec:
    """Return what to read of these parts of a question; unset names default to SQuAD's."""
    columns = {
        part: make_column(
            getattr(names, part), (part,), named_by.format(part), required=part in ("context", "question")
        )
        for part in parts
    }
    if ANSWERS in parts:
        columns |= {IMPOSSIBLE: ColumnSpec((IMPOSSIBLE,), SECTION, False), SPLIT: SPLIT_COLUMN}
    return RecordSpec(
        "questions", [columns], ENDINGS, {".json": functools.partial(read_json_questions, columns=columns)}
    )


def read_json_questions(
    path: Path, key: str, reading: Interpretation, problems: ProblemList, *, columns: Columns
) -> Iterator[TableRow]:
    """Yield the questions of a JSON file, in articles or one object each."""
    objects = read_objects(path, key, reading)
    if (first := next(objects, None)) is None:
        return iter(())
    objects = itertools.chain([first], objects)
    is_flat = "paragraphs" not in first[1]
    reading.formats[JSON_FORMATS[0] if is_flat else ARTICLES] += 1
    if is_flat:
        return select_columns(objects, [columns], problems.source, reading)
    return itertools.chain.from_iterable(_read_article(where, article, problems) for where, article in objects)


def _read_article(at: str, article: Mapping[str, object], problems: ProblemList) -> Iterator[TableRow]:
    for paragraph, where in list_objects(article, "paragraphs", at, problems):
        for qa, location in list_objects(paragraph, "qas", where, problems):
            yield TableRow(location, {"title": article.get("title"), **paragraph, **qa})


def list_objects(
    parent: Mapping[str, object], key: str, at: str, problems: ProblemList
) -> Iterator[tuple[dict[str, object], str]]:
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


def read_text(
    parent: Mapping[str, object], key: str, at: str, problems: ProblemList, *, filled: bool = False
) -> str | None:
    """Return the text `parent[key]`, or None after adding a problem; a blank text is one if `filled`."""
    value = parent.get(key)
    if problem := find_text_problem(value) if key in parent else "is missing":
        problems.add(f"{key} {problem}", at, value if key in parent else None)
        return None
    if filled and not str(value).strip():
        problems.add(f"{key} is empty", at)
        return None
    return str(value)


def read_id(
    parent: Mapping[str, object], at: str, problems: ProblemList, reading: Interpretation, *, filled: bool = False
) -> str | None:
    """Return the id `parent["id"]`, integers as text, or None after adding a problem."""
    if type(parent.get("id")) is int:
        reading.count(NUMERIC_IDS, at)
        return str(parent["id"])
    return read_text(parent, "id", at, problems, filled=filled)


def read_question_file(
    path: Path,
    key: str,
    data: SquadDataParams,
    reading: Interpretation,
    named_by: str = NAMED_BY,
    choices: str = CHOICES,
    most: int | None = None,
) -> list[SquadQuestion]:
    """Read the questions of a .json, .csv, .jsonl or .parquet file, including unanswerable ones unless refused.

    Args:
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
    records = open_file(path, key, question_spec(data.columns, named_by), reading, table_form(data))
    return QuestionParser(records, data, reading, named_by, choices).parse(most)


def _cuts_word(context: str, answer: ReferenceAnswer) -> bool:
    """Tell whether an answer begins or ends inside a word of a script that has capitals, and so blanks."""
    ends = (answer.answer_start, answer.answer_start + len(answer.text))
    return any(at and all(map(_has_case, context[at - 1 : at + 1])) and at < len(context) for at in ends)


def _has_case(character: str) -> bool:
    return character.islower() or character.isupper()


class QuestionParser:
    """Conversion of the records of one source, of `question_spec`, to questions; collects problems."""

    def __init__(
        self,
        records: Records,
        data: SquadDataParams,
        reading: Interpretation,
        named_by: str = NAMED_BY,
        choices: str = CHOICES,
    ) -> None:
        """Start reading; for the arguments see `read_question_file`."""
        self.records, self.data, self.reading, self.named_by, self.choices = records, data, reading, named_by, choices
        self.problems = records.problems
        self.contexts: dict[str, str] = {}
        """Distinct contexts; every row has its own copy."""
        self.ids: dict[str, str] = {}
        """Id -> position of its question."""
        self.form = ""
        """Form of the answers."""

    def parse(self, most: int | None = None) -> list[SquadQuestion]:
        """Return the checked questions of at most this many records, with stripped answers at their places.

        Raises:
            InputError: no records, or invalid questions (all problems in one message).
        """
        rows, source = itertools.islice(self.records.rows, most), self.problems.source
        parsed = [result for row in rows if (result := self.question(row)) is not None]
        questions = self.place_answers(parsed)
        self.problems.refuse()
        if not parsed:
            raise InputError(f"{source} contains no questions")
        if not questions and most is None:
            what, advice = MISPLACED_ANSWERS, "Correct answer_start"
            if self.reading.counts[DROPPED]:
                what, advice = UNANSWERABLE, "Set it to use"
            raise InputError(
                f"none of {len(parsed):,} questions has an answer at its place, and {what} drops them. {advice}"
            )
        longest = max((question for _, question in parsed), key=lambda question: len(question.context))
        require_room_for_text(f"{source}: the context of question {longest.id!r}", longest.context)
        return questions

    def question(self, row: TableRow) -> tuple[str, SquadQuestion] | None:
        """Return the question of a record and its position, or None after adding its problems.

        Its answers are as the record states them.
        """
        at, values, problems = row.where, row.values, self.problems
        before, has_id = problems.count, "id" in values or not row.names
        if row.names:
            answers = self._flat_answers(values, at) if self._is_flat(row) else self._answers(row)
            values = {"id": at, **values, ANSWERS: answers}
            self.reading.count(MADE, at, not has_id)
        elif isinstance(record := values.get(ANSWERS), Mapping):
            values = {**values, ANSWERS: self._pair(record.get("text"), record.get(START), at)}
        name = read_id(values, at, problems, self.reading, filled=True)
        context, wording = (read_text(values, part, at, problems, filled=True) for part in ("context", "question"))
        title = "" if values.get("title") is None else read_text(values, "title", at, problems)
        references = self._references(values, at, strict=not row.names)
        if name is None or context is None or wording is None or title is None or problems.count > before:
            return None
        if not references and self.data.unanswerable == "refuse":
            kind = f"no answer (is_impossible: true, or an empty list), as in SQuAD 2.0; {self.choices}"
            problems.add(kind, repr(name))
        if name in self.ids:
            problems.add("an id that is not unique", f"{name!r} ({self.ids[name]} and {at})")
        self.ids[name] = at
        context = self.contexts.setdefault(context, context)
        return f"{at}, question {name!r}" if has_id else at, SquadQuestion(name, title, context, wording, references)

    def place_answers(self, parsed: Sequence[tuple[str, SquadQuestion]]) -> list[SquadQuestion]:
        """Return the questions with stripped answers at their places, without those to drop; add misplaced answers to
        the problems.

        Args:
            parsed: position of each question, and the question as stated.
        """
        reading, questions = self.reading, []
        is_utf16 = count_utf16((question.context, question.answers) for _, question in parsed)
        form = self.form or f"answers are {LISTED}"
        reading.labels = f"{form}; answer_start counts {'UTF-16 code units' if is_utf16 else 'characters'}"
        reading.grouping = "an example is a question about its context"
        moved, answers, cut = reading.counts[MOVED], 0, 0
        for where, question in parsed:
            placed = []
            for answer in question.answers:
                if placement := find_place(where, question.context, answer, reading, is_utf16=is_utf16):
                    placed.append(placement)
                elif self.data.misplaced_answers == "drop":
                    reading.count(MISPLACED, where)
                else:
                    self.problems.add(NOT_IN_PLACE, f"{where}: {describe_place(question.context, answer)}")
            answers += len(placed)
            cut += sum(_cuts_word(question.context, placed_answer) for placed_answer in placed)
            whole = sum(len(placed_answer.text) == len(question.context.strip()) for placed_answer in placed)
            reading.count("answers that are the whole context", where, whole)
            if placed or (not question.answers and self.data.unanswerable == "use"):
                questions.append(question._replace(answers=tuple(placed)))
            if not placed:
                what = WITHOUT_PLACE if question.answers else USED if self.data.unanswerable == "use" else DROPPED
                reading.count(what, where)
        moved = reading.counts[MOVED] - moved
        if moved > NOTED_SHARE * answers:
            reading.remark(f"{moved:,} of {answers:,} answers were moved: does answer_start count characters from 0?")
        if cut > NOTED_SHARE * answers:
            reading.remark(
                f"{cut:,} of {answers:,} answers begin or end inside a word: were they cut out of the context by "
                "offsets of another unit, such as bytes or tokens?"
            )
        return questions

    def _is_flat(self, row: TableRow) -> bool:
        """Tell whether answers are in two columns."""
        names, columns = row.names, self.data.columns
        if ANSWERS in names and columns.answer_text is None and columns.answer_start is None:
            for part in {TEXT, START} & set(names):
                self.reading.unused_columns.add(names[part])
                self.reading.columns.pop(part, None)
            return False
        if {TEXT, START} <= set(names):
            self.form = f"an answer is in {names[TEXT]!r} and {names[START]!r}"
            return True
        whole, text, start = (getattr(columns, part) or part for part in (ANSWERS, TEXT, START))
        keys = [self.named_by.format(part) for part in (ANSWERS, TEXT, START)]
        raise InputError(
            f"{self.problems.source} has no column {whole!r}, and not both {text!r} and {start!r}; columns are "
            f"{', '.join([*names.values(), *sorted(self.reading.unused_columns)])}. Set {keys[0]}, or {keys[1]} and "
            f"{keys[2]}"
        )

    def _answers(self, row: TableRow) -> object:
        """Return a list of {text, answer_start} from one cell; its items are checked later."""
        value, at, form = row.values.get(ANSWERS), row.where, ""
        if isinstance(value, str) and value.strip():
            form = " as JSON text"
            try:
                value = parse_json(value)
            except ValueError as error:
                advice = "Python literals with single quotes are not supported: use json.dumps, or Parquet"
                self.problems.add(f"answers is not JSON ({advice})", f"{at}: {error}")
                return []
        if value is None or value == "":
            return []
        shape = "{text: [...], answer_start: [...]}" if isinstance(value, Mapping) else LISTED
        self.form = f"answers in {row.names[ANSWERS]!r} are {shape}{form}"
        return self._pair(value.get("text"), value.get(START), at) if isinstance(value, Mapping) else value

    def _flat_answers(self, values: Mapping[str, object], at: str) -> object:
        text, start = values.get(TEXT), values.get(START)
        if text is None or text == "":
            if _as_integer(start) not in (None, "", -1):
                self.problems.add("answer_start without answer_text", at, start)
            return []
        return self._pair(text, start, at)

    def _pair(self, text: object, start: object, at: str) -> object:
        if not isinstance(text, list) and not isinstance(start, list):
            text, start = [text], [start]
        if not (isinstance(text, list) and isinstance(start, list) and len(text) == len(start)):
            counts = [len(value) if isinstance(value, list) else type(value).__name__ for value in (text, start)]
            self.problems.add("text and answer_start are not lists of equal length", at, counts)
            return []
        return [{"text": value, START: offset} for value, offset in zip(text, start, strict=True)]

    def _references(self, values: Mapping[str, object], at: str, *, strict: bool) -> tuple[ReferenceAnswer, ...]:
        """Return the answers; add what is wrong with them to the problems."""
        flag = values.get(IMPOSSIBLE)
        word = str(flag).strip().lower()
        if word not in _WORDS or (strict and not isinstance(flag, bool | None)):
            self.problems.add(f"{IMPOSSIBLE} is not true or false", at, flag)
        impossible = _WORDS.get(word)
        if impossible is not None and impossible == bool(values.get(ANSWERS)) and self.data.unanswerable != "refuse":
            kind = "is_impossible: true and an answer, or false and no answer; correct one of the two"
            self.problems.add(kind, repr(values.get("id")))
        if impossible:
            return ()
        answers = []
        for answer, where in list_objects(values, ANSWERS, at, self.problems):
            text, start = (read_text(answer, "text", where, self.problems, filled=True), _as_integer(answer.get(START)))
            if START not in answer:
                self.problems.add(f"{START} is missing", where)
            elif type(start) is not int:
                self.problems.add(f"{START} is not an integer", where, start)
            elif text is not None:
                answers.append(ReferenceAnswer(text, start))
        return tuple(answers)


def _as_integer(value: object) -> object:
    """Return a whole number in any notation, also as text, as an integer; another value as it is."""
    number = parse_number(value) if isinstance(value, str) else value
    return int(number) if isinstance(number, float) and number.is_integer() else value


def require_room_for_text(what: str, text: str) -> None:
    """Refuse a text whose windows need more memory than available."""
    if len(text) > FREE_CHARACTERS:
        require_memory(what, len(text.encode("utf-8", "replace")), OF_A_BYTE, "split it")


def read_references(path: Path, reading: Interpretation | None = None) -> list[tuple[str, tuple[str, ...]]]:
    """Read (id, reference answers) of every question from a SQuAD v1.1 or 2.0 JSON file, in order.

    As for training, the file may also have one object per question.

    Args:
        reading: receives the number of numeric ids.

    Raises:
        InputError: file not found, not JSON, not SQuAD's format (all problems with their locations), or no questions.
    """
    try:
        refuse_empty(path, SCORED)
    except OSError as error:
        what = "not found" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise InputError(f"{path} {what}") from None
    problems, log = ProblemList(str(path), "questions"), Interpretation()
    columns = {part: ColumnSpec((part,), SCORED, False) for part in ("id", "answers")}
    rows = read_json_questions(path, SCORED, log, problems, columns=columns)
    references = [_make_reference(row, problems, log) for row in rows]
    if reading is not None:
        reading.counts[NUMERIC_IDS] += log.counts[NUMERIC_IDS]
    problems.refuse()
    if not references:
        raise InputError(f"{path} contains no questions")
    return references


def _make_reference(row: TableRow, problems: ProblemList, reading: Interpretation) -> tuple[str, tuple[str, ...]]:
    values, answers = row.values, row.values.get("answers")
    if isinstance(answers, Mapping) and isinstance(texts := answers.get("text"), list):  # the format of `datasets`
        values = {**values, "answers": [{"text": text} for text in texts]}
    wordings = [
        read_text(answer, "text", at, problems) for answer, at in list_objects(values, "answers", row.where, problems)
    ]
    return read_id(values, row.where, problems, reading) or "", tuple(text for text in wordings if text is not None)


def read_questions(path: Path, ids: Sequence[str] | None = None, most: int | None = None) -> list[SquadQuestion]:
    """Read the questions written by stage examples, in order.

    Args:
        path: for example data/examples/<entry>/dev.parquet.
        ids: ids to return; None: all.
        most: maximum number, evenly spread; None: all.

    Raises:
        InputError: the file is missing, unreadable or empty, or lacks columns.
    """
    wanted = None if ids is None else set(ids)
    questions: list[SquadQuestion] = []
    contexts: dict[str, str] = {}
    for batch in read_batches(path, SquadQuestion._fields, READ_AT_ONCE, "examples"):
        for row in batch.to_pylist():
            if wanted is None or row["id"] in wanted:
                row["context"] = contexts.setdefault(row["context"], row["context"])  # the file repeats contexts
                row[ANSWERS] = tuple(ReferenceAnswer(**answer) for answer in row[ANSWERS])
                questions.append(SquadQuestion(**row))
    if not questions and wanted is None:
        raise InputError(f"{path} contains no questions. Set dev_path of section data to a file with questions")
    if most is not None and len(questions) > most:
        return [questions[number * len(questions) // most] for number in range(most)]
    return questions
