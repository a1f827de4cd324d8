"""What is required of data, and the verdict on it; knows neither the data's format nor the judge.

A data set says which checks it must pass and yields scalar features: one integer per record for every
record check, one number per total check. tasks/validation/judge.py judges them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

Frame = dict[str, np.ndarray]
"""Features of some records: "record" (labels) and one integer array per record check, of equal length."""

RECORD = "record"
FRAME_RECORDS = 100_000
"""Records judged at a time; a frame of scalars of this size is 10 to 20 MB."""
MAX_EXAMPLES = 3
MAX_UNEXPECTED = 20
"""Features that the pages of Great Expectations show of a failed check."""
MAX_EXAMPLE_CHARACTERS = 160


@dataclass(frozen=True)
class Check:
    """One requirement. Its feature has the check's name and must lie in [minimum, maximum].

    A feature without either limit counts faults, of which there may be none.
    """

    name: str
    column: str
    """Column, file or key of the data that the check speaks of."""
    required: str
    """The requirement, in words."""
    advice: str
    """Which knob to turn or which file to look at when it fails."""
    minimum: float | None = None
    maximum: float | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest value of its feature."""
        if self.minimum is None and self.maximum is None:
            return -math.inf, 0.0
        low, high = -math.inf if self.minimum is None else self.minimum, self.maximum
        return float(low), math.inf if high is None else float(high)


@dataclass(frozen=True)
class Total:
    """The feature of a total check, with what a person wants to see of it."""

    value: float
    shown: str = ""
    """Text that says what was found, where the bare number does not."""
    examples: Sequence[str] = ()

    @classmethod
    def of_differences(cls, differences: Sequence[str]) -> Total:
        """Return what was found where something is compared with what is required of it."""
        count = len(differences)
        return cls(count, f"{count} difference{'s' * (count > 1)}" if count else "as required", differences)


Totals = dict[str, Total]
"""By the name of the total check."""


class DataSet(ABC):
    """A data set that can be judged; `prepare` is called first, then `frames`, then the others."""

    name: str
    record: str
    """What one record is called: document, question, row."""
    is_given: ClassVar[bool] = True
    """Whether people gave the data; else this program made them."""
    prerequisites: Sequence[Check]
    """Total checks that must hold before anything else can be looked at: schema, files, tokenizer."""
    total_checks: tuple[Check, ...] = ()
    """Checks of the whole set."""
    record_checks: tuple[Check, ...] = ()
    """Checks of every record."""

    @abstractmethod
    def prepare(self) -> Totals:
        """Return the features of the prerequisites."""

    def frames(self) -> Iterator[Frame]:
        """Yield the features of all records, in order; memory does not grow with their number."""
        return iter(())

    def totals(self) -> Totals:
        """Return the features of the total checks, once all records were seen."""
        return {}

    def numbers(self) -> dict[str, Any]:
        """Return the figures of the page, by label."""
        return {}

    def histograms(self) -> list[dict[str, Any]]:
        """Return what the page draws, as `Lengths.histogram` gives it."""
        return []

    def notes(self) -> list[str]:
        """Return sentences that people must see, on the page and on the terminal."""
        return []


@dataclass(frozen=True)
class Unexpected:
    """A feature that does not lie where its check requires."""

    value: float
    of: str
    """The record, or what was found of the whole set."""


@dataclass(frozen=True)
class Judgement:
    """What the judge says of one check."""

    failed: int
    """Records that do not meet the requirement; 0 or 1 for a check of the whole set."""
    of: int
    unexpected: tuple[Unexpected, ...] = ()
    """The first MAX_UNEXPECTED of them."""

    def __add__(self, after: Judgement) -> Judgement:
        """Of the records of two frames."""
        unexpected = (*self.unexpected, *after.unexpected)[:MAX_UNEXPECTED]
        return Judgement(self.failed + after.failed, self.of + after.of, unexpected)


@dataclass(frozen=True)
class Finding:
    """What came of one check."""

    check: Check
    judgement: Judgement
    found: str
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.judgement.failed == 0

    def to_values(self) -> dict[str, Any]:
        """The entry of the verdict's `checks`."""
        return {
            "name": self.check.name,
            "column": self.check.column,
            "ok": self.ok,
            "found": self.found,
            "required": self.check.required,
            "failed": self.judgement.failed,
            "of": self.judgement.of,
            "examples": list(self.examples),
            "advice": self.check.advice,
        }


def explain(values: Mapping[str, Any], page: str) -> str:
    """One message of all failed checks: which, how many of how many, examples, where to look."""
    failed = [check for check in values["checks"] if not check["ok"]]
    lines = [
        f"{values['data']} is not fit to train on: {len(failed)} of {len(values['checks'])} checks failed (see {page})"
    ]
    for check in failed:
        lines.append(f"  {check['name']} ({check['column']}): found {check['found']}; required: {check['required']}")
        if check["examples"]:
            lines.append(f"    for example {'; '.join(check['examples'])}")
        lines.append(f"    {check['advice']}")
    if values["not_checked"]:
        lines.append(f"  not checked because of this: {', '.join(values['not_checked'])}")
    return "\n".join(lines)


def short(text: str) -> str:
    """`text` cut to the length of an example, on one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= MAX_EXAMPLE_CHARACTERS else line[: MAX_EXAMPLE_CHARACTERS - 3] + "..."


def number(value: float) -> str:
    """A count with thousands separators, or a share with four significant digits."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.4g}"


def gathered(frames: Iterable[Frame], records: int = FRAME_RECORDS) -> Iterator[Frame]:
    """Join small frames until they hold at least `records`: the judge has a fixed price per frame."""
    waiting: list[Frame] = []
    held = 0
    for frame in frames:
        waiting.append(frame)
        held += len(frame[RECORD])
        if held >= records:
            yield _joined(waiting)
            waiting, held = [], 0
    if held:
        yield _joined(waiting)


def _joined(frames: Sequence[Frame]) -> Frame:
    return {name: np.concatenate([frame[name] for frame in frames]) for name in frames[0]}
