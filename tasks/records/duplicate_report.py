"""Report of near-duplicates: development examples that also occur in training data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Duplicate:
    """A development example and the text most similar to it."""

    split: str
    """Name of the development set."""
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
    """Texts of the source that were compared."""
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
