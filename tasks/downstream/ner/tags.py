"""Tags of words (IOB1, IOB2, BIOES) and the entities that they stand for, by the rules of conlleval.

In IOB2 every entity begins with B-. In IOB1 it begins with I-, but with B- where an entity of the same type ends just
before it (Tjong Kim Sang and Veenstra 1999, "Representing Text Chunks"). conlleval reads both alike: B- begins an
entity, and so does I- after O or after another type.

BIOES also marks the last word of an entity (E-) and an entity of one word (S-), which BILOU calls L- and U-, and BMES
calls I- M-. They stand for the same entities as tags of IOB2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

OUTSIDE, BEGIN, INSIDE = "O", "B", "I"
OTHER_SCHEMES = {"E": INSIDE, "L": INSIDE, "M": INSIDE, "S": BEGIN, "U": BEGIN}
"""Prefixes that BIOES, BILOU and BMES have and IOB has not -> what they are there."""
CLOSING = "ESLU"
"""Prefixes after which an entity goes no further."""
MAX_TYPE_CHARACTERS = 100


class Entity(NamedTuple):
    """Words first to last - 1 of a sentence."""

    type: str
    first: int
    last: int


def parted(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag; the type of O is empty."""
    prefix, _, name = tag.partition("-")
    return prefix, name


def problem_of(tag: object) -> str | None:
    """What is wrong with a tag, in words; None where it is O, B-type or I-type."""
    if not isinstance(tag, str):
        return "a tag that is no text"
    prefix, name = parted(tag)
    if tag == OUTSIDE:
        return None
    if prefix in (BEGIN, INSIDE):
        if not name:
            return "a tag without a type"
        sound = len(name) <= MAX_TYPE_CHARACTERS and name.isprintable() and not any(map(str.isspace, name))
        return None if sound else "a type that is no word"
    if len(prefix) == 1 and prefix in OTHER_SCHEMES:
        return "a tag of another scheme (BIOES, BILOU), which only tag_scheme: auto reads"
    return "a tag that is neither O nor begins with B- or I-"


def scheme_of(tags: Sequence[object]) -> str:
    """Return BIOES, BILOU or BMES where a tag has a prefix that IOB does not have; empty where none has."""
    prefixes = {tag[0] for tag in tags if isinstance(tag, str) and tag[:1] in OTHER_SCHEMES and tag[1:2] in ("", "-")}
    if not prefixes:
        return ""
    return "BMES" if "M" in prefixes else "BILOU" if prefixes & {"L", "U"} else "BIOES"


def from_bioes(tags: Sequence[Any]) -> list[Any]:
    """Return tags of BIOES, BILOU or BMES in IOB2; what is not a tag stays as it is."""
    changed, before = list[Any](), ("", "")
    for tag in tags:
        prefix, name = parted(tag) if isinstance(tag, str) else ("", "")
        closed = before[0] in CLOSING and before[1] == name and prefix != BEGIN
        before = (prefix or OUTSIDE, name)
        if prefix in OTHER_SCHEMES or (closed and prefix == INSIDE):
            tag = f"{BEGIN if closed else OTHER_SCHEMES[prefix]}{tag[1:]}"
        changed.append(tag)
    return changed


def looks_like_tag(text: str) -> bool:
    """Whether a tag may be meant, sound or not."""
    prefix, dash, _ = text.partition("-")
    return len(prefix) == 1 and prefix.isalpha() and prefix.isupper() and (bool(dash) or text == prefix)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence as conlleval finds them."""
    found: list[Entity] = []
    start, current = 0, ""
    for place, tag in enumerate((*tags, OUTSIDE)):
        prefix, name = parted(tag)
        if current and (prefix == BEGIN or name != current):
            found.append(Entity(current, start, place))
            current = ""
        if name and not current:
            start, current = place, name
    return found


def begun_inside(tags: Sequence[str]) -> list[int]:
    """Places of I- tags that begin an entity, as IOB1 has them and IOB2 has not."""
    return [one.first for one in entities(tags) if parted(tags[one.first])[0] == INSIDE]


def begun_apart(tags: Sequence[str]) -> list[int]:
    """Places of B- tags that follow no entity of their type, as IOB2 has them and IOB1 has not."""
    before = ("", *(parted(tag)[1] for tag in tags))
    return [place for place, tag in enumerate(tags) if parted(tag)[0] == BEGIN and before[place] != parted(tag)[1]]


def to_iob2(tags: Sequence[str]) -> list[str]:
    """The same entities, each begun with B-."""
    changed = set(begun_inside(tags))
    return [f"{BEGIN}-{parted(tag)[1]}" if place in changed else tag for place, tag in enumerate(tags)]


def labels_of_types(types: Iterable[str]) -> tuple[str, ...]:
    """The classes of these types: labels_of_types(["b", "a"]) == ("O", "B-a", "I-a", "B-b", "I-b")."""
    return (OUTSIDE, *(f"{prefix}-{name}" for name in sorted(set(types)) for prefix in (BEGIN, INSIDE)))
