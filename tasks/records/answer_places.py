"""Places of answers in their contexts: found where the content rules out every other place.

Spaces around an answer are stripped, and an answer next to its place is moved; all are counted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tasks.records.interpretation import Interpretation

BLANKS = "answers with leading or trailing spaces, stripped"
BLANKS_OUTSIDE = "answers whose spaces are not at answer_start, stripped"
MOVED = "answers moved to their only occurrence within 3 characters"
CONVERTED = "values of answer_start converted from UTF-16 code units to characters"
NEAR = 3
"""Maximum distance of an answer from answer_start, in characters."""
NOTED_SHARE = 0.2
"""Share of moved answers above which users are asked what answer_start counts."""
QUOTED, SHOWN_MATCHES = 40, 3
"""Characters of a text, and positions of an answer in messages."""


class ReferenceAnswer(NamedTuple):
    """Reference answer: `text` is in the context at character `answer_start`."""

    text: str
    answer_start: int


def find_place(
    where: str, context: str, answer: ReferenceAnswer, reading: Interpretation, *, is_utf16: bool
) -> ReferenceAnswer | None:
    """Return the answer at its place without the spaces around it, or None if its place is not certain.

    Spaces belong to no token, so the target would be wider than the answer. `reading` receives the count of a change at
    `where`. If `is_utf16`, answer_start counts UTF-16 code units.
    """
    (text, start), stripped = answer, answer.text.strip()
    if start < 0:
        return None
    if is_utf16:
        start = _from_utf16(context, start)
        reading.count(CONVERTED, where, int(start != answer.answer_start))
    if context.startswith(text, start):
        reading.count(BLANKS, where, int(text != stripped))
        return ReferenceAnswer(stripped, start + len(text) - len(text.lstrip()))
    if context.startswith(stripped, start):
        reading.count(BLANKS_OUTSIDE, where)
        return ReferenceAnswer(stripped, start)
    near = [at for at in range(max(0, start - NEAR), start + NEAR + 1) if context.startswith(stripped, at)]
    if len(near) != 1 or not _is_certain(context, stripped, near[0]):
        return None
    reading.count(MOVED, where)
    return ReferenceAnswer(stripped, near[0])


def count_utf16(answers: Iterable[tuple[str, Sequence[ReferenceAnswer]]]) -> bool:
    """Tell whether answer_start counts UTF-16 code units in contexts with answers: some fit only so, and none only as
    characters."""
    fits: set[tuple[bool, bool]] = set()
    for context, references in answers:
        if context.isascii() or len(context.encode("utf-16-le")) == 2 * len(context):
            continue
        for text, start in references:
            places = (start, _from_utf16(context, max(0, start)))
            characters, units = (at >= 0 and context.startswith((text, text.strip()), at) for at in places)
            fits.add((characters, units))
    return (False, True) in fits and (True, False) not in fits


def describe_place(context: str, answer: ReferenceAnswer) -> str:
    """Return what is at the place of an answer that is not there, and where the answer is."""
    text, start = answer.text.strip(), answer.answer_start
    actual = context[start : start + len(text)] if start >= 0 else ""
    places: list[int] = []
    while len(places) < SHOWN_MATCHES and (at := context.find(text, places[-1] + 1 if places else 0)) >= 0:
        places.append(at)
    real = f"it is at {', '.join(map(str, places))}" if places else "the context does not contain it"
    if not places and unicodedata.normalize("NFC", text) in unicodedata.normalize("NFC", context):
        real = f"the answer is in {_name_form(text)}, the context in {_name_form(context)}: normalise both"
    for unit, codec, width in (("UTF-16 code units", "utf-16-le", 2), ("bytes of UTF-8", "utf-8", 1)):
        if start >= 0 and context.encode(codec).startswith(text.encode(codec), width * start):
            real += f"; {start} counts {unit}, characters are required"
    return f"{_quote(answer.text)} at {start} (found {_quote(actual)}; {real})"


def _from_utf16(context: str, units: int) -> int:
    """Return the number of characters in the first UTF-16 code units of a text."""
    return len(context.encode("utf-16-le")[: 2 * units].decode("utf-16-le", "ignore"))


def _is_certain(context: str, text: str, at: int) -> bool:
    """Tell whether an occurrence near answer_start must be the answer; a short text may be inside a word by chance."""
    end = at + len(text)
    edges = context[max(0, at - 1) : at] + context[end : end + 1]
    return len(text) > NEAR or context.count(text) == 1 or not any(map(str.isalnum, edges))


def _name_form(text: str) -> str:
    """Return the Unicode normal form of a text."""
    return next((form for form in ("NFC", "NFD") if unicodedata.is_normalized(form, text)), "a mixture of both")


def _quote(text: str) -> str:
    return repr(text if len(text) <= QUOTED else text[:QUOTED] + "...") if text else "nothing"
