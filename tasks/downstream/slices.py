"""Scores by property of the examples: where a model is strong and where it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.downstream.metrics import Array, Metrics
from tasks.pages.markup import csv_text

MANY = 50
"""Names of an open property, such as a title, with a slice of their own, at most: those with the most examples."""
FEWEST = 5
"""Examples that such a name has at least."""


@dataclass(frozen=True)
class Slice:
    """Scores of the examples that have one property."""

    by: str
    """The property, such as the length of the context."""
    slice: str
    examples: int
    figures: Mapping[str, float]
    """Every metric in percent, with the bounds of its 95% interval; wide where the examples are few."""

    def record(self) -> dict[str, Any]:
        return {"by": self.by, "slice": self.slice, "examples": self.examples, **self.figures}


def by_name(
    by: str, names: Sequence[str], order: Sequence[str], metrics: Metrics, split: str, outcomes: Array
) -> list[Slice]:
    """A slice for each name of a property that some example has, in the order given.

    Args:
        names: of each example.
        outcomes: [N, Q] of the examples.
    """
    members = np.asarray(names, dtype=object)
    found = {name: np.flatnonzero(members == name) for name in order}
    return [_slice(by, name, where, metrics, split, outcomes) for name, where in found.items() if len(where)]


def by_open_name(
    by: str, names: Sequence[str], metrics: Metrics, split: str, outcomes: Array, lead: str
) -> list[Slice]:
    """The names of a property that has any number of them, worst first, those with few examples together at the end.

    Args:
        lead: the metric to sort by.
    """
    counts = Counter(names)
    if len(counts) < 2:
        return []
    own = [name for name, count in counts.most_common(MANY) if count >= FEWEST]
    members = np.asarray(names, dtype=object)
    found = [
        _slice(by, name or f"(no {by})", np.flatnonzero(members == name), metrics, split, outcomes) for name in own
    ]
    found.sort(key=lambda part: (part.figures[lead], part.slice))
    rest = np.flatnonzero(~np.isin(members, own)) if own else np.arange(len(members))
    if len(rest):
        found.append(_slice(by, f"{len(counts) - len(own):,} other {by}s", rest, metrics, split, outcomes))
    return found


def sized(sizes: Sequence[int], limits: Sequence[tuple[int, str]], above: str) -> tuple[list[str], tuple[str, ...]]:
    """The name of each size, by the first limit that holds it, and all names in order."""
    names = [next((name for limit, name in limits if size <= limit), above) for size in sizes]
    return names, (*(name for _, name in limits), above)


def _slice(by: str, name: str, members: np.ndarray, metrics: Metrics, split: str, outcomes: Array) -> Slice:
    return Slice(by, name, len(members), metrics.only(split).figures({split: outcomes[members]}))


def slices_csv(parts: Sequence[Slice]) -> str:
    """All slices as a table."""
    columns = list(parts[0].record()) if parts else ["by", "slice", "examples"]
    return csv_text(columns, [list(part.record().values()) for part in parts])
