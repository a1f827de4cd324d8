"""Stages validate_*: validate a data set, users' data with Great Expectations and rows by the limits of their columns.

    python -m tasks.validation.validate corpus|PHASE

Writes the verdict to reports/validation/<name>.json with a page next to it, and the suite of expectations for Great
Expectations. If the data are not valid, the stage exits with code 1 after writing all files.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from ipu_model.core.files import write_json, write_text
from tasks.pages.render import render_html
from tasks.params.schema import Params, load_sections
from tasks.plan.main import run_main
from tasks.stage import artifacts, streams
from tasks.stage.errors import DataInvalid
from tasks.stage.parallel import ordered_map, useful_workers
from tasks.stage.process import parse_item
from tasks.stage.row_folders import HELD_OUT, find_held_out_rows
from tasks.validation.checks import (
    MAX_EXAMPLES,
    CheckCounts,
    CheckOutcome,
    DataCheck,
    DataSet,
    Tally,
    Totals,
    clip_text,
    format_failures,
    format_number,
)
from tasks.validation.pretraining_checks import ROW_CHECKS, CorpusData
from tasks.validation.row_checks import RowSource
from tasks.validation.validators import GxValidator, LimitValidator, check_part, make_suite

LEAST_BYTES = 256 << 20
"""Bytes of rows or text that are worth the start of further processes: they take about 1 s on one core."""


@dataclass(frozen=True)
class ValidationResult:
    """Result of the validation of a data set; equal data give equal verdicts."""

    name: str
    record: str
    rows: int
    checks: tuple[DataCheck, ...]
    outcomes: tuple[CheckOutcome, ...]
    """Results of the checks that could be evaluated."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    histograms: Sequence[dict[str, Any]] = ()
    notes: tuple[str, ...] = ()
    described: tuple[str, ...] = ()
    """Interpretation of the files of the data."""
    samples: tuple[tuple[str, str], ...] = ()
    """Records as the model sees them, and their labels; not part of the verdict."""
    more_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of other sets that share the verdict, by key of the JSON."""

    @property
    def verdict(self) -> dict[str, Any]:
        """Content of reports/validation/<name>.json."""
        evaluated = {outcome.check.name for outcome in self.outcomes}
        not_checked = [check.name for check in self.checks if check.name not in evaluated]
        numbers = [{"name": name, "value": value} for name, value in self.numbers.items()]
        return {
            "data": self.name,
            "valid": all(outcome.ok for outcome in self.outcomes) and not not_checked,
            "rows": self.rows,
            "record": self.record,
            "checks": [outcome.to_values() for outcome in self.outcomes],
            "not_checked": not_checked,
            "notes": list(self.notes),
            "described": list(self.described),
            "statistics": {"numbers": numbers, "histograms": list(self.histograms)},
            **self.more_rows,
        }

    def with_another(self, other: ValidationResult, prefix: str) -> ValidationResult:
        """Combine the results of two sets, such as training rows and held-out rows; valid if both are."""

        def add_prefix(check: DataCheck) -> DataCheck:
            return replace(check, name=f"{prefix} {check.name}")

        return replace(
            self,
            checks=(*self.checks, *map(add_prefix, other.checks)),
            outcomes=(
                *self.outcomes,
                *(replace(outcome, check=add_prefix(outcome.check)) for outcome in other.outcomes),
            ),
            notes=(*self.notes, *other.notes),
            more_rows={**self.more_rows, f"{prefix.replace('-', '_')}_rows": other.rows},
        )


def validate_data(data: DataSet, validator: LimitValidator) -> ValidationResult:
    """Evaluate all checks of `data`.

    Raises:
        CheckCrashed: a check could not be evaluated.
        InputError: the data cannot be read.
    """
    checks = (*data.prerequisites, *data.total_checks, *data.record_checks)
    outcomes = _validate_totals(validator, data.prerequisites, data.prepare())
    if not all(outcome.ok for outcome in outcomes):
        return ValidationResult(data.name, data.record, 0, checks, tuple(outcomes))
    counted = {check.name: CheckCounts(0, 0) for check in data.record_checks}
    parts, data.tally = data.parts(), Tally()
    workers = useful_workers(sum(part.bytes for part in parts), LEAST_BYTES)
    for new, tally, frame in ordered_map(partial(check_part, data), parts, workers):
        if frame:  # as int64, of which Great Expectations counts failures in a quarter of the time
            whole = {name: numbers.astype("int64") for name, numbers in frame.items()}
            validator.confirm(data.record_checks, whole, new)
        counted = {name: counts + new[name] for name, counts in counted.items()}
        data.tally.add(tally)
    outcomes += _validate_totals(validator, data.total_checks, data.totals())
    for check in data.record_checks:
        counts = counted[check.name]
        records, every = counts.total, f"{counts.total:,} {data.record}s"
        text = f"{counts.failed:,} of {every} fail" if counts.failed else f"all {every} pass"
        outcomes.append(CheckOutcome(check, counts, text, counts.labels))
    samples = tuple(data.samples()) if all(outcome.ok for outcome in outcomes) else ()  # others may be damaged
    shown = data.numbers(), data.histograms(), tuple(data.notes()), tuple(data.described()), samples
    return ValidationResult(data.name, data.record, records, checks, tuple(outcomes), *shown)


def _validate_totals(validator: LimitValidator, checks: Sequence[DataCheck], totals: Totals) -> list[CheckOutcome]:
    import numpy as np

    counted = validator.validate(checks, {check.name: np.array([totals[check.name].value]) for check in checks})
    outcomes = []
    for check in checks:
        total = totals[check.name]
        examples = tuple(clip_text(text) for text in total.examples[:MAX_EXAMPLES])
        value = total.shown or format_number(total.value)
        outcomes.append(CheckOutcome(check, counted[check.name], value, examples))
    return outcomes


def open_data_sets(name: str, params: Params, root: Path = Path()) -> list[DataSet]:
    """Open the data set of that name in the checkout `root`, and its held-out rows if there are any."""
    if name == "corpus":
        return [CorpusData(root / artifacts.CORPUS, params.validate_)]
    rows = root / artifacts.rows_folder(name)
    return [
        ROW_CHECKS[params.pretrain_rows.row_kind](
            RowSource(
                name,
                folder,
                tokenizer=root / artifacts.TOKENIZER,
                section=f"pretrain_rows.{name}",
                max_positions=params.model.max_positions,
                max_unknown_share=params.validate_.max_unknown_share,
            ),
            params.pretrain_rows.masked_fraction,
        )
        for folder in (rows, find_held_out_rows(rows))
        if folder is not None
    ]


def validate_new_data(name: str, open_sets: Callable[[], Sequence[DataSet]]) -> str:
    """Validate data sets before they become outs; of the verdict on invalid ones, only the page stays.

    See `validate_and_report`.
    """
    try:
        return validate_and_report(name, open_sets)
    except DataInvalid:
        for path in (artifacts.validation_report(name), artifacts.expectations_file(name)):
            path.unlink()
        raise


def validate_and_report(name: str, open_sets: Callable[[], Sequence[DataSet]]) -> str:
    """Validate data sets that share a verdict, write it with its page and suite, and return the stage's last line.

    Raises:
        DataInvalid: the data are not valid; the message and the page list the failed checks.
        CheckCrashed: a check could not be evaluated, so there is no verdict.
    """
    started_at = time.perf_counter()
    report = artifacts.validation_report(name)
    report.unlink(missing_ok=True)  # older verdicts and pages are about other data
    data, *others = open_sets()
    validator = GxValidator() if data.is_user_data else LimitValidator()
    result = validate_data(data, validator)
    for other in others:
        result = result.with_another(validate_data(other, validator), HELD_OUT if other.name == name else other.name)
    result = replace(result, name=name)
    values = result.verdict
    html = report.with_suffix(".html")
    write_json(report, values)
    write_text(html, render_page({**values, "samples": result.samples}))
    write_json(artifacts.expectations_file(name), make_suite(name, result.checks))
    for text in values["notes"]:
        streams.note(f"{name}: {text}")
    if not values["valid"]:
        raise DataInvalid(format_failures(values, str(html)))
    return (
        f"{name}: {values['rows']:,} {data.record}s, {len(values['checks'])} checks passed, "
        f"{time.perf_counter() - started_at:.1f} s; {html}"
    )


def render_page(values: Mapping[str, Any]) -> str:
    """Render the page of a verdict, see `ValidationResult.verdict`."""
    statistics = values["statistics"]
    return render_html(
        __file__,
        "validation.html.j2",
        **{name: value for name, value in values.items() if name != "statistics"},
        numbers=[(number["name"], format_number(number["value"]), "") for number in statistics["numbers"]],
        histograms=[{**histogram, "bins": _format_bins(histogram)} for histogram in statistics["histograms"]],
    )


def _format_bins(histogram: Mapping[str, Any]) -> list[str]:
    """Return the range of each bin of a histogram."""
    edges = histogram["edges"]
    bins = [f"{low:,}" if low == end - 1 else f"{low:,} to {end - 1:,}" for low, end in pairwise(edges)]
    if histogram["open_end"]:
        bins[-1] = f"{edges[-2]:,} and more"
    return bins


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.validation.validate",
        description="Validate a data set.",
    )
    parser.add_argument("name", type=parse_item)
    name = parser.parse_args().name
    params = load_sections("validate_", "pretrain_rows", "model")
    print(validate_and_report(name, lambda: open_data_sets(name, params)))


if __name__ == "__main__":
    run_main(main)
