"""Great Expectations as the judge of checks, and its suites of them.

It sees scalar features only (tasks/validation/checks.py): its own expectations on list columns measure their text form,
or take quadratic time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.validation.checks import MAX_UNEXPECTED, RECORD, Check, Frame, Judgement, Unexpected, short
from tasks.validation.gx import great_expectations

COUNTS = {"result_format": "BASIC", "partial_unexpected_count": 0}
RECORDS = {
    "result_format": "SUMMARY",
    "partial_unexpected_count": MAX_UNEXPECTED,
    "unexpected_index_column_names": [RECORD],
}
NO_BARS = {"globally": False, "metric_calculations": False}


class CheckCrashed(RuntimeError):
    """A check could not be evaluated. It says nothing of the data: it is a defect of ours, so no verdict is written."""


class Judge:
    """Great Expectations in memory: no project folder, no progress bars, no network."""

    def __init__(self) -> None:
        """Raises ParamsError where Python was told to forget docstrings."""
        self._gx = great_expectations()
        context = self._gx.get_context(mode="ephemeral")
        context.variables.progress_bars = NO_BARS
        asset = context.data_sources.add_pandas("features").add_dataframe_asset("features")
        self._batches = asset.add_batch_definition_whole_dataframe("all")

    def judge(self, checks: Sequence[Check], frame: Frame) -> dict[str, Judgement]:
        """Judge every check on the records of `frame`.

        Raises:
            CheckCrashed: an expectation raised, or was not evaluated on every record.
        """
        import pandas as pd

        table = pd.DataFrame(frame)
        batch = self._batches.get_batch({"dataframe": table})
        judged = self._judged(checks, batch, len(table), COUNTS)
        # Which records these are takes half as long again, and is nothing where all is well.
        failed = [check for check in checks if judged[check.name].failed]
        return judged | self._judged(failed, batch, len(table), RECORDS) if failed else judged

    def _judged(
        self, checks: Sequence[Check], batch: Any, records: int, result_format: Mapping[str, Any]
    ) -> dict[str, Judgement]:
        suite = self._gx.ExpectationSuite("checks", expectations=[expectation(check) for check in checks])
        result = batch.validate(suite, result_format=dict(result_format))
        judged = {one.expectation_config.meta["check"]: _judgement(one, records) for one in result.results}
        # An expectation that Great Expectations does not know is dropped without a word, and all is well.
        evaluated = result.statistics["evaluated_expectations"]
        if evaluated != len(checks) or set(judged) != {check.name for check in checks}:
            raise CheckCrashed(f"{evaluated} of {len(checks)} checks were evaluated: {sorted(judged)}")
        return judged


def _judgement(result: Any, records: int) -> Judgement:
    name = result.expectation_config.meta["check"]
    found = result.result
    # `exception_info` has two shapes; what was evaluated has counts in either.
    if "unexpected_count" not in found:
        raise CheckCrashed(f"check {name} raised: {result.exception_info}")
    # Missing values would be passed over as if they were right.
    if found["element_count"] != records or found["missing_count"]:
        raise CheckCrashed(
            f"check {name} saw {found['element_count']} of {records} records, "
            f"{found['missing_count']} of them without a value"
        )
    if result.success != (found["unexpected_count"] == 0):
        raise CheckCrashed(f"check {name}: success={result.success} with {found['unexpected_count']} failures")
    rows = found.get("partial_unexpected_index_list", ())
    unexpected = tuple(Unexpected(float(row[name]), short(row[RECORD])) for row in rows)
    return Judgement(int(found["unexpected_count"]), records, unexpected)


def expectation(check: Check) -> Any:
    """A check as an expectation on the column of features that has its name."""
    counts_faults = check.minimum is None and check.maximum is None
    return great_expectations().expectations.ExpectColumnValuesToBeBetween(
        column=check.name,
        min_value=check.minimum,
        max_value=0 if counts_faults else check.maximum,
        description=check.required,
        notes=check.advice,
        meta={"check": check.name, "column": check.column},
    )


def suite_of(name: str, checks: Sequence[Check]) -> Any:
    """The suite of a data set: an expectation for every check, of records and of the whole set."""
    notes = (
        f"What Podium requires of {name} before anything is trained on it. A column holds one integer per record, or "
        "one number for the whole set, which tasks/validation makes of the data that meta.column names."
    )
    expectations = [expectation(check) for check in checks]
    return great_expectations().ExpectationSuite(name, expectations=expectations, notes=notes)
