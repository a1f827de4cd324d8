"""Choice of held-out data, used to evaluate a model during training.

Held-out rows have their own row folder inside the folder of the training rows. Hashes of the data alone decide what is
held out, so the choice does not depend on the order of the data or on the number of processes:

- text: each document, by a hash of its text and the seed. Equal texts are on the same side, in both phases. Of few
  documents, the one with the smallest hash is held out if no other is;
- questions: whole titles (articles) in order of their hashes until the share is reached, because questions about one
  article help to answer each other. A file with a single title is split by its contexts instead.
"""

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping

from tasks.stage.errors import InputError

_WHOLE = 1 << 64


def is_held_out(text: str, fraction: float, seed: int) -> bool:
    """Tell whether a document is held out: a `fraction` of all texts, different for every seed."""
    return fraction > 0 and _hash(text, f"text {seed}") < fraction * _WHOLE


def resolve_fraction(texts: Iterable[str], fraction: float, seed: int) -> float:
    """Return `fraction`, or the smallest one with which a document is held out; none can be if all texts are equal."""
    if fraction <= 0:
        return fraction
    least, most = _WHOLE, -1
    for text in texts:
        number = _hash(text, f"text {seed}")
        if number < fraction * _WHOLE:
            return fraction
        least, most = min(least, number), max(most, number)
    return math.nextafter(least / _WHOLE, 1) if least < most else fraction


def choose_groups(questions: Mapping[str, int], fraction: float, what: str, key: str) -> frozenset[str]:
    """Choose groups to hold out: at least one, never all, with a `fraction` of the questions or more; none for 0.

    `questions` has the number of questions of each group; the message has a noun for a group, and the parameter that
    sets the fraction.

    Raises:
        InputError: there is only one group, so nothing would be left to train on.
    """
    if fraction <= 0:
        return frozenset()
    if len(questions) < 2:
        raise InputError(
            f"{key}={fraction:g} needs training questions about at least two {what}s; found "
            f"{len(questions)}. Add questions, or set it to 0"
        )
    target, chosen, reached = fraction * sum(questions.values()), set[str](), 0
    for name in sorted(questions, key=lambda name: (_hash(name, what), name))[:-1]:
        if reached >= target and chosen:
            break
        chosen.add(name)
        reached += questions[name]
    return frozenset(chosen)


def _hash(text: str, key: str) -> int:
    """Return a hash below 2**64 that is the same on every machine."""
    digest = _start(key).copy()
    digest.update(text.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest(), "little")


@functools.lru_cache(16)
def _start(key: str) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8, key=key.encode()[:64])
