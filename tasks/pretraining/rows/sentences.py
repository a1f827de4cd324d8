"""Text to sentences, by one plain rule that suits running text and WikiText (tokens apart by spaces).

A sentence ends at the end of a paragraph (newline), and after `.`, `!`, `?` or `...` with its closing
quotes and brackets, when white space follows and what comes next does not begin in lower case
(opening quotes and brackets are looked through). `.` attached to a single capital or to one of a few
titles ("J. Smith", "Dr. Smith") ends nothing. The full stops of Chinese and Japanese need no space.

Next-sentence prediction only needs pieces that follow each other, so a missed or a spare boundary
costs nothing but a little variety.
"""

from __future__ import annotations

import re

ABBREVIATIONS = frozenset(
    [
        "Mr",
        "Mrs",
        "Ms",
        "Dr",
        "Prof",
        "St",
        "Sr",
        "Jr",
        "Mt",
        "Ft",
        "Gen",
        "Col",
        "Lt",
        "Sgt",
        "Capt",
        "Rev",
        "Hon",
        "Gov",
        "Sen",
        "Rep",
        "Pres",
        "No",
        "Nos",
        "Vol",
        "Fig",
        "vs",
        "cf",
        "e.g",
        "i.e",
        "approx",
        "ca",
    ]
)
_OPENING = "\"'`([{\u201c\u2018\u00ab "
_END = re.compile(
    r"""[.!?\u2026]+ ["')\]}\u201d\u2019\u00bb]* \s+ | [\u3002\uff01\uff1f]+ ["')\]}\u201d\u2019\u300d\u300f]* \s*""",
    re.VERBOSE,
)
_LAST_WORD = re.compile(r"[^\s\"'(\[{]*$")
_LONGEST_ABBREVIATION = 8


def split_sentences(text: str) -> list[str]:
    """The sentences of `text`, stripped, none empty.

    split_sentences("He met Dr. Ay . It rained.\\nYes") == ["He met Dr. Ay .", "It rained.", "Yes"]
    """
    return [sentence for paragraph in text.splitlines() for sentence in _split_paragraph(paragraph)]


def _split_paragraph(paragraph: str) -> list[str]:
    sentences, start = [], 0
    for match in _END.finditer(paragraph):
        if _ends_sentence(paragraph, match):
            sentences.append(paragraph[start : match.end()].strip())
            start = match.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(paragraph: str, match: re.Match[str]) -> bool:
    rest = paragraph[match.end() : match.end() + 8].lstrip(_OPENING)
    if rest[:1].islower():
        return False
    if not match.group().startswith(". "):
        return True
    begin = max(0, match.start() - _LONGEST_ABBREVIATION)
    word = _LAST_WORD.search(paragraph, begin, match.start())
    before = word.group() if word else ""
    return not (before in ABBREVIATIONS or (len(before) == 1 and before.isupper()))
