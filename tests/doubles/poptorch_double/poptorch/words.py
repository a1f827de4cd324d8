"""Lists of names, written as text."""

from __future__ import annotations

from typing import FrozenSet


def words(text: str) -> FrozenSet[str]:
    """The words of a text."""
    return frozenset(text.split())
