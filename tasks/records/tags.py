"""Tags (IOB1, IOB2, BIOES) and the entities that they encode, by the rules of conlleval.

In IOB2 every entity begins with B-. In IOB1 it begins with I-, or with B- directly after an entity of the same type
(Tjong Kim Sang and Veenstra 1999, "Representing Text Chunks"). conlleval reads both: B- begins an entity, and so does
I- after O or another type.

BIOES also marks the last word of an entity (E-) and a single-word entity (S-). BILOU uses L- and U- for these, and BMES
uses M- for I-. They encode the same entities as IOB2.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tasks.records.names import INVISIBLE, find_name_problem

OUTSIDE, BEGIN, INSIDE = "O", "B", "I"
OTHER_SCHEMES = {"E": INSIDE, "L": INSIDE, "M": INSIDE, "S": BEGIN, "U": BEGIN}
"""Prefixes of BIOES, BILOU and BMES -> prefix in IOB."""
PREFIXES = "BIESLUM"
CLOSING = "ESLU"
"""Prefixes that end an entity."""
MAX_TYPE_CHARACTERS = 100
JOINED = re.compile(rf"[|,;+#](?:[{PREFIXES}]-|O(?:[|,;+#]|$))")
"""Another tag in the type of one, as files of nested entities join them."""
BLANKS = re.compile(r"[ \t\r\n]+")
"""White space between tags; a non-breaking blank may be part of a type."""


class Entity(NamedTuple):
    """Words first to last - 1 of a sentence."""

    type: str
    first: int
    last: int


def split_tag(tag: str) -> tuple[str, str]:
    """Return prefix and type of a tag; the type of O is empty."""
    prefix, _, name = tag.partition("-")
    return prefix, name


def split_tags(text: str) -> list[str]:
    """Return the tags of a text that separates them by white space."""
    return [tag for tag in BLANKS.split(text) if tag]


def find_problem(tag: object) -> str | None:
    """Describe what is wrong with a tag; None if it is O, B-type or I-type."""
    return _find_problem(tag) if isinstance(tag, str) else "a tag that is not text"


@functools.lru_cache(maxsize=10_000)
def _find_problem(tag: str) -> str | None:
    prefix, name = split_tag(tag)
    if tag == OUTSIDE:
        return None
    if prefix in (BEGIN, INSIDE):
        if not name:
            return "a tag without a type"
        if JOINED.search(name):
            return "several tags in one (nested entities are not read: write the outer or the inner tag alone)"
        has_blank = any(map(str.isspace, name.translate(INVISIBLE)))
        sound = len(name) <= MAX_TYPE_CHARACTERS and not has_blank and not find_name_problem(name)
        return None if sound else "a type that is not a word"
    if len(prefix) == 1 and prefix in OTHER_SCHEMES:
        return "a tag of another scheme (BIOES, BILOU), supported only by tag_scheme: auto"
    if tag[-2:-1] == "-" and tag[-1] in PREFIXES:
        return (
            "a tag with its prefix at the end (write PER-B as B-PER; where lines end in tags, "
            rf"sed -E 's/(\S+)-([{PREFIXES}])$/\2-\1/' FILE does)"
        )
    return (
        "a tag that is not O and does not begin with B- or I- (change such tags in the file; or, of a line without "
        "column names, the first column is the word, the last the tag: --column tokens=2 --column tags=1 takes others)"
    )


def detect_scheme(tags: Sequence[object]) -> str:
    """Return BIOES, BILOU or BMES if a tag has one of their prefixes, else an empty string."""
    prefixes = {tag[0] for tag in tags if isinstance(tag, str) and tag[:1] in OTHER_SCHEMES and tag[1:2] in ("", "-")}
    if not prefixes:
        return ""
    return "BMES" if "M" in prefixes else "BILOU" if prefixes & {"L", "U"} else "BIOES"


def convert_bioes(tags: Sequence[Any]) -> list[Any]:
    """Convert tags of BIOES, BILOU or BMES to IOB2; anything that is not a tag is unchanged."""
    changed, before = list[Any](), ("", "")
    for tag in tags:
        prefix, name = split_tag(tag) if isinstance(tag, str) else ("", "")
        closed = before[0] in CLOSING and before[1] == name and prefix != BEGIN
        before = (prefix or OUTSIDE, name)
        if prefix in OTHER_SCHEMES or (closed and prefix == INSIDE):
            tag = f"{BEGIN if closed else OTHER_SCHEMES[prefix]}{tag[1:]}"
        changed.append(tag)
    return changed


def looks_like_tag(text: str) -> bool:
    """Return True if the text may be a tag, valid or not."""
    prefix, dash, _ = text.partition("-")
    return len(prefix) == 1 and prefix.isalpha() and prefix.isupper() and (bool(dash) or text == prefix)


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence as conlleval does."""
    entities: list[Entity] = []
    start, current = 0, ""
    for position, tag in enumerate((*tags, OUTSIDE)):
        prefix, name = split_tag(tag)
        if current and (prefix == BEGIN or name != current):
            entities.append(Entity(current, start, position))
            current = ""
        if name and not current:
            start, current = position, name
    return entities


def find_inside_starts(tags: Sequence[str]) -> list[int]:
    """Return the positions of I- tags that begin an entity, allowed in IOB1 but not in IOB2."""
    return [entity.first for entity in find_entities(tags) if split_tag(tags[entity.first])[0] == INSIDE]


def find_begin_starts(tags: Sequence[str]) -> list[int]:
    """Return the positions of B- tags that do not follow an entity of their type, allowed in IOB2 but not in IOB1."""
    before = ("", *(split_tag(tag)[1] for tag in tags))
    return [
        index for index, tag in enumerate(tags) if split_tag(tag)[0] == BEGIN and before[index] != split_tag(tag)[1]
    ]


def convert_to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert tags of IOB1 to IOB2."""
    changed = set(find_inside_starts(tags))
    return [f"{BEGIN}-{split_tag(tag)[1]}" if index in changed else tag for index, tag in enumerate(tags)]


def make_labels(types: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of these types: labels_of_types(["b", "a"]) == ("O", "B-a", "I-a", "B-b", "I-b")."""
    return (OUTSIDE, *(f"{prefix}-{name}" for name in sorted(set(types)) for prefix in (BEGIN, INSIDE)))
