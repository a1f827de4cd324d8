"""Report of near-duplicates: development examples that also occur in training data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WITHOUT = "without_near_duplicates"
"""Key of the metrics file: for each source and for all of them, the near-duplicates and the scores without them."""
FEW = 0.01
"""Share of development examples up to which the terminal does not report them."""


@dataclass(frozen=True)
class Duplicate:
    """A development example and the text most similar to it."""

    split: str
    example: int
    """Number of the example in the set, from 0."""
    similarity: float
    """Jaccard similarity of the two texts, 0 to 1."""
    other: str
    """Reference to the other text, such as its document id."""


@dataclass(frozen=True)
class PairExcerpt:
    """A pair with excerpts of both texts, for the page."""

    pair: Duplicate
    text: str
    other: str


@dataclass(frozen=True)
class SourceReport:
    """Near-duplicates found in one source of training data."""

    name: str
    """Name of the source, such as training examples."""
    compared: int
    passed_over: int
    """Development examples that were too short to search for."""
    pairs: tuple[Duplicate, ...]
    """One pair for each development example with a near-duplicate, in order of the examples."""
    shown: tuple[PairExcerpt, ...]

    def examples(self, split: str) -> list[int]:
        """Return the ascending numbers of a development set's examples that have a near-duplicate."""
        return [pair.example for pair in self.pairs if pair.split == split]


@dataclass(frozen=True)
class NearDuplicateReport:
    """Near-duplicates of development examples in all sources of training data."""

    threshold: float | None
    """Similarity from which two texts are near-duplicates; None: there was no search."""
    sources: tuple[SourceReport, ...]


def describe_near_duplicates(metrics: Mapping[str, Any]) -> str:
    """Return how many development examples have a near-duplicate, and the leading score without them; empty for few."""
    parts = metrics.get(WITHOUT) or [{"examples": 0, "of": 0}]
    every, count = parts[-1], parts[-1]["examples"]  # the last one covers all sources
    if count <= FEW * every["of"]:
        return ""
    sources = ", ".join(f"{part['examples']:,} in {part['in']}" for part in parts[:-1] or parts)
    lead = next((name for name in metrics.get("leading", ()) if name in every), None)
    left = "there is no score without them" if lead is None else f"{lead} {every[lead]:.2f} without them"
    return f"{count:,} of {every['of']:,} development examples have near-duplicates ({sources}): {left}"
