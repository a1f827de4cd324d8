"""SQuAD questions as read, and checks of them. All problems of a source are reported in one message."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tasks.records.text_files import ProblemList, ReadLog
from tasks.stage.errors import InputError
from tasks.stage.memory import require_memory

OF_A_BYTE, FREE_CHARACTERS = 32, 1 << 20
"""Bytes of memory per byte of text to build and predict its windows, and the characters from which on it is checked: 21
MB of English needed 27 bytes each."""
UNANSWERABLE = "downstream.*.data.unanswerable"
CHOICES = f"set {UNANSWERABLE} to use (the model may return no answer) or to drop (skip such questions)"
"""Suggestion for refused questions without an answer."""
BLANKS = "answers with leading or trailing spaces, stripped"
SHOWN, QUOTED, SHOWN_MATCHES = 10, 40, 3
"""Ids, characters of a text, and positions of an answer in messages."""


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


def require_valid(
    questions: Sequence[SquadQuestion], problems: ProblemList, unanswerable: str, choices: str, reading: ReadLog
) -> list[SquadQuestion]:
    """Check questions and return them with stripped answers.

    Args:
        problems: problems found before.
        unanswerable: handling of questions without an answer: use, drop (by the caller) or refuse.
        choices: suggestion if they are refused.
        reading: counts stripped answers.

    Raises:
        InputError: all problems of the source in one message, or no questions.
    """
    for name in [name for name, count in Counter(one.id for one in questions).items() if count > 1]:
        numbers = [number for number, one in enumerate(questions, 1) if one.id == name][:2]
        problems.add("an id that is not unique", f"{name!r} (questions number {numbers[0]} and {numbers[1]})")
    for question in questions:
        where = f"question {question.id!r}"
        for key in ("id", "context", "question"):
            if not getattr(question, key).strip():
                problems.add(f"{key} is empty", where)
        if not question.answers and unanswerable == "refuse":
            kind = f"no answer (is_impossible: true, or an empty list), as in SQuAD 2.0; {choices}"
            problems.add(kind, repr(question.id))
        for answer in question.answers:
            if not answer.text.strip():
                problems.add("an answer is empty", where)
            elif not _is_in_place(answer, question.context):
                problems.add("an answer is not at answer_start", _describe_place(question, answer))
    problems.refuse()
    if not questions:
        raise InputError(f"{problems.source} contains no questions")
    longest = max(questions, key=lambda one: len(one.context))
    require_room_for_text(f"{problems.source}: the context of question {longest.id!r}", longest.context)
    return [_strip_answers(question, reading) for question in questions]


def _is_in_place(answer: ReferenceAnswer, context: str) -> bool:
    text, start = answer
    return start >= 0 and context.startswith(text, start)


def _describe_place(question: SquadQuestion, answer: ReferenceAnswer) -> str:
    text, start = answer
    found = question.context[start : start + len(text)] if start >= 0 else ""
    places: list[int] = []
    while len(places) < SHOWN_MATCHES and (at := question.context.find(text, places[-1] + 1 if places else 0)) >= 0:
        places.append(at)
    real = f"it is at {', '.join(map(str, places))}" if places else "the context does not contain it"
    return f"question {question.id!r}: {_quote(text)} at {start} (found {_quote(found)}; {real})"


def _quote(text: str) -> str:
    return repr(text if len(text) <= QUOTED else text[:QUOTED] + "...") if text else "nothing"


def _strip_answers(question: SquadQuestion, reading: ReadLog) -> SquadQuestion:
    """Strip spaces around answers: they belong to no token, so the target would be wider than the answer."""
    answers = [
        ReferenceAnswer(text.strip(), start + len(text) - len(text.lstrip())) for text, start in question.answers
    ]
    if changed := sum(one != other for one, other in zip(answers, question.answers, strict=True)):
        reading.counts[BLANKS] += changed
    return question._replace(answers=tuple(answers)) if changed else question


def require_room_for_text(what: str, text: str) -> None:
    """Refuse a text whose windows need more memory than available."""
    if len(text) > FREE_CHARACTERS:
        require_memory(what, len(text.encode("utf-8", "replace")), OF_A_BYTE, "split it")


def refuse_common_ids(
    train: Sequence[SquadQuestion], dev: Sequence[SquadQuestion], train_name: str, dev_name: str
) -> None:
    """Raise InputError if a question id is used for training and for development."""
    known = {question.id for question in train}
    if common := [question.id for question in dev if question.id in known]:
        raise InputError(
            f"{len(common)} question id(s) are in both {train_name} and {dev_name}: {', '.join(common[:SHOWN])}. "
            "Set train_path and dev_path to different questions"
        )
