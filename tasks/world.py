"""An invented world, from a seed: documents to pre-train on and questions that only reading can answer.

A document tells of two towns. Two relations are drawn (founder, river, ...); each is stated for both towns,
and one fact of the first relation, sometimes both, is then said again in other words, so that masked-language
modelling can learn to fetch a name from elsewhere in the text. Questions ask for the second relation, whose
values stand in the document once: the answer is one span, and the other town's value of the same kind is the
wrong answer. What one document says of a town another may contradict, so nothing is gained by remembering
instead of reading.

Names are made of syllables. A name belongs to exactly one split, told by a checksum of its letters and not by
any seed: what a development question is about never occurs in the corpus or in a training question.
Document i depends on (seed, split, i) only: `random.Random` seeded with an integer gives the same numbers on
every platform, and no draw depends on how many documents are made.
"""

from __future__ import annotations

import functools
import random
import re
import zlib
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeVar

from tasks.world_text import (
    CODAS,
    ENDINGS,
    FIRST_YEAR,
    GOODS,
    JOINERS,
    LAST_YEAR,
    ONSETS,
    RELATIONS,
    VOWELS,
    Relation,
)

T = TypeVar("T")
Split = Literal["corpus", "train", "dev"]
SPLITS: tuple[Split, ...] = ("corpus", "train", "dev")
_SHARES = {"corpus": range(0, 70), "train": range(70, 85), "dev": range(85, 100)}
"""Percent of all names each split owns."""

JOIN_PROBABILITY = 0.25
"""Two neighbouring facts become one sentence."""
ASIDE_PROBABILITY = 0.3
"""A fact said again is put as question and answer."""
SECOND_REPEAT_PROBABILITY = 0.8
"""Both facts of the first relation are said again, not one."""
SECOND_QUESTION_PROBABILITY = 0.3


class Fact(NamedTuple):
    """`relation` of `town` is `value`."""

    town: str
    relation: Relation
    value: str
    asked: bool
    """Of the second relation: the value stands in the document once, and so does the other town's."""


class Document(NamedTuple):
    """One text of the world and the facts it states."""

    title: str
    text: str
    facts: tuple[Fact, ...]


class Question(NamedTuple):
    """One question on a document; `context[answer_start:]` begins with `answer`, which stands there once."""

    id: str
    title: str
    context: str
    question: str
    answer: str
    answer_start: int


def split_of(name: str) -> Split:
    """The one split in which `name` may occur: a stable function of its letters (CRC-32, without case)."""
    percent = zlib.crc32(name.lower().encode()) % 100
    return next(split for split in SPLITS if percent in _SHARES[split])


@functools.cache
def names_of(kind: str, split: Split) -> tuple[str, ...]:
    """All names of `kind` (a key of `ENDINGS`) that `split` owns, in a fixed order."""
    share = _SHARES[split]
    first, after_last = share.start, share.stop
    stems = [onset + vowel + coda for onset in ONSETS for vowel in VOWELS for coda in CODAS]
    crc32 = zlib.crc32  # inlined split_of: 5,760 names per kind
    names = (stem + ending for stem in stems for ending in ENDINGS[kind])
    return tuple(name for name in names if first <= crc32(name.lower().encode()) % 100 < after_last)


def document(seed: int, split: Split, index: int) -> Document:
    """Document `index` of `split`; the same for ever, however many others are made."""
    return _document(_numbers(seed, split, index), split)


def documents(seed: int, split: Split, count: int, start: int = 0) -> Iterator[Document]:
    """Documents `start` to `start + count - 1`; memory does not grow with `count`."""
    for index in range(start, start + count):
        yield document(seed, split, index)


def questions(seed: int, split: Split, count: int) -> Iterator[Question]:
    """The first `count` questions of `split`: one or two on each document, in order."""
    made, index = 0, 0
    while made < count:
        draw = _numbers(seed, split, index)
        text = _document(draw, split)
        asked = [fact for fact in text.facts if fact.asked]
        if draw.random() >= SECOND_QUESTION_PROBABILITY:
            del asked[int(draw.random() * len(asked))]
        for fact in asked[: count - made]:
            wording = _pick(draw, fact.relation.questions).format(fact.town)
            places = [m.start() for m in re.finditer(rf"\b{fact.value}\b", text.text)]
            if len(places) != 1:  # two names of different kinds are equal, once in a million
                continue
            yield Question(f"{split}-{made:07d}", text.title, text.text, wording, fact.value, places[0])
            made += 1
        index += 1


def _numbers(seed: int, split: Split, index: int) -> random.Random:
    return random.Random((seed << 80) | (SPLITS.index(split) << 72) | index)


def _pick(draw: random.Random, options: tuple[T, ...]) -> T:
    # random() * n: a few times faster than choice(), which decides the generator's speed
    return options[int(draw.random() * len(options))]


def _document(draw: random.Random, split: Split) -> Document:
    towns = _two_names(draw, names_of("town", split))
    said_again = _pick(draw, RELATIONS)
    said_once = _pick(draw, RELATIONS)
    while said_once.kind == said_again.kind:  # founder and ruler: their people could be taken for one another
        said_once = _pick(draw, RELATIONS)
    facts = []
    for relation in (said_again, said_once):
        for town, value in zip(towns, _two_values(draw, relation.kind, split), strict=True):
            facts.append(Fact(town, relation, value, relation is said_once))
    sentences = []
    repeats = 1 + (draw.random() < SECOND_REPEAT_PROBABILITY)  # the towns come in no order: the first will do
    for number, fact in enumerate(facts):
        first = int(draw.random() * len(fact.relation.statements))
        sentences.append(fact.relation.statements[first].format(fact.town, fact.value))
        if number < repeats:
            sentences.append(_other_words(draw, fact.relation, first).format(fact.town, fact.value))
    sentences.sort(key=lambda _: draw.random())  # a shuffle that no change of random.shuffle can alter
    return Document(" and ".join(towns), _join(draw, sentences), tuple(facts))


def _two_values(draw: random.Random, kind: str, split: Split) -> tuple[str, str]:
    if kind == "year":
        years = LAST_YEAR - FIRST_YEAR + 1
        first = int(draw.random() * years)
        second = (first + 1 + int(draw.random() * (years - 1))) % years
        return str(FIRST_YEAR + first), str(FIRST_YEAR + second)
    return _two_names(draw, GOODS if kind == "good" else names_of(kind, split))


def _two_names(draw: random.Random, names: tuple[str, ...]) -> tuple[str, str]:
    first = int(draw.random() * len(names))
    second = (first + 1 + int(draw.random() * (len(names) - 1))) % len(names)
    return names[first], names[second]


def _other_words(draw: random.Random, relation: Relation, first: int) -> str:
    if draw.random() < ASIDE_PROBABILITY:
        return _pick(draw, relation.asides)
    step = 1 + int(draw.random() * (len(relation.statements) - 1))
    return relation.statements[(first + step) % len(relation.statements)]


def _join(draw: random.Random, sentences: list[str]) -> str:
    """Sentences with capitals and full stops; some neighbours become one sentence."""
    joined = [sentences[0]]
    for sentence in sentences[1:]:
        if "?" not in sentence and "?" not in joined[-1] and draw.random() < JOIN_PROBABILITY:
            joined[-1] += _pick(draw, JOINERS) + sentence
        else:
            joined.append(sentence)
    return " ".join(s[0].upper() + s[1:] + "." for s in joined)
