"""SQuAD questions, v1.1 and 2.0: reading them, and checking each one, with all problems of a file in one message.

A JSON file holds articles with paragraphs and questions, as SQuAD is published; or one object for each question, as
`datasets` exports it and run_qa.py reads it: in {"data": [...]}, in a list, or as JSON lines. Numbers are read as ids,
and blanks at the edges of an answer are stripped; both are counted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.files import MAX_JSON_VALUES, each_key_once, parse_json, read_at_most
from tasks.records.text_files import NUMBERS, Reading, decode, opened, surrogate_in
from tasks.stage.errors import InputError
from tasks.stage.memory import ALLOWANCE, limited, require_memory

MAX_FILE_BYTES = 2 << 30
"""A JSON file is parsed as a whole, at several times its size in memory; the real SQuAD is 30 MB."""
UNFOLDED = 6
"""A large file of questions takes some four times its bytes when it is parsed; what takes far more is no such file."""
OF_A_BYTE, FREE_CHARACTERS = 32, 1 << 20
"""Bytes of memory that a byte of a text takes while its windows are made and answered, and the characters from which on
that is looked at: 21 MB of English took 27 bytes each."""
SHOWN = 10
"""Problems shown of a file; the others are counted."""
UNANSWERABLE = "downstream.*.data.unanswerable"
CHOICES = f"set {UNANSWERABLE} to use (the model learns to give no answer) or to drop (leaves such questions out)"
"""What can be done where questions without an answer are refused."""
OF_A_RECORD = frozenset({"id", "context", "question", "answers"})
"""Keys of an object for each question."""
Record = tuple[str, dict[str, Any]]
"""Where it is in the file, for messages, and its values."""
BLANKS = "answers with blanks at an edge, which were stripped"
QUOTED = 40
"""Characters of the user's text quoted in messages."""


class Answer(NamedTuple):
    """`text` stands in the context from character `answer_start` on."""

    text: str
    answer_start: int


class Question(NamedTuple):
    """One SQuAD question with its context and reference answers; with none where the context has no answer."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[Answer, ...]


@dataclass
class Problems:
    """Collects what is wrong with one source, to be said at once."""

    source: str
    """For messages."""
    unanswerable: str = "refuse"
    """What becomes of questions without an answer: use, drop or refuse; who calls drops."""
    choices: str = CHOICES
    """What can be done where they are refused."""
    reading: Reading = field(default_factory=Reading)
    """Gets what was changed: ids that were numbers, blanks at the edges of answers."""
    shown: list[str] = field(default_factory=list)
    count: int = 0
    unanswered: list[str] = field(default_factory=list)
    contradicting: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        self.count += 1
        if len(self.shown) < SHOWN:
            self.shown.append(problem)

    def refuse(self) -> None:
        """Raise InputError with what was collected, if anything was."""
        said = []
        if self.contradicting:
            said.append(
                f"{len(self.contradicting):,} question(s) contradict themselves, with is_impossible: true beside an "
                f"answer, or false without one: correct one of the two. They are {_some(self.contradicting)}"
            )
        if self.unanswered and self.unanswerable == "refuse":
            said.append(
                f"{len(self.unanswered):,} question(s) have no answers (is_impossible: true, or an empty list): this "
                f"is SQuAD 2.0; {self.choices}. They are {_some(self.unanswered)}"
            )
        count = self.count + len(said)
        if count:
            left = self.count - len(self.shown)
            more = f"\n  ... and {left} more" if left else ""
            lines = "".join(f"\n  {problem}" for problem in [*said, *self.shown])
            raise InputError(f"{self.source} is not usable as SQuAD questions, {count} problem(s):{lines}{more}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def checked_questions(questions: list[Question], problems: Problems) -> list[Question]:
    """`questions`, when there are some and nothing is wrong; blanks at the edges of their answers are stripped.

    Raises:
        InputError: all problems of the source in one message, or that it holds no question.
    """
    check_questions(questions, problems)
    problems.refuse()
    if longest := max(questions, key=lambda one: len(one.context), default=None):
        require_room_for_text(f"{problems.source}: the context of question {longest.id!r}", longest.context)
    if not questions:
        raise InputError(f"{problems.source} holds no questions: name SQuAD questions")
    return [_without_blanks(question, problems.reading) for question in questions]


def _without_blanks(question: Question, reading: Reading) -> Question:
    """Blanks belong to no token, so that the target of an answer with one at an edge would be wider than the answer."""
    answers = [Answer(text.strip(), start + len(text) - len(text.lstrip())) for text, start in question.answers]
    if not (changed := sum(one != other for one, other in zip(answers, question.answers, strict=True))):
        return question
    reading.counts[BLANKS] += changed
    return question._replace(answers=tuple(answers))


def parse_file(path: Path, key: str) -> Any:
    """What a JSON file of questions holds, of JSON lines a list.

    Args:
        path: the file.
        key: the params key that named it, for messages.

    Raises:
        InputError: not there, too large, not UTF-8, or not JSON.
    """
    try:
        require_room_for_file(path, key, path.stat().st_size)
        with opened(path) as stream:
            content = read_at_most(stream, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}) ({key})") from None
    if (size := len(content)) > MAX_FILE_BYTES:
        raise InputError(f"{path} is too large: SQuAD JSON up to {MAX_FILE_BYTES:,} bytes is read; split it ({key})")
    require_room_for_file(path, key, size)
    if not content.strip():
        raise InputError(f"{path} is empty; set {key} to a SQuAD JSON file")
    with limited(f"{path} ({key})", max(ALLOWANCE, UNFOLDED * size)):
        try:
            text = decode(content, path, key)
            return articles_of(parse_document(text, size, object_pairs_hook=each_key_once))
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}; "
                f"set {key} to a SQuAD JSON file"
            ) from None
        except ValueError as error:  # nested too deeply; a key twice; a number of thousands of digits
            raise InputError(f"{path} is not SQuAD JSON ({error}); set {key} to such a file") from None


def require_room_for_file(path: Path, key: str, size: int) -> None:
    """Refuse a JSON file of questions of `size` bytes, unpacked, that takes more memory than there is."""
    require_memory(f"{path} ({key})", size, UNFOLDED, "split it, or save it as .jsonl or .parquet")


def require_room_for_text(what: str, text: str) -> None:
    """Refuse a text to answer questions on whose windows take more memory than there is."""
    if len(text) > FREE_CHARACTERS:
        require_memory(what, len(text.encode("utf-8", "replace")), OF_A_BYTE, "break it into parts")


def parse_document(text: str, values: int = MAX_JSON_VALUES, **options: Any) -> Any:
    """The value of a JSON text; of JSON lines a list of theirs. Arguments and errors are those of `parse_json`."""
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
            if not found:  # an object of several lines, and something after it
                raise whole from None
            raise json.JSONDecodeError(error.msg, text, start + error.pos) from None
        start += len(line) + 1
    return found


def articles_of(values: Any) -> Any:
    """What a JSON file of questions holds, as {"data": [article, ...]} where it is a list of articles."""
    is_list = isinstance(values, list) and values and isinstance(values[0], dict) and "paragraphs" in values[0]
    return {"data": values} if is_list else values


def flat_records(values: Any, columns: Collection[str] = ()) -> list[Record] | None:
    """The records of a JSON file with one object for each question; None where it holds articles, or something else.

    Args:
        values: what the file holds.
        columns: keys of such objects, besides SQuAD's own.

    Raises:
        InputError: not everything is an object.
    """
    known = OF_A_RECORD.union(columns)
    items, called = values, "item {}"
    if isinstance(values, dict):
        is_record = "data" not in values and not known.isdisjoint(values)  # JSON lines of a single one
        items, called = ([values], "item {}") if is_record else (values.get("data"), "data[{}]")
    first = items[0] if isinstance(items, list) and items else None
    if not isinstance(first, dict) or "paragraphs" in first or known.isdisjoint(first):
        return None
    records = [(called.format(number), one) for number, one in enumerate(items, called != "data[{}]")]
    if other := next((record for record in records if not isinstance(record[1], dict)), None):
        raise InputError(f"{other[0]} must be an object, found {type(other[1]).__name__}")
    return records


def records_of_articles(values: Any, problems: Problems, *, whole: bool = True) -> Iterator[Record]:
    """The questions of articles (see `articles_of`), each with its title and context, as `flat_records` has them.

    Args:
        values: what the file holds.
        problems: gets what is not of this layout.
        whole: whether contexts are needed.
    """
    for article, at in objects(values, "data", "", problems):
        for paragraph, where in objects(article, "paragraphs", at, problems):
            if whole and text_of(paragraph, "context", where, problems) is None:
                continue
            for qa, place in objects(paragraph, "qas", where, problems):
                yield place, {**qa, "title": article.get("title"), "context": paragraph.get("context")}


def objects(parent: Any, key: str, at: str, problems: Problems) -> Iterator[tuple[dict[str, Any], str]]:
    """(object, its path) of the list `parent[key]`."""
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


def text_of(parent: Mapping[str, Any], key: str, at: str, problems: Problems) -> str | None:
    """The text `parent[key]`; None, and a problem noted, where it is none."""
    value = parent.get(key)
    if key not in parent:
        problems.add(f"{at}.{key} is missing")
    elif not isinstance(value, str):
        problems.add(f"{at}.{key} must be text, found {type(value).__name__}")
    elif surrogate_in(value) is not None:
        problems.add(f"{at}.{key} holds half a surrogate pair, which is no Unicode text")
    else:
        return value
    return None


def id_of(parent: Mapping[str, Any], at: str, problems: Problems) -> str | None:
    """The id `parent["id"]`, a whole number as text; None, and a problem noted, where it is none."""
    if type(parent.get("id")) is int:
        problems.reading.counts[NUMBERS] += 1
        return str(parent["id"])
    return text_of(parent, "id", at, problems)


def answers_of(
    qa: Mapping[str, Any], impossible: bool | None, at: str, problems: Problems
) -> tuple[Answer, ...] | None:
    """The list `qa["answers"]`; None, and a problem noted, where it or one of its entries cannot be used.

    Args:
        qa: the question.
        impossible: whether it is said to have no answer; None: nothing is said.
        at: its place, for messages.
        problems: gets what is wrong.
    """
    if impossible is not None and impossible == bool(qa.get("answers")) and problems.unanswerable != "refuse":
        problems.contradicting.append(str(qa.get("id")))
        return None
    if impossible:
        return ()
    before = problems.count
    answers = []
    for answer, place in objects(qa, "answers", at, problems):
        text = text_of(answer, "text", place, problems)
        start = answer.get("answer_start")
        if "answer_start" not in answer:
            problems.add(f"{place}.answer_start is missing")
        elif not isinstance(start, int) or isinstance(start, bool):
            problems.add(f"{place}.answer_start must be a whole number, found {start!r}")
        elif text is not None:
            answers.append(Answer(text, start))
    return tuple(answers) if problems.count == before else None


def check_questions(questions: Sequence[Question], problems: Problems) -> None:
    """Add to `problems`: repeated ids, empty texts, what has no answer, answers that do not stand where they say."""
    seen: dict[str, int] = {}
    for number, question in enumerate(questions, 1):
        first = seen.setdefault(question.id, number)
        if first != number:
            problems.add(
                f"question id {question.id!r} stands more than once (questions number {first} and {number}); "
                "ids must be unique"
            )
        for key in ("id", "context", "question"):
            if not getattr(question, key).strip():
                problems.add(f"question {question.id!r}: {key} is empty")
        if not question.answers:
            problems.unanswered.append(question.id)
        for answer in question.answers:
            _check_answer(question, answer, problems)


def _check_answer(question: Question, answer: Answer, problems: Problems) -> None:
    text, start = answer
    if not text.strip():
        problems.add(f"question {question.id!r}: an answer is empty")
    elif start < 0 or question.context[start : start + len(text)] != text:
        found = question.context[start : start + len(text)] if start >= 0 else ""
        places = _places(question.context, text)
        real = f"it stands at {', '.join(map(str, places))}" if places else "it stands nowhere in the context"
        problems.add(
            f"question {question.id!r}: answer {_quote(text)} is not at answer_start {start}, where "
            f"{_quote(found)} stands; {real}"
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


def refuse_common_ids(train: Sequence[Question], dev: Sequence[Question], train_name: str, dev_name: str) -> None:
    """Raise InputError when a question id is used for training and for development."""
    known = {question.id for question in train}
    common = [question.id for question in dev if question.id in known]
    if common:
        raise InputError(
            f"{len(common)} question id(s) stand in both {train_name} and {dev_name}, the first: "
            f"{', '.join(common[:SHOWN])}; ids must be unique and development questions unseen: "
            "set train_path and dev_path to different questions"
        )
