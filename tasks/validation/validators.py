"""Validators of checks, one of which uses Great Expectations, and its suites; the only file that imports it.

It gets only scalar features (tasks/validation/checks.py): its own expectations on list columns measure their text form,
or take quadratic time. Processes that compute features do not import it. Half of its import time is spent on packages
for plots, statistical tests, databases and clouds, which are not loaded.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any

import numpy as np

from tasks.stage import process
from tasks.stage.errors import ParamsError
from tasks.validation.checks import (
    MAX_EXAMPLES,
    CheckCounts,
    DataCheck,
    DataSet,
    Frame,
    Label,
    Tally,
    clip_text,
)

LAZY = ("altair", "scipy.stats")
"""Requirements of Great Expectations that are loaded on first use, which no check of Podium needs."""
LEFT_OUT = (
    "azure", "boto3", "botocore", "google.api_core", "google.auth", "google.cloud", "google.oauth2", "pyspark",
    "snowflake", "sqlalchemy",
)  # fmt: skip
"""Optional requirements that it tries to import, hidden from it even if they are installed."""


class _LazyFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in LAZY else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def _hide_optional_packages() -> Iterator[None]:
    """Hide LEFT_OUT from imports inside the context, and load LAZY on first use."""
    finder = _LazyFinder()
    left_out = [name for name in LEFT_OUT if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # None: import fails
    sys.meta_path.insert(0, finder)
    try:
        with process.loading_packages():
            yield
    finally:
        sys.meta_path.remove(finder)
        for name in left_out:
            if sys.modules.get(name, finder) is None:
                del sys.modules[name]


@cache
def load_gx() -> Any:
    """Import Great Expectations and return the package.

    Raises:
        ParamsError: Python runs without docstrings.
    """
    if sys.flags.optimize > 1:
        raise ParamsError(
            "PYTHONOPTIMIZE=2 (python -OO) removes docstrings, and Great Expectations cannot be imported without "
            "them: unset PYTHONOPTIMIZE"
        )
    with _hide_optional_packages():
        import great_expectations as package
    return package


COUNTS = {"result_format": "BASIC", "partial_unexpected_count": 0}
NO_BARS = {"globally": False, "metric_calculations": False}


class CheckCrashed(RuntimeError):
    """A check could not be evaluated, which is a bug and not a property of the data; no verdict is written."""


class LimitValidator:
    """Validator that compares features with the limits of checks, used for rows.

    Features and limits of rows are derived from declared columns. Great Expectations would only repeat the comparison,
    after an import that takes longer than the rows of most runs.
    """

    def validate(self, checks: Sequence[DataCheck], frame: Frame, label: Label = str) -> dict[str, CheckCounts]:
        """Evaluate every check on the records of `frame`."""
        counts = {}
        for check in checks:
            values, (low, high) = frame[check.name], check.limits
            failed = np.flatnonzero(~((values >= low) & (values <= high)))
            labels = tuple(clip_text(label(number)) for number in failed[:MAX_EXAMPLES].tolist())
            counts[check.name] = CheckCounts(len(failed), len(values), labels)
        return counts

    def confirm(self, checks: Sequence[DataCheck], frame: Frame, counts: Mapping[str, CheckCounts]) -> None:
        """Do nothing; a validator that uses another library compares its failures with `counts`."""


def check_part(data: DataSet, part: Any) -> tuple[dict[str, CheckCounts], Tally, Frame]:
    """Return the counts of the record checks of a part, its tally, and for users' data the features of its records."""
    data = copy(data)
    data.tally = Tally()
    counts = {check.name: CheckCounts(0, 0) for check in data.record_checks}
    frames = []
    for frame, label in data.check(part):
        for name, new in LimitValidator().validate(data.record_checks, frame, label).items():
            counts[name] += new
        if data.is_user_data:
            # In the smallest type, because other processes and hosts send them. None is negative.
            frames.append({name: frame[name].astype(np.min_scalar_type(frame[name].max(initial=0))) for name in counts})
    return counts, data.tally, {name: np.concatenate([frame[name] for frame in frames]) for name in counts if frames}


class GxValidator(LimitValidator):
    """Validator that uses Great Expectations in memory: no project folder, no progress bars, no network."""

    def __init__(self) -> None:
        """Raise ParamsError if Python runs without docstrings."""
        self._gx = load_gx()
        context = self._gx.get_context(mode="ephemeral")
        context.variables.progress_bars = NO_BARS
        asset = context.data_sources.add_pandas("features").add_dataframe_asset("features")
        self._batches = asset.add_batch_definition_whole_dataframe("all")

    def validate(self, checks: Sequence[DataCheck], frame: Frame, label: Label = str) -> dict[str, CheckCounts]:
        """Evaluate every check on the records of `frame`.

        Raises:
            CheckCrashed: an expectation raised, was not evaluated on every record, or counted other failures.
        """
        counts = super().validate(checks, frame, label)
        self.confirm(checks, frame, counts)
        return counts

    def confirm(self, checks: Sequence[DataCheck], frame: Frame, counts: Mapping[str, CheckCounts]) -> None:
        # Listing the failing records would take Great Expectations 50 % more time, so it only counts them.
        import pandas as pd

        batch = self._batches.get_batch({"dataframe": pd.DataFrame(frame)})
        suite = self._gx.ExpectationSuite("checks", expectations=[make_expectation(check) for check in checks])
        result = batch.validate(suite, result_format=COUNTS)
        records = max(map(len, frame.values()))
        failed = dict(_count_failed(expectation, records) for expectation in result.results)
        # Great Expectations silently drops expectations that it does not know.
        evaluated = result.statistics["evaluated_expectations"]
        if evaluated != len(checks) or set(failed) != {check.name for check in checks}:
            raise CheckCrashed(f"{evaluated} of {len(checks)} checks were evaluated: {sorted(failed)}")
        if other := [name for name, count in counts.items() if count.failed != failed[name]]:
            raise CheckCrashed(f"Great Expectations counts the failures of {', '.join(other)} differently")


def _count_failed(result: Any, records: int) -> tuple[str, int]:
    """Return the check of an expectation, and the number of records that failed it."""
    name = result.expectation_config.meta["check"]
    details = result.result
    # `exception_info` has two shapes; an evaluated expectation has counts in both.
    if "unexpected_count" not in details:
        raise CheckCrashed(f"check {name} raised: {result.exception_info}")
    # Great Expectations counts missing values as valid.
    if details["element_count"] != records or details["missing_count"]:
        raise CheckCrashed(
            f"check {name} saw {details['element_count']} of {records} records, "
            f"{details['missing_count']} of them without a value"
        )
    if result.success != (details["unexpected_count"] == 0):
        raise CheckCrashed(f"check {name}: success={result.success} with {details['unexpected_count']} failures")
    return name, int(details["unexpected_count"])


def make_expectation(check: DataCheck) -> Any:
    """Return the expectation of a check, on the column of its feature."""
    values = _expectation_values(check)
    del values["type"], values["severity"]  # implied by the class, and the default
    return load_gx().expectations.ExpectColumnValuesToBeBetween(**values.pop("kwargs"), **values)


def make_suite(name: str, checks: Sequence[DataCheck]) -> dict[str, Any]:
    """Return the suite of a data set in Great Expectations' JSON format, without importing the package.

    It has an expectation for every check, of records and of the whole set.
    """
    return {
        "name": name,
        "id": None,
        "expectations": list(map(_expectation_values, checks)),
        "meta": {"great_expectations_version": version("great_expectations")},
        "notes": (
            f"Podium's requirements of {name} before training. A column has one integer per record, or one number for "
            "the whole set, which tasks/validation computes from the data named in meta.column."
        ),
    }


def _expectation_values(check: DataCheck) -> dict[str, Any]:
    low, high = check.limits
    limits = {"min_value": low, "max_value": high}
    return {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": check.name, **{name: limit for name, limit in limits.items() if math.isfinite(limit)}},
        "description": check.required,
        "notes": check.advice,
        "meta": {"check": check.name, "column": check.column},
        "severity": "critical",
    }
