"""Generator of an invented world: documents for pre-training, and questions that only reading can answer.

A document describes one town by four facts (founder, river, fire, ...). Two of the facts have the same kind: two
people, two years or two goods. So the kind alone does not answer a question. Two facts are repeated in other words,
often as question and answer, which teaches masked-language modelling to copy a name from elsewhere in the text.
Questions ask for a fact that occurs once, so that the answer is one span. Documents may contradict each other about a
town, so memorizing does not help.

Names are made of syllables. A checksum of its letters assigns each name to exactly one split, whatever the seed:
the names in a development question never occur in the corpus or in a training question. Document i depends only on
(seed, split, i): `random.Random` seeded with an integer gives the same numbers on every platform, and no draw depends
on the number of documents.

In a phrasing, {0} is the town and {1} the value. Names are capitalized; everything else is lower case until the
sentence is assembled.
"""

import functools
import random
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, TypeVar

ONSETS = {
    "town": ("B", "Br", "D", "Dr", "H", "K", "Kr", "St"),
    "person": ("F", "G", "L", "M", "N", "R", "S", "Y"),
    "river": ("T", "Tr", "Z"),
    "mountain": ("Gr", "Kl", "Sk"),
    "province": ("P", "Pr", "V", "W"),
}
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("l", "n", "r", "s")
"""First syllable of a name = onset of its kind + vowel + coda, 20 for each onset."""
ENDINGS = {
    "town": tuple(
        middle + end
        for middle in VOWELS
        for end in ("bar", "dun", "fell", "gard", "holm", "mere", "nor", "peth", "rath", "sted", "tor", "wick")
    ),
    "person": ("bek", "dan", "fra", "jon", "kin", "la", "mar", "wyn", "rus", "sen", "ta", "vin"),
    "river": ("del", "ga", "ka", "lume", "mis", "na", "pel", "ra", "sel", "va", "wen", "zil"),
    "mountain": ("bor", "dak", "gorn", "hul", "karn", "lok", "mund", "nak", "pik", "rok", "tur", "zan"),
    "province": ("dia", "gonia", "land", "lia", "mark", "nesse", "nia", "ria", "shire", "sia", "tania", "via"),
}
"""Kind of name -> last syllable or two. Towns need many names: a name that is frequent in the corpus would become one
entry of the vocabulary, which the names in questions never do."""

PAIRED_KINDS = ("person", "year", "good")
"""Kinds with several relations: each document has two facts of one of them."""
GOODS = (
    "amber", "apples", "barley", "bells", "bricks", "butter", "candles", "cheese", "copper", "glass", "honey",
    "iron", "leather", "linen", "oil", "paper", "pears", "rope", "salt", "silk", "silver", "timber", "tin", "wine",
    "wool",
)  # fmt: skip
FIRST_YEAR, LAST_YEAR = 1500, 1699
"""All splits share years and goods, unlike names."""


class Relation(NamedTuple):
    """A property of a town, and its phrasings."""

    kind: str
    """Kind of the value: a key of ENDINGS, `year` or `good`."""
    statements: tuple[str, ...]
    asides: tuple[str, ...]
    """Rhetorical question with its answer; only used to repeat a fact."""
    questions: tuple[str, ...]


# Each relation is the kind of its value, then its statements | its asides | its questions. Relations of one kind differ
# by a word in every statement and question of the relation: founded, rules, poet, built, burned, trade, ships.
_PHRASINGS = """
person:
  {1} founded {0}; {0} was founded by {1}; it was {1} who founded {0}; long ago {1} founded {0} |
  who founded {0}? It was {1}; by whom was {0} founded? People say {1} |
  Who founded {0}?; By whom was {0} founded?; Which person founded {0}?; {0} was founded by whom?

person:
  {1} rules {0}; today {1} rules over {0}; it is {1} who rules {0}; in {0} nobody but {1} rules |
  who rules {0}? Today it is {1}; which person rules over {0}? People name {1} |
  Who rules {0}?; Which person rules over {0}?; Who is it that rules {0}?

year:
  {0} was built in {1}; the walls of {0} were built in {1}; people built {0} in {1}; in {1} people built the town of
  {0} |
  when was {0} built? It was in {1}; in which year was {0} built? It was {1} |
  When was {0} built?; In which year was {0} built?; When was it that people built {0}?

person:
  the poet {1} was born in {0}; {0} is the birthplace of the poet {1}; a poet of {0} was {1}; {0} remembers the poet
  {1} |
  which poet was born in {0}? It was {1}; which poet is remembered in {0}? People name {1} |
  Which poet was born in {0}?; Who was the poet of {0}?; Which poet is remembered in {0}?

year:
  {0} burned down in {1}; the houses of {0} burned in {1}; in {1} the town of {0} burned; {0} burned to the ground
  in {1} |
  in which year was it that {0} burned? In {1}; when was {0} burned down? It was in {1} |
  When was {0} burned down?; In which year was it that {0} burned?; {0} burned in which year?

good:
  ships bring {1} to {0}; {0} gets {1} from ships; the ships of {0} carry {1}; for {1} the people of {0} wait for
  ships |
  what do ships bring to {0}? They bring {1}; what do the ships of {0} carry? They carry {1} |
  What do ships bring to {0}?; What do the ships of {0} carry?; What is it that {0} gets from ships?

river:
  {0} lies on the river {1}; the river {1} flows through {0}; the {1} is the river of {0}; through {0} flows the
  {1}; boats reach {0} on the river {1} |
  which river flows through {0}? The {1}; on which river does {0} lie? On the {1} |
  Which river flows through {0}?; On which river does {0} lie?; What is the river of {0}?; On which river do boats
  reach {0}?

mountain:
  mount {1} rises above {0}; {0} lies below mount {1}; above {0} stands mount {1}; {1} is the mountain of {0}; the
  mountain near {0} is {1} |
  which mountain rises above {0}? Mount {1}; what is the mountain near {0}? It is {1} |
  Which mountain rises above {0}?; Which mountain stands near {0}?; What is the mountain of {0}?; Below which
  mountain does {0} lie?

province:
  {0} is a town in {1}; {0} belongs to the province of {1}; the province of {0} is {1}; the province {1} holds the
  town of {0}; {0} pays its taxes to {1} |
  in which province is {0}? In {1}; to which province does {0} belong? To {1} |
  In which province is {0}?; To which province does {0} belong?; What is the province of {0}?; Which province holds
  {0}?

good:
  the people of {0} trade in {1}; merchants of {0} trade in {1}; the trade of {0} is in {1}; in {0} all trade is in
  {1} |
  what do the people of {0} trade in? In {1}; in what do merchants of {0} trade? In {1} |
  What do the people of {0} trade in?; In what do merchants of {0} trade?; What is the trade of {0} in?
"""
RELATIONS = tuple(
    Relation(kind, *(tuple(" ".join(phrase.split()) for phrase in group.split(";")) for group in phrases.split("|")))
    for kind, _, phrases in (block.strip().partition(":") for block in _PHRASINGS.split("\n\n"))
)

JOINERS = (", while ", ", and ", ", but ")


T = TypeVar("T")
Split = Literal["corpus", "train", "dev"]
SPLITS: tuple[Split, ...] = ("corpus", "train", "dev")
_SHARES = {"corpus": range(0, 70), "train": range(70, 85), "dev": range(85, 100)}
"""Checksums modulo 100 of the names of each split."""

JOIN_PROBABILITY = 0.25
"""Probability that two neighbouring facts share a sentence."""
ASIDE_PROBABILITY = 0.7
"""Probability that a fact is repeated as question and answer."""
REPEATED_FACTS = 2
"""Facts of a document, out of four, that are repeated; questions ask for the others."""
SECOND_QUESTION_PROBABILITY = 0.3


class Fact(NamedTuple):
    """Value of a relation of a town."""

    town: str
    relation: Relation
    value: str


class DemoDocument(NamedTuple):
    """A generated document and its facts."""

    title: str
    text: str
    facts: tuple[Fact, ...]
    """The first REPEATED_FACTS occur twice, the others once."""


class DemoQuestion(NamedTuple):
    """A question about a document; `context[answer_start:]` begins with `answer`, which occurs once."""

    id: str
    title: str
    context: str
    question: str
    answer: str
    answer_start: int


@functools.cache
def list_names(kind: str, split: Split) -> tuple[str, ...]:
    """Return all names of `kind` (a key of `ENDINGS`) that belong to `split`, in a fixed order.

    The CRC-32 of its lower-case letters decides to which split a name belongs.
    """
    stems = [onset + vowel + coda for onset in ONSETS[kind] for vowel in VOWELS for coda in CODAS]
    names = (stem + ending for stem in stems for ending in ENDINGS[kind])
    return tuple(name for name in names if zlib.crc32(name.lower().encode()) % 100 in _SHARES[split])


def make_documents(seed: int, split: Split, count: int, start: int = 0) -> Iterator[DemoDocument]:
    """Generate the documents `start` to `start + count - 1`, each independent of the others."""
    for index in range(start, start + count):
        yield _compose_document(_seeded_random(seed, split, index), split)


def make_questions(seed: int, split: Split, count: int) -> Iterator[DemoQuestion]:
    """Generate the first `count` questions of `split`: one or two about each document, in order."""
    number, index = 0, 0
    while number < count:
        draw = _seeded_random(seed, split, index)
        text = _compose_document(draw, split)
        facts = list(text.facts[REPEATED_FACTS:])
        if draw.random() >= SECOND_QUESTION_PROBABILITY:
            del facts[int(draw.random() * len(facts))]
        for fact in facts[: count - number]:
            wording = _pick(draw, fact.relation.questions).format(fact.town)
            places = [m.start() for m in re.finditer(rf"\b{fact.value}\b", text.text)]
            if len(places) != 1:  # two names of different kinds coincide once in a million
                continue
            yield DemoQuestion(f"{split}-{number:07d}", text.title, text.text, wording, fact.value, places[0])
            number += 1
        index += 1


def _seeded_random(seed: int, split: Split, index: int) -> random.Random:
    return random.Random((seed << 80) | (SPLITS.index(split) << 72) | index)


def _pick(draw: random.Random, options: tuple[T, ...]) -> T:
    # random() * n is a few times faster than choice(), and dominates the generator's run time
    return options[int(draw.random() * len(options))]


def _compose_document(draw: random.Random, split: Split) -> DemoDocument:
    town = _pick(draw, list_names("town", split))
    kind = _pick(draw, PAIRED_KINDS)
    pair = _shuffle(draw, [relation for relation in RELATIONS if relation.kind == kind])
    others = _shuffle(draw, [relation for relation in RELATIONS if relation.kind != kind])
    facts = []
    taken: set[str] = set()
    for relation in pair[:2] + others[:2]:
        while (value := _draw_value(draw, relation.kind, split)) in taken:
            pass  # draw again: two goods or two years of a town must differ
        taken.add(value)
        facts.append(Fact(town, relation, value))
    facts = _shuffle(draw, facts)
    sentences = []
    for number, fact in enumerate(facts):
        first = int(draw.random() * len(fact.relation.statements))
        sentences.append(fact.relation.statements[first].format(town, fact.value))
        if number < REPEATED_FACTS:
            sentences.append(_rephrase(draw, fact.relation, first).format(town, fact.value))
    return DemoDocument(town, _join(draw, _shuffle(draw, sentences)), tuple(facts))


def _draw_value(draw: random.Random, kind: str, split: Split) -> str:
    if kind == "year":
        return str(FIRST_YEAR + int(draw.random() * (LAST_YEAR - FIRST_YEAR + 1)))
    return _pick(draw, GOODS if kind == "good" else list_names(kind, split))


def _shuffle(draw: random.Random, items: Iterable[T]) -> list[T]:
    # sorted by draws instead of random.shuffle, whose order may change with the Python version
    return sorted(items, key=lambda _: draw.random())


def _rephrase(draw: random.Random, relation: Relation, first: int) -> str:
    if draw.random() < ASIDE_PROBABILITY:
        return _pick(draw, relation.asides)
    step = 1 + int(draw.random() * (len(relation.statements) - 1))
    return relation.statements[(first + step) % len(relation.statements)]


def _join(draw: random.Random, sentences: list[str]) -> str:
    """Return the text of sentences, capitalized and with full stops; some neighbours are joined."""
    joined = [sentences[0]]
    for sentence in sentences[1:]:
        if "?" not in sentence and "?" not in joined[-1] and draw.random() < JOIN_PROBABILITY:
            joined[-1] += _pick(draw, JOINERS) + sentence
        else:
            joined.append(sentence)
    return " ".join(s[0].upper() + s[1:] + "." for s in joined)
