"""The wording of the invented world: syllables, relations between a town and a value, and their phrasings.

Only tables; `tasks/inputs/world.py` draws from them. In a phrasing, {0} is the town and {1} the value. Names
begin with a capital; everything else is lower case, and the sentence maker raises its first letter.
"""

from __future__ import annotations

from typing import NamedTuple

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
        for middle in ("a", "e", "i", "o", "u")
        for end in ("bar", "dun", "fell", "gard", "holm", "mere", "nor", "peth", "rath", "sted", "tor", "wick")
    ),
    "person": ("bek", "dan", "fra", "jon", "kin", "la", "mar", "wyn", "rus", "sen", "ta", "vin"),
    "river": ("del", "ga", "ka", "lume", "mis", "na", "pel", "ra", "sel", "va", "wen", "zil"),
    "mountain": ("bor", "dak", "gorn", "hul", "karn", "lok", "mund", "nak", "pik", "rok", "tur", "zan"),
    "province": ("dia", "gonia", "land", "lia", "mark", "nesse", "nia", "ria", "shire", "sia", "tania", "via"),
}
"""Kind of name -> its end, one or two syllables. Towns need many names: a name that is frequent in the corpus
would become one word of the vocabulary, and the names of the questions never would."""

PAIRED_KINDS = ("person", "year", "good")
"""Kinds of several relations: each document has two of one of them."""
GOODS = (
    "amber",
    "apples",
    "barley",
    "bells",
    "bricks",
    "butter",
    "candles",
    "cheese",
    "copper",
    "glass",
    "honey",
    "iron",
    "leather",
    "linen",
    "oil",
    "paper",
    "pears",
    "rope",
    "salt",
    "silk",
    "silver",
    "timber",
    "tin",
    "wine",
    "wool",
)
FIRST_YEAR, LAST_YEAR = 1500, 1699
"""Years and goods are words that all splits share; names are not."""


class Relation(NamedTuple):
    """One thing a document can say of a town."""

    name: str
    kind: str
    """What the value is: a key of ENDINGS, `year` or `good`."""
    statements: tuple[str, ...]
    asides: tuple[str, ...]
    """Question and answer in one, as a storyteller would; only used to say again what was said."""
    questions: tuple[str, ...]


# Relations of one kind (founder, ruler, poet; year, fire; good, wares) are told apart by a word that every
# statement and question of the relation holds: founded, rules, poet, built, burned, trade, ships.
RELATIONS = (
    Relation(
        "founder",
        "person",
        ("{1} founded {0}", "{0} was founded by {1}", "it was {1} who founded {0}", "long ago {1} founded {0}"),
        ("who founded {0}? It was {1}", "by whom was {0} founded? People say {1}"),
        ("Who founded {0}?", "By whom was {0} founded?", "Which person founded {0}?", "{0} was founded by whom?"),
    ),
    Relation(
        "ruler",
        "person",
        ("{1} rules {0}", "today {1} rules over {0}", "it is {1} who rules {0}", "in {0} nobody but {1} rules"),
        ("who rules {0}? Today it is {1}", "which person rules over {0}? People name {1}"),
        ("Who rules {0}?", "Which person rules over {0}?", "Who is it that rules {0}?"),
    ),
    Relation(
        "year",
        "year",
        (
            "{0} was built in {1}",
            "the walls of {0} were built in {1}",
            "people built {0} in {1}",
            "in {1} people built the town of {0}",
        ),
        ("when was {0} built? It was in {1}", "in which year was {0} built? It was {1}"),
        ("When was {0} built?", "In which year was {0} built?", "When was it that people built {0}?"),
    ),
    Relation(
        "poet",
        "person",
        (
            "the poet {1} was born in {0}",
            "{0} is the birthplace of the poet {1}",
            "a poet of {0} was {1}",
            "{0} remembers the poet {1}",
        ),
        ("which poet was born in {0}? It was {1}", "which poet is remembered in {0}? People name {1}"),
        ("Which poet was born in {0}?", "Who was the poet of {0}?", "Which poet is remembered in {0}?"),
    ),
    Relation(
        "fire",
        "year",
        (
            "{0} burned down in {1}",
            "the houses of {0} burned in {1}",
            "in {1} the town of {0} burned",
            "{0} burned to the ground in {1}",
        ),
        ("in which year was it that {0} burned? In {1}", "when was {0} burned down? It was in {1}"),
        ("When was {0} burned down?", "In which year was it that {0} burned?", "{0} burned in which year?"),
    ),
    Relation(
        "wares",
        "good",
        (
            "ships bring {1} to {0}",
            "{0} gets {1} from ships",
            "the ships of {0} carry {1}",
            "for {1} the people of {0} wait for ships",
        ),
        ("what do ships bring to {0}? They bring {1}", "what do the ships of {0} carry? They carry {1}"),
        ("What do ships bring to {0}?", "What do the ships of {0} carry?", "What is it that {0} gets from ships?"),
    ),
    Relation(
        "river",
        "river",
        (
            "{0} lies on the river {1}",
            "the river {1} flows through {0}",
            "the {1} is the river of {0}",
            "through {0} flows the {1}",
            "boats reach {0} on the river {1}",
        ),
        ("which river flows through {0}? The {1}", "on which river does {0} lie? On the {1}"),
        (
            "Which river flows through {0}?",
            "On which river does {0} lie?",
            "What is the river of {0}?",
            "On which river do boats reach {0}?",
        ),
    ),
    Relation(
        "mountain",
        "mountain",
        (
            "mount {1} rises above {0}",
            "{0} lies below mount {1}",
            "above {0} stands mount {1}",
            "{1} is the mountain of {0}",
            "the mountain near {0} is {1}",
        ),
        ("which mountain rises above {0}? Mount {1}", "what is the mountain near {0}? It is {1}"),
        (
            "Which mountain rises above {0}?",
            "Which mountain stands near {0}?",
            "What is the mountain of {0}?",
            "Below which mountain does {0} lie?",
        ),
    ),
    Relation(
        "province",
        "province",
        (
            "{0} is a town in {1}",
            "{0} belongs to the province of {1}",
            "the province of {0} is {1}",
            "the province {1} holds the town of {0}",
            "{0} pays its taxes to {1}",
        ),
        ("in which province is {0}? In {1}", "to which province does {0} belong? To {1}"),
        (
            "In which province is {0}?",
            "To which province does {0} belong?",
            "What is the province of {0}?",
            "Which province holds {0}?",
        ),
    ),
    Relation(
        "good",
        "good",
        (
            "the people of {0} trade in {1}",
            "merchants of {0} trade in {1}",
            "the trade of {0} is in {1}",
            "in {0} all trade is in {1}",
        ),
        ("what do the people of {0} trade in? In {1}", "in what do merchants of {0} trade? In {1}"),
        ("What do the people of {0} trade in?", "In what do merchants of {0} trade?", "What is the trade of {0} in?"),
    ),
)

JOINERS = (", while ", ", and ", ", but ")
"""Between two facts told in one sentence."""
