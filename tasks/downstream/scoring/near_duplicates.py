"""Scores without the development examples that have a near-duplicate in the training data."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

import numpy as np

from tasks.downstream.scoring.metrics import Outcomes
from tasks.downstream.scoring.scores import Scores
from tasks.records.duplicate_report import WITHOUT, Duplicate, NearDuplicateReport, SourceReport

NEAR_DUPLICATES, FROM = "near_duplicates", "near_duplicates_from"
"""Keys of the metrics file: number of near-duplicates, and similarity threshold."""
ANY = "either of them"
AROUND = 15
"""Words shown before and after a difference if two texts share more."""
_WORD = re.compile(r"\S+\s*")


@dataclass(frozen=True)
class FilteredScores:
    """Scores without the examples that have a near-duplicate in one source."""

    source: str
    compared: int | None
    """Number of compared texts; None for several sources together."""
    passed_over: int
    """Examples that are too short to compare."""
    examples: int
    """Examples with a near-duplicate."""
    of: int
    figures: Mapping[str, float]
    """Every metric in percent with its 95% interval; empty if a development set has no examples left."""


Pieces = list[tuple[bool, str]]
"""Pieces of a text: True if the other text lacks them, and their words."""


@dataclass(frozen=True)
class NearDuplicateScores:
    """Near-duplicates and their effect on the scores."""

    threshold: float | None
    """Similarity threshold; None if near-duplicates were not searched."""
    sources: tuple[FilteredScores, ...]
    shown: tuple[tuple[Duplicate, Pieces, Pieces], ...]
    """Example pairs, with the pieces of both texts."""

    def record(self) -> dict[str, object]:
        """Return entries for the metrics file; empty if near-duplicates were not searched."""
        if self.threshold is None:
            return {}
        parts = [{"in": part.source, "examples": part.examples, "of": part.of, **part.figures} for part in self.sources]
        return {NEAR_DUPLICATES: self.sources[-1].examples, FROM: self.threshold, WITHOUT: parts}


def score_without_duplicates(task: Scores, report: NearDuplicateReport, outcomes: Outcomes) -> NearDuplicateScores:
    """Return the scores without near-duplicates, for each source and for all sources together."""
    groups: list[tuple[str, int | None, int, Sequence[SourceReport]]]
    groups = [(source.name, source.compared, source.passed_over, [source]) for source in report.sources]
    if len(groups) > 1:
        groups.append((ANY, None, 0, report.sources))
    scores, total = [], sum(map(len, outcomes.values()))
    for name, compared, passed_over, sources in groups:
        excluded = {split: [number for source in sources for number in source.examples(split)] for split in outcomes}
        left = {split: np.delete(rows, excluded[split], axis=0) for split, rows in outcomes.items()}
        figures = task.metrics.figures(left) if all(map(len, left.values())) else {}
        known = {metric: value for metric, value in figures.items() if not math.isnan(value)}
        taken = total - sum(map(len, left.values()))
        scores.append(FilteredScores(name, compared, passed_over, taken, total, known))
    pairs = [pair for source in report.sources for pair in source.shown]
    shown = tuple((pair.pair, *diff_words(pair.text, pair.other)) for pair in pairs)
    return NearDuplicateScores(report.threshold, tuple(scores), shown)


def diff_words(text: str, other: str) -> tuple[Pieces, Pieces]:
    """Return both texts in pieces; case and punctuation are ignored."""
    first, second = _WORD.findall(text), _WORD.findall(other)
    keys = [["".join(filter(str.isalnum, word.casefold())) for word in words] for words in (first, second)]
    equal = SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_matching_blocks()
    shared = [(block.a + step, block.b + step) for block in equal for step in range(block.size)]
    return _pieces(first, {number for number, _ in shared}), _pieces(second, {number for _, number in shared})


def _pieces(words: Sequence[str], shared: set[int]) -> Pieces:
    pieces: Pieces = []
    for alone, group in groupby(range(len(words)), lambda number: number not in shared):
        part = [words[number] for number in group]
        if not alone and len(part) > 2 * AROUND:
            part = [*part[:AROUND], "… ", *part[-AROUND:]]
        pieces.append((alone, "".join(part)))
    return pieces
