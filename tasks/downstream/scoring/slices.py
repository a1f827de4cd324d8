"""Scores by property of the examples: where a model is strong and where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.downstream.scoring.metrics import Array, Metrics


@dataclass(frozen=True)
class Slice:
    """Scores of the examples that have one property."""

    by: str
    """The property, such as the length of the context."""
    slice: str
    examples: int
    figures: Mapping[str, float]
    """Every metric in percent, with the bounds of its 95% interval; wide where the examples are few."""
    counted: str = "examples"
    """What the record calls their number."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Other numbers of them, by their names in the record."""

    def record(self) -> dict[str, Any]:
        return {"by": self.by, "slice": self.slice, self.counted: self.examples, **self.counts, **self.figures}


def by_name(
    by: str,
    names: Sequence[str],
    order: Sequence[str],
    metrics: Metrics,
    split: str,
    outcomes: Array,
    counted: str = "examples",
) -> list[Slice]:
    """A slice for each name of a property that some example has, in the order given.

    Args:
        names: of each example.
        outcomes: [N, Q] of the examples.
        counted: see `Slice`.
    """
    members, here = np.asarray(names, dtype=object), metrics.only(split)
    rows = {name: outcomes[members == name] for name in order}
    return [
        Slice(by, name, len(some), here.figures({split: some}), counted) for name, some in rows.items() if len(some)
    ]


def sized(sizes: Sequence[int], limits: Sequence[tuple[int, str]], above: str) -> tuple[list[str], tuple[str, ...]]:
    """The name of each size, by the first limit that holds it, and all names in order."""
    names = [next((name for limit, name in limits if size <= limit), above) for size in sizes]
    return names, (*(name for _, name in limits), above)
