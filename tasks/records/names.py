"""Names that users give to classes and types: which are valid, and which are spellings of one name."""

import unicodedata
from collections.abc import Iterable, Mapping

MAX_NAME_CHARACTERS = 200
WITHOUT_WIDTH = dict.fromkeys(map(ord, "\u200b\u2060\ufeff"))
"""Blanks of no width, which are invisible."""
INVISIBLE = {**dict.fromkeys(map(ord, "\u200c\u200d\u00a0\u202f")), **WITHOUT_WIDTH}
"""Also zero-width joiners, which some scripts write inside words, and blanks that do not break a line."""

STOPS = ".,;:!"
TRUTHS = {"true": "1", "yes": "1", "y": "1", "false": "0", "no": "0", "n": "0"}
SPELLINGS = "only in case, blanks, a stop at the end or Unicode's normal form, or are yes, true and 1"
"""Differences between spellings of one name, after "differ"."""


def find_name_problem(name: str) -> str:
    """Return what is wrong with a name of a class or type; empty if nothing is."""
    visible = name.translate(INVISIBLE)
    if not visible.strip():
        return "is empty"
    if len(name) > MAX_NAME_CHARACTERS:
        return f"has more than {MAX_NAME_CHARACTERS} characters"
    if name != name.strip():
        return "begins or ends with a blank"
    return "" if visible.isprintable() else "has characters that cannot be shown on one line"


def fold_label(name: str) -> str:
    """Return a name in lower case, in the normal form NFKC, without blanks and without stops at its end.

    Digits and minus signs are ASCII; the truths true, yes and y are 1, their opposites 0.
    """
    lower = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).translate(WITHOUT_WIDTH)
    folded = "".join(lower.split()).replace("\u2212", "-")  # the minus sign
    folded = folded.rstrip(STOPS) or folded
    return TRUTHS.get(folded) or "".join(str(unicodedata.decimal(character, character)) for character in folded)


def fold_labels(names: Iterable[str]) -> dict[str, list[str]]:
    """Return folded name -> the names that fold to it, where several do."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(fold_label(name), []).append(name)
    return {folded: group for folded, group in groups.items() if len(group) > 1}


def choose_spellings(counts: Mapping[str, int]) -> dict[str, str]:
    """Return each name that is not the most frequent spelling of its group -> that spelling; of equals, the first."""
    groups = ((max(group, key=counts.__getitem__), group) for group in fold_labels(counts).values())
    return {name: best for best, group in groups for name in group if name != best}
