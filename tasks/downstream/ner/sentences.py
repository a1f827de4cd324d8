"""Sentences as read, and checked sentences with tags in IOB2."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.downstream.ner.tags import (
    convert_bioes,
    convert_to_iob2,
    detect_scheme,
    find_begin_starts,
    find_entities,
    find_inside_starts,
    find_problem,
)
from tasks.records.text_files import ProblemList, ReadLog, find_text_problem

MAX_WORDS = 50_000
"""Maximum words of a sentence; longer ones usually lack blank lines between sentences."""
EMPTY = "empty sentences, skipped"
REPAIRED = "I- tags at the start of an entity, changed to B-"

SCHEMA = pa.schema(
    [
        pa.field("document", pa.int32(), nullable=False),
        pa.field("tokens", pa.list_(pa.field("item", pa.string(), nullable=False)), nullable=False),
        pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False)), nullable=False),
    ]
)
"""tags are IOB2; documents are numbered from 0."""


class RawSentence(NamedTuple):
    """Unchecked sentence."""

    document: int
    words: list[Any]
    tags: list[Any]
    where: str
    """Location, for messages."""
    lines: Sequence[int] = ()
    """Line of each word, if known."""
    id: Any = None
    """Id in a table."""

    def locate(self, word: int) -> str:
        """Return the location of a word, for messages."""
        return f"line {self.lines[word]}" if self.lines else f"{self.where}, word {word}"


class Sentence(NamedTuple):
    """Checked sentence with tags in IOB2."""

    document: int
    tokens: list[str]
    tags: list[str]


@dataclass
class TagStatistics:
    """Statistics of the tags of a source."""

    entities: Counter[str] = field(default_factory=Counter)
    """Number of entities by type."""
    begun_inside: int = 0
    """I- tags that begin an entity; only in IOB1."""
    begun_apart: int = 0
    """B- tags that do not follow an entity of their type; only in IOB2."""
    other: str = ""
    """BIOES, BILOU or BMES if the tags have that scheme, else empty."""

    @property
    def scheme(self) -> str:
        """Name of the tagging scheme."""
        if self.other:
            return self.other
        if self.begun_inside and self.begun_apart:
            return "IOB1 and IOB2 mixed"
        return "IOB1" if self.begun_inside else "IOB2"


def validate_sentence(
    raw: RawSentence, scheme: str, found: TagStatistics, problems: ProblemList, reading: ReadLog
) -> Sentence | None:
    """Return a sentence in IOB2, or None if it is empty or invalid.

    Args:
        scheme: auto, iob1 or iob2 (parameter tag_scheme).
        found: receives tag statistics.
        problems: receives problems.
        reading: receives counts of skipped and changed sentences.
    """
    if scheme == "auto" and (other := detect_scheme(raw.tags)):
        found.other = found.other if found.other not in ("", "BIOES") else other
        raw = raw._replace(tags=convert_bioes(raw.tags))
    before = problems.count
    if len(raw.words) != len(raw.tags):
        counts = f"{len(raw.words)} words, {len(raw.tags)} tags"
        problems.add("a sentence with different numbers of tags and words", raw.where, counts)
        return None
    for number, (word, tag) in enumerate(zip(raw.words, raw.tags, strict=True)):
        for kind, value in ((_find_word_problem(word), word), (find_problem(tag), tag)):
            if kind:
                problems.add(kind, raw.locate(number), value)
    reading.counts[EMPTY] += not raw.words
    if not raw.words or problems.count > before:
        return None
    inside = find_inside_starts(raw.tags)
    for number in inside if scheme == "iob2" else ():
        kind = "I- after O or another type, which IOB2 does not allow (tag_scheme: auto reads it as conlleval does)"
        problems.add(kind, raw.locate(number), raw.tags[number])
    reading.counts[REPAIRED] += len(inside)
    found.begun_inside += len(inside)
    found.begun_apart += len(find_begin_starts(raw.tags))
    found.entities.update(one.type for one in find_entities(raw.tags))
    return Sentence(raw.document, raw.words, convert_to_iob2(raw.tags))


def _find_word_problem(word: Any) -> str:
    problem = find_text_problem(word)
    return f"a word {problem}" if problem else "an empty word" * (not word.strip(" \t\r\n"))
