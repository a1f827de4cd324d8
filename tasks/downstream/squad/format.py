"""Reading and checking of SQuAD v1.1 and 2.0 questions, with all problems of a file in one message.

A JSON file has articles with paragraphs and questions, as SQuAD is published, or one object per question, as `datasets`
exports it and run_qa.py reads it: in {"data": [...]}, in a list, or as JSON lines. Numeric ids are accepted and spaces
around answers are stripped; both are counted.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.files import MAX_JSON_VALUES, parse_json, read_at_most, reject_duplicate_keys
from tasks.records.text_files import NUMERIC_IDS, ReadLog, decode, find_surrogate, open_unpacked
from tasks.stage.errors import InputError
from tasks.stage.memory import ALLOWANCE, limit_memory, require_memory

MAX_FILE_BYTES = 2 << 30
"""JSON files are parsed as a whole and need several times their size in memory; SQuAD has 30 MB."""
UNFOLDED = 6
"""Memory limit of parsing, in file sizes. A large file of questions needs about four."""
OF_A_BYTE, FREE_CHARACTERS = 32, 1 << 20
"""Bytes of memory per byte of text to build and predict its windows, and the characters from which on it is checked: 21
MB of English needed 27 bytes each."""
SHOWN = 10
"""Problems shown per file; the others are counted."""
UNANSWERABLE = "downstream.*.data.unanswerable"
CHOICES = f"set {UNANSWERABLE} to use (the model may return no answer) or to drop (skip such questions)"
"""Suggestion for refused questions without an answer."""
OF_A_RECORD = frozenset({"id", "context", "question", "answers"})
"""Keys of an object with one question."""
Record = tuple[str, dict[str, Any]]
"""Location in the file, for messages, and values."""
BLANKS = "answers with leading or trailing spaces, stripped"
QUOTED = 40
"""Maximum characters of the user's text quoted in messages."""


class ReferenceAnswer(NamedTuple):
    """Reference answer: `text` is in the context at character `answer_start`."""

    text: str
    answer_start: int


class SquadQuestion(NamedTuple):
    """SQuAD question with its context and reference answers; no answers if the context has none."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[ReferenceAnswer, ...]


@dataclass
class SquadProblems:
    """Collected problems of one source, reported in one message."""

    source: str
    """Name of the source in messages."""
    unanswerable: str = "refuse"
    """Handling of questions without an answer: use, drop (by the caller) or refuse."""
    choices: str = CHOICES
    """Suggestion if they are refused."""
    reading: ReadLog = field(default_factory=ReadLog)
    """Receives counts of changes: numeric ids, stripped spaces."""
    shown: list[str] = field(default_factory=list)
    count: int = 0
    unanswered: list[str] = field(default_factory=list)
    contradicting: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        self.count += 1
        if len(self.shown) < SHOWN:
            self.shown.append(problem)

    def refuse(self) -> None:
        """Raise InputError with all collected problems, if any."""
        said = []
        if self.contradicting:
            said.append(
                f"{len(self.contradicting):,} question(s) have is_impossible: true and an answer, or false and no "
                f"answer. Correct one of the two: {_quote_names(self.contradicting)}"
            )
        if self.unanswered and self.unanswerable == "refuse":
            said.append(
                f"{len(self.unanswered):,} question(s) have no answer (is_impossible: true, or an empty list), as in "
                f"SQuAD 2.0; {self.choices}: {_quote_names(self.unanswered)}"
            )
        count = self.count + len(said)
        if count:
            left = self.count - len(self.shown)
            more = f"\n  ... and {left} more" if left else ""
            lines = "".join(f"\n  {problem}" for problem in [*said, *self.shown])
            raise InputError(f"{self.source} has {count} problem(s) with SQuAD questions:{lines}{more}")


def _quote_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def require_valid(questions: list[SquadQuestion], problems: SquadProblems) -> list[SquadQuestion]:
    """Check questions and return them with stripped answers.

    Raises:
        InputError: all problems of the source in one message, or no questions.
    """
    check_questions(questions, problems)
    problems.refuse()
    if longest := max(questions, key=lambda one: len(one.context), default=None):
        require_room_for_text(f"{problems.source}: the context of question {longest.id!r}", longest.context)
    if not questions:
        raise InputError(f"{problems.source} contains no questions")
    return [_without_blanks(question, problems.reading) for question in questions]


def _without_blanks(question: SquadQuestion, reading: ReadLog) -> SquadQuestion:
    """Strip spaces around answers: they belong to no token, so the target would be wider than the answer."""
    answers = [
        ReferenceAnswer(text.strip(), start + len(text) - len(text.lstrip())) for text, start in question.answers
    ]
    if not (changed := sum(one != other for one, other in zip(answers, question.answers, strict=True))):
        return question
    reading.counts[BLANKS] += changed
    return question._replace(answers=tuple(answers))


def parse_file(path: Path, key: str) -> Any:
    """Parse a JSON file of questions; JSON lines become a list.

    Args:
        key: parameter with the path, for messages.

    Raises:
        InputError: file not found, too large, not UTF-8, or not JSON.
    """
    try:
        require_room_for_file(path, key, path.stat().st_size)
        with open_unpacked(path) as stream:
            content = read_at_most(stream, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}) ({key})") from None
    if (size := len(content)) > MAX_FILE_BYTES:
        raise InputError(f"{path} is too large: the limit for SQuAD JSON is {MAX_FILE_BYTES:,} bytes. Split it ({key})")
    require_room_for_file(path, key, size)
    if not content.strip():
        raise InputError(f"{path} is empty. Set {key} to a SQuAD JSON file")
    with limit_memory(f"{path} ({key})", max(ALLOWANCE, UNFOLDED * size)):
        try:
            text = decode(content, path, key)
            return wrap_articles(parse_document(text, size, object_pairs_hook=reject_duplicate_keys))
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
                f"Set {key} to a SQuAD JSON file"
            ) from None
        except ValueError as error:  # nested too deeply, a repeated key, or a number with thousands of digits
            raise InputError(f"{path} is not SQuAD JSON ({error}). Set {key} to a SQuAD JSON file") from None


def require_room_for_file(path: Path, key: str, size: int) -> None:
    """Refuse a JSON file of `size` uncompressed bytes that needs more memory than available."""
    require_memory(f"{path} ({key})", size, UNFOLDED, "split it, or save it as .jsonl or .parquet")


def require_room_for_text(what: str, text: str) -> None:
    """Refuse a text whose windows need more memory than available."""
    if len(text) > FREE_CHARACTERS:
        require_memory(what, len(text.encode("utf-8", "replace")), OF_A_BYTE, "split it")


def parse_document(text: str, values: int = MAX_JSON_VALUES, **options: Any) -> Any:
    """Parse a JSON text; JSON lines become a list. Arguments and errors are those of `parse_json`."""
    try:
        return parse_json(text, values, **options)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data" or "\n" not in text[: error.pos]:
            raise
        whole = error
    found, start = [], 0
    for line in text.split("\n"):
        try:
            found += [parse_json(line, values, **options)] if line.strip() else []
        except json.JSONDecodeError as error:
            if not found:  # an object over several lines, followed by something else
                raise whole from None
            raise json.JSONDecodeError(error.msg, text, start + error.pos) from None
        start += len(line) + 1
    return found


def wrap_articles(values: Any) -> Any:
    """Return the content of a JSON file, a list of articles wrapped as {"data": [article, ...]}."""
    is_list = isinstance(values, list) and values and isinstance(values[0], dict) and "paragraphs" in values[0]
    return {"data": values} if is_list else values


def read_flat_records(values: Any, columns: Collection[str] = ()) -> list[Record] | None:
    """Return the records of a JSON file with one object per question; None for articles or anything else.

    Args:
        columns: keys of such objects in addition to SQuAD's own.

    Raises:
        InputError: an item is not an object.
    """
    known = OF_A_RECORD.union(columns)
    items, called = values, "item {}"
    if isinstance(values, dict):
        is_record = "data" not in values and not known.isdisjoint(values)  # JSON lines with a single line
        items, called = ([values], "item {}") if is_record else (values.get("data"), "data[{}]")
    first = items[0] if isinstance(items, list) and items else None
    if not isinstance(first, dict) or "paragraphs" in first or known.isdisjoint(first):
        return None
    records = [(called.format(number), one) for number, one in enumerate(items, called != "data[{}]")]
    if other := next((record for record in records if not isinstance(record[1], dict)), None):
        raise InputError(f"{other[0]} must be an object, found {type(other[1]).__name__}")
    return records


def read_article_records(values: Any, problems: SquadProblems, *, whole: bool = True) -> Iterator[Record]:
    """Yield the questions of articles (see `wrap_articles`) with title and context, as from `read_flat_records`.

    Args:
        problems: receives deviations from this format.
        whole: require contexts.
    """
    for article, at in read_objects(values, "data", "", problems):
        for paragraph, where in read_objects(article, "paragraphs", at, problems):
            if whole and read_text(paragraph, "context", where, problems) is None:
                continue
            for qa, place in read_objects(paragraph, "qas", where, problems):
                yield place, {**qa, "title": article.get("title"), "context": paragraph.get("context")}


def read_objects(parent: Any, key: str, at: str, problems: SquadProblems) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (object, its path) of the list `parent[key]`; add what is wrong to `problems`."""
    place = f"{at}.{key}" if at else key
    if not isinstance(parent, dict):
        problems.add(f"{at or 'the file'} must be an object, found {type(parent).__name__}")
        return
    if key not in parent:
        problems.add(f"{place} is missing")
        return
    if not isinstance(parent[key], list):
        problems.add(f"{place} must be a list, found {type(parent[key]).__name__}")
        return
    for index, item in enumerate(parent[key]):
        if isinstance(item, dict):
            yield item, f"{place}[{index}]"
        else:
            problems.add(f"{place}[{index}] must be an object, found {type(item).__name__}")


def read_text(parent: Mapping[str, Any], key: str, at: str, problems: SquadProblems) -> str | None:
    """Return the text `parent[key]`, or None after adding a problem."""
    value = parent.get(key)
    if key not in parent:
        problems.add(f"{at}.{key} is missing")
    elif not isinstance(value, str):
        problems.add(f"{at}.{key} must be text, found {type(value).__name__}")
    elif find_surrogate(value) is not None:
        problems.add(f"{at}.{key} contains half a surrogate pair, which is not valid Unicode")
    else:
        return value
    return None


def read_id(parent: Mapping[str, Any], at: str, problems: SquadProblems) -> str | None:
    """Return the id `parent["id"]`, integers as text, or None after adding a problem."""
    if type(parent.get("id")) is int:
        problems.reading.counts[NUMERIC_IDS] += 1
        return str(parent["id"])
    return read_text(parent, "id", at, problems)


def read_answers(
    qa: Mapping[str, Any], impossible: bool | None, at: str, problems: SquadProblems
) -> tuple[ReferenceAnswer, ...] | None:
    """Return the answers `qa["answers"]`, or None after adding a problem.

    Args:
        impossible: value of is_impossible; None if missing.
    """
    if impossible is not None and impossible == bool(qa.get("answers")) and problems.unanswerable != "refuse":
        problems.contradicting.append(str(qa.get("id")))
        return None
    if impossible:
        return ()
    before = problems.count
    answers = []
    for answer, place in read_objects(qa, "answers", at, problems):
        text = read_text(answer, "text", place, problems)
        start = answer.get("answer_start")
        if "answer_start" not in answer:
            problems.add(f"{place}.answer_start is missing")
        elif not isinstance(start, int) or isinstance(start, bool):
            problems.add(f"{place}.answer_start must be an integer, found {start!r}")
        elif text is not None:
            answers.append(ReferenceAnswer(text, start))
    return tuple(answers) if problems.count == before else None


def check_questions(questions: Sequence[SquadQuestion], problems: SquadProblems) -> None:
    """Add repeated ids, empty texts, missing answers and wrong answer positions to `problems`."""
    seen: dict[str, int] = {}
    for number, question in enumerate(questions, 1):
        first = seen.setdefault(question.id, number)
        if first != number:
            problems.add(f"question id {question.id!r} is not unique (questions number {first} and {number})")
        for key in ("id", "context", "question"):
            if not getattr(question, key).strip():
                problems.add(f"question {question.id!r}: {key} is empty")
        if not question.answers:
            problems.unanswered.append(question.id)
        for answer in question.answers:
            _check_answer(question, answer, problems)


def _check_answer(question: SquadQuestion, answer: ReferenceAnswer, problems: SquadProblems) -> None:
    text, start = answer
    if not text.strip():
        problems.add(f"question {question.id!r}: an answer is empty")
    elif start < 0 or question.context[start : start + len(text)] != text:
        found = question.context[start : start + len(text)] if start >= 0 else ""
        places = _places(question.context, text)
        real = f"it is at {', '.join(map(str, places))}" if places else "the context does not contain it"
        problems.add(
            f"question {question.id!r}: answer {_quote(text)} is not at answer_start {start} (found {_quote(found)}); "
            f"{real}"
        )


def _places(context: str, text: str) -> list[int]:
    places: list[int] = []
    start = context.find(text)
    while start >= 0 and len(places) < 3:
        places.append(start)
        start = context.find(text, start + 1)
    return places


def _quote(text: str) -> str:
    return repr(text if len(text) <= QUOTED else text[:QUOTED] + "...") if text else "nothing"


def refuse_common_ids(
    train: Sequence[SquadQuestion], dev: Sequence[SquadQuestion], train_name: str, dev_name: str
) -> None:
    """Raise InputError if a question id is used for training and for development."""
    known = {question.id for question in train}
    common = [question.id for question in dev if question.id in known]
    if common:
        raise InputError(
            f"{len(common)} question id(s) are in both {train_name} and {dev_name}: {', '.join(common[:SHOWN])}. "
            "Set train_path and dev_path to different questions"
        )
