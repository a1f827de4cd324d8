"""Checks of data sets and their results, independent of the data's format and of the validator.

A data set declares its checks and yields scalar features: one integer per record for every record check, and one number
for every total check. tasks/validation/validators.py compares them with the limits of the checks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ipu_model.core.units import format_count

Frame = dict[str, np.ndarray]
"""Features of a batch of records: one integer array per record check, of equal length."""
Label = Callable[[int], str]
"""Returns the label of a record, given its place in a batch."""

MAX_EXAMPLES = 3
MAX_EXAMPLE_CHARACTERS = 160
HIGHEST = 100_000
"""Larger numbers are counted as this one; sums and means stay exact."""
BARS = 32
LINEAR_RATIO = 30
"""Ratio of largest to smallest number above which the bars have a logarithmic scale."""


@dataclass(frozen=True)
class DataCheck:
    """A requirement. Its feature has the name of the check and must be within [minimum, maximum].

    A feature without limits counts errors and must be 0.
    """

    name: str
    column: str
    """Column, file or key of the data that is checked."""
    required: str
    advice: str
    """Advice on what to change or inspect if the check fails."""
    minimum: float | None = None
    maximum: float | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest valid value of its feature."""
        if self.minimum is None and self.maximum is None:
            return -math.inf, 0.0
        low, high = -math.inf if self.minimum is None else self.minimum, self.maximum
        return float(low), math.inf if high is None else float(high)


@dataclass(frozen=True)
class TotalFeature:
    """Feature of a total check, with its description and examples."""

    value: float
    shown: str = ""
    """Description of what was found; empty: the number is shown."""
    examples: Sequence[str] = ()

    @classmethod
    def from_differences(cls, differences: Sequence[str]) -> TotalFeature:
        """Return the feature of a comparison with a requirement."""
        count = len(differences)
        return cls(count, format_count(count, "differences") if count else "no differences", differences)


Totals = dict[str, TotalFeature]


class Tally:
    """Counts of a part of a data set, by name; entries begin empty."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.counters: defaultdict[str, Counter[Any]] = defaultdict(Counter)
        self.histograms: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.lists: defaultdict[str, list[Any]] = defaultdict(list)

    def add(self, after: Tally) -> None:
        """Add the tally of the next part."""
        for counter, others in zip(vars(self).values(), vars(after).values(), strict=True):
            for name, value in others.items():
                counter[name] += value


class DataSet(ABC):
    """A data set to validate; `prepare` is called first, then `check` for every part, then the others.

    Parts are checked in several processes. So `check` counts in `tally` alone, and a set of several parts is picklable.
    """

    name: str
    record: str
    """Noun for a record: document, question, row."""
    is_user_data: ClassVar[bool] = True
    """The data come from the user; otherwise Podium made them."""
    prerequisites: Sequence[DataCheck]
    """Total checks that must pass before anything else can be checked: schema, files, tokenizer."""
    total_checks: tuple[DataCheck, ...] = ()
    record_checks: tuple[DataCheck, ...] = ()
    tally: Tally
    """Tally of the part that is checked; later, of all parts."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what `check` needs, for other processes: a part has the paths of its files."""
        return {name: value for name, value in vars(self).items() if name not in ("tally", "files", "folder")}

    @abstractmethod
    def prepare(self) -> Totals:
        """Return the features of the prerequisites."""

    @abstractmethod
    def parts(self) -> Sequence[Any]:
        """Return the parts in order. They depend on the data alone, and their paths are absolute."""

    @abstractmethod
    def check(self, part: Any) -> Iterator[tuple[Frame, Label]]:
        """Yield the features and labels of the records of a part, in batches."""

    def totals(self) -> Totals:
        """Return the features of the total checks, after all parts were checked."""
        return {}

    def numbers(self) -> dict[str, object]:
        """Return the figures for the page, by label."""
        return {}

    def described(self) -> list[str]:
        """Return how the files of the data were read, in lines."""
        return []

    def samples(self) -> list[tuple[str, str]]:
        """Return a few records as the model sees them, each with its label, in words; the page alone shows them."""
        return []

    def histograms(self) -> list[dict[str, Any]]:
        """Return the histograms for the page, see `Histogram.histogram`."""
        return []

    def notes(self) -> list[str]:
        """Return notes to show on the page and on the terminal."""
        return []


@dataclass(frozen=True)
class CheckCounts:
    """Number of records that failed a check."""

    failed: int
    """Failed records; 0 or 1 for a check of the whole set."""
    total: int
    labels: tuple[str, ...] = ()
    """Labels of the first MAX_EXAMPLES of them."""

    def __add__(self, after: CheckCounts) -> CheckCounts:
        """Add the counts of the next records."""
        labels = (*self.labels, *after.labels)[:MAX_EXAMPLES]
        return CheckCounts(self.failed + after.failed, self.total + after.total, labels)


@dataclass(frozen=True)
class CheckOutcome:
    """Result of a check."""

    check: DataCheck
    counts: CheckCounts
    found: str
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.counts.failed == 0

    def to_values(self) -> dict[str, Any]:
        """Return the entry for `checks` in the verdict's JSON."""
        return {
            "name": self.check.name,
            "column": self.check.column,
            "ok": self.ok,
            "found": self.found,
            "required": self.check.required,
            "failed": self.counts.failed,
            "of": self.counts.total,
            "examples": list(self.examples),
            "advice": self.check.advice,
        }


def format_failures(values: Mapping[str, Any], page: str) -> str:
    """Return the error message about the failed checks: requirement, counts, examples and advice."""
    failed = [check for check in values["checks"] if not check["ok"]]
    lines = [f"{values['data']} is not valid: {len(failed)} of {len(values['checks'])} checks failed (see {page})"]
    for check in failed:
        lines.append(f"  {check['name']} ({check['column']}): found {check['found']}; required: {check['required']}")
        if check["examples"]:
            lines.append(f"    for example {'; '.join(check['examples'])}")
        lines.append(f"    {check['advice']}")
    if values["not_checked"]:
        lines.append(f"  skipped, because they need the failed checks: {', '.join(values['not_checked'])}")
    return "\n".join(lines)


def clip_text(text: str) -> str:
    """Return `text` on one line, truncated to the length of an example."""
    line = " ".join(str(text).split())
    return line if len(line) <= MAX_EXAMPLE_CHARACTERS else line[: MAX_EXAMPLE_CHARACTERS - 3] + "..."


def format_number(value: float) -> str:
    """Format a count with thousands separators, or a share with four significant digits."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.4g}"


class Histogram:
    """Distribution of small whole numbers (lengths, counts), accumulated in fixed memory."""

    def __init__(self) -> None:
        self._counts = np.zeros(1, np.int64)
        self.count = 0
        self.sum = 0
        self.largest = 0

    def add(self, lengths: np.ndarray) -> None:
        """Count lengths; integers [n], not negative."""
        if not len(lengths):
            return
        counts = np.bincount(np.minimum(lengths, HIGHEST))
        self._add(counts, len(lengths), int(lengths.sum()), int(lengths.max()))

    def __iadd__(self, other: Histogram) -> Histogram:
        self._add(other._counts, other.count, other.sum, other.largest)
        return self

    def _add(self, counts: np.ndarray, count: int, total: int, largest: int) -> None:
        self.count, self.sum, self.largest = self.count + count, self.sum + total, max(self.largest, largest)
        if len(counts) > len(self._counts):
            self._counts = np.pad(self._counts, (0, len(counts) - len(self._counts)))
        self._counts[: len(counts)] += counts

    @property
    def mean(self) -> float:
        """Mean, rounded to one decimal; 0 without lengths."""
        return round(self.sum / self.count, 1) if self.count else 0.0

    def quantile(self, share: float) -> int:
        """Return the smallest length that at least `share` (0 to 1) of all lengths do not exceed."""
        if not self.count:
            return 0
        return int(np.searchsorted(np.cumsum(self._counts), share * self.count))

    def histogram(self, title: str, unit: str) -> dict[str, Any]:
        """Return the bars for the page: bar i counts the lengths from edges[i] up to, not including, edges[i + 1].

        With `open_end`, the last bar also counts everything above it. With `widening`, bars differ in width.
        """
        seen = np.flatnonzero(self._counts)
        low, high = (int(seen[0]), int(seen[-1])) if len(seen) else (0, 0)
        edges = _edges(low, high)
        below = np.concatenate([[0], np.cumsum(self._counts)])
        counts = np.diff(below[np.minimum(edges, len(self._counts))])
        return {
            "title": title,
            "unit": unit,
            "edges": edges,
            "counts": [int(count) for count in counts],
            "open_end": self.largest > HIGHEST,
            "widening": len(set(np.diff(edges).tolist())) > 1,
        }


def _edges(low: int, high: int) -> list[int]:
    """Return ascending integer edges of at most BARS bars over low..high: _edges(3, 5) == [3, 4, 5, 6]."""
    if high - low < BARS or high <= LINEAR_RATIO * max(1, low):
        width = -(-(high + 1 - low) // BARS)
        bars = -(-(high + 1 - low) // width)
        return [low + width * i for i in range(bars + 1)]
    ratios = np.geomspace(max(1, low), high + 1, BARS + 1 - (low == 0))
    return sorted({low, *(int(round(edge)) for edge in ratios)})
