"""Which development examples can tell a good model from a bad one, by their labels."""

from __future__ import annotations

from collections.abc import Collection

from tasks.project.errors import InputError


def require_several(labels: Collection[str | float], split: str, look: str) -> None:
    """Refuse development examples that all have the same label: one constant answer is right for each of them.

    Args:
        labels: those that there are.
        split: for the message.
        look: the parameters that say where they come from.

    Raises:
        InputError: there is one.
    """
    if len(labels) == 1:
        raise InputError(
            f"all {split} examples have the label {next(iter(labels))}: no score on them tells a good model from a bad "
            f"one. Examples of two labels or more are required: look at {look}"
        )


def require_known(known: Collection[str], labels: Collection[str], split: str, look: str) -> None:
    """Refuse development examples whose classes are all unknown to the training examples.

    Args:
        known: the classes of the training examples.
        labels: those of the development examples.
        split, look: as `require_several`.

    Raises:
        InputError: none is known.
    """
    if labels and set(labels).isdisjoint(known):
        raise InputError(
            f"no {split} example has a class of the training examples ({_some(known)}): found {_some(labels)}. The "
            f"same names of classes are required in both: look at {look}"
        )


def _some(names: Collection[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(sorted(names)[:shown]) + more
