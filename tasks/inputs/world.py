"""An invented world, from a seed: documents to pre-train on and questions that only reading can answer.

A document tells of one town by four facts (founder, river, fire, ...). Two of the facts are of the same kind, two
people, two years or two goods, so that a question cannot be answered by kind alone. Two facts are said again
in other words, often as question and answer, so that masked-language modelling can learn to fetch a name
from elsewhere in the text. Questions ask for a fact that was said once: the answer is one span. What one
document says of a town another may contradict, so nothing is gained by remembering instead of reading.

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
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, TypeVar

from tasks.inputs.world_text import (
    CODAS,
    ENDINGS,
    FIRST_YEAR,
    GOODS,
    JOINERS,
    LAST_YEAR,
    ONSETS,
    PAIRED_KINDS,
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
ASIDE_PROBABILITY = 0.7
"""A fact said again is put as question and answer."""
SAID_AGAIN = 2
"""Facts of a document, of four, that are said a second time; the others are asked for."""
SECOND_QUESTION_PROBABILITY = 0.3


class Fact(NamedTuple):
    """`relation` of `town` is `value`."""

    town: str
    relation: Relation
    value: str
    asked: bool
    """The value stands in the document once, so that a question may ask for it."""


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


@functools.cache
def names_of(kind: str, split: Split) -> tuple[str, ...]:
    """All names of `kind` (a key of `ENDINGS`) that `split` owns, in a fixed order.

    The letters of a name (their CRC-32, without case) decide which split owns it.
    """
    stems = [onset + vowel + coda for onset in ONSETS[kind] for vowel in VOWELS for coda in CODAS]
    names = (stem + ending for stem in stems for ending in ENDINGS[kind])
    return tuple(name for name in names if zlib.crc32(name.lower().encode()) % 100 in _SHARES[split])


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
    town = _pick(draw, names_of("town", split))
    facts = []
    taken: set[str] = set()
    for relation in _relations(draw):
        while (value := _value(draw, relation.kind, split)) in taken:
            pass  # two goods or two years of a town differ
        taken.add(value)
        facts.append(Fact(town, relation, value, asked=False))
    facts = _shuffled(draw, facts)
    facts = [*facts[:SAID_AGAIN], *(fact._replace(asked=True) for fact in facts[SAID_AGAIN:])]
    sentences = []
    for fact in facts:
        first = int(draw.random() * len(fact.relation.statements))
        sentences.append(fact.relation.statements[first].format(town, fact.value))
        if not fact.asked:
            sentences.append(_other_words(draw, fact.relation, first).format(town, fact.value))
    return Document(town, _join(draw, _shuffled(draw, sentences)), tuple(facts))


def _relations(draw: random.Random) -> list[Relation]:
    """Four relations, two of them of one kind and the others of other kinds."""
    kind = _pick(draw, PAIRED_KINDS)
    pair = _shuffled(draw, [relation for relation in RELATIONS if relation.kind == kind])
    others = _shuffled(draw, [relation for relation in RELATIONS if relation.kind != kind])
    return pair[:2] + others[:2]


def _value(draw: random.Random, kind: str, split: Split) -> str:
    if kind == "year":
        return str(FIRST_YEAR + int(draw.random() * (LAST_YEAR - FIRST_YEAR + 1)))
    return _pick(draw, GOODS if kind == "good" else names_of(kind, split))


def _shuffled(draw: random.Random, items: Iterable[T]) -> list[T]:
    # sorted by draws, not random.shuffle: no later Python can change the order
    return sorted(items, key=lambda _: draw.random())


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
