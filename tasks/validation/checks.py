"""What is required of data, and the verdict on it; knows neither the data's format nor the judge.

A data set says which checks it must pass and yields scalar features: one integer per record for every
record check, one number per total check. `tasks/validation/validate.py` lets Great Expectations judge them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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
    """One requirement. Its feature has the check's name and must lie in [minimum, maximum], or in `values`."""

    name: str
    column: str
    """Column, file or key of the data that the check speaks of."""
    required: str
    """The requirement, in words."""
    advice: str
    """Which knob to turn or which file to look at when it fails."""
    minimum: float | None = None
    maximum: float | None = None
    values: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.minimum is None and self.maximum is None and self.values is None:
            raise ValueError(f"check {self.name} requires nothing: give minimum, maximum or values")


@dataclass
class Totals:
    """Features of a whole data set: one number per total check, with what a person wants to see."""

    values: dict[str, float] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    """Text that says what was found, where the bare number does not."""

    def __or__(self, other: Totals) -> Totals:
        """Join the features of both."""
        return Totals(self.values | other.values, self.examples | other.examples, self.shown | other.shown)


class DataSet(Protocol):
    """A data set that can be judged; the methods are called in this order."""

    name: str
    record: str
    """What one record is called: document, question, row."""
    prerequisites: Sequence[Check]
    """Total checks that must hold before anything else can be looked at: schema, files, tokenizer."""
    record_checks: Sequence[Check]
    total_checks: Sequence[Check]

    def prepare(self) -> Totals:
        """Features of the prerequisites."""
        ...

    def frames(self) -> Iterator[Frame]:
        """Features of all records, in order; memory does not grow with their number."""
        ...

    def totals(self) -> Totals:
        """Features of the whole set; called once, after the last frame."""
        ...

    def statistics(self) -> dict[str, Any]:
        """{"numbers": {label: value}, "histograms": [Lengths.histogram(...)]} for the page.

        "notes" may have sentences that people must see, there and on the terminal.
        """
        ...


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


def verdict(
    data: DataSet, rows: int, findings: Sequence[Finding], not_checked: Sequence[Check], statistics: dict[str, Any]
) -> dict[str, Any]:
    """The content of reports/validation/<name>.json; equal data give equal verdicts."""
    numbers = [{"name": name, "value": value} for name, value in statistics["numbers"].items()]
    return {
        "data": data.name,
        "valid": all(finding.ok for finding in findings) and not not_checked,
        "rows": rows,
        "record": data.record,
        "checks": [finding.to_values() for finding in findings],
        "not_checked": [check.name for check in not_checked],
        "notes": statistics.get("notes", []),
        "statistics": {"numbers": numbers, "histograms": statistics["histograms"]},
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


def differing(differences: Sequence[str]) -> str:
    """What was found of something that is compared: "as required", "1 difference", ..."""
    if not differences:
        return "as required"
    return f"{len(differences)} difference{'s' * (len(differences) > 1)}"


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
