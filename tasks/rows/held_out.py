"""What is kept from training, so that something is left to judge it on while it runs.

Held-out rows lie in a row folder of their own inside the folder of the training rows. What is held out is decided by
hashes of the data alone, so that it does not depend on the order of the data or on how many processes read them:

- text: every document, by a hash of its text and the seed. Equal texts are on the same side, in both phases;
- questions: whole titles (articles) in order of their hashes until the share is reached, as questions about one
  article help to answer one another. A file with a single title is split by its contexts instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tasks.stage.errors import InputError

_WHOLE = 1 << 64


def is_held_out(text: str, fraction: float, seed: int) -> bool:
    """Whether a document is kept from training: a `fraction` of all texts, another one for every seed."""
    return fraction > 0 and _hash(text, f"text {seed}") < fraction * _WHOLE


def choose_groups(questions: Mapping[str, int], fraction: float, what: str, key: str) -> frozenset[str]:
    """Names of the groups to hold out: at least one, never all, and together a `fraction` of the questions or more.

    Args:
        questions: questions in every group.
        fraction: 0 to 1, 0 for none.
        what: a group is, for the message.
        key: the parameter that states the fraction, for the message.

    Raises:
        InputError: there is a single group, so that nothing could be left to train on.
    """
    if fraction <= 0:
        return frozenset()
    if len(questions) < 2:
        raise InputError(
            f"{key}={fraction:g} needs training questions about at least two {what}s, found "
            f"{len(questions)}: use more questions, or set it to 0"
        )
    wanted, chosen, reached = fraction * sum(questions.values()), set[str](), 0
    for name in sorted(questions, key=lambda name: (_hash(name, what), name))[:-1]:
        if reached >= wanted and chosen:
            break
        chosen.add(name)
        reached += questions[name]
    return frozenset(chosen)


def _hash(text: str, key: str) -> int:
    """A number below 2**64, the same on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=key.encode()[:64])
    return int.from_bytes(digest.digest(), "little")
