"""Great Expectations' verdict on a data set: the only file that knows Great Expectations.

    python -m tasks.validation.validate corpus|phase1|phase2

Writes reports/validation/<name>.json and a page for people beside it; data that are not fit to train on
end the stage with exit code 1, after both are written.

Great Expectations sees scalar features only (tasks/validation/checks.py): its own expectations on list columns measure
their text form, or take quadratic time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tasks.project import artifacts
from tasks.project.errors import DataInvalid, ParamsError
from tasks.project.files import new_folder, write_json, write_text
from tasks.project.main import run_main
from tasks.project.params import PHASES, Params, load_params
from tasks.project.process import item
from tasks.project.row_folders import HELD_OUT, held_out_folder
from tasks.validation.checks import (
    MAX_EXAMPLES,
    RECORD,
    Check,
    DataSet,
    Finding,
    Frame,
    Totals,
    explain,
    number,
    short,
    verdict,
)
from tasks.validation.corpus_checks import corpus_data
from tasks.validation.pretrain_rules import PretrainRules
from tasks.validation.row_checks import RowData
from tasks.validation.row_rules import RulesOf
from tasks.validation.validation_page import page

_NO_BARS = {"globally": False, "metric_calculations": False}
NAMES = ("corpus", *PHASES)


class CheckCrashed(RuntimeError):
    """A check could not be evaluated. It says nothing of the data: it is a defect of ours, so no verdict is written."""


@dataclass
class Judgement:
    """What Great Expectations says of one check on one frame."""

    failed: int
    of: int
    examples: list[str]


class Judge:
    """Great Expectations in memory: no project folder, no progress bars, no network."""

    def __init__(self) -> None:
        """Raises ParamsError where Python was told to forget docstrings."""
        if sys.flags.optimize > 1:
            raise ParamsError(
                "PYTHONOPTIMIZE=2 (python -OO) takes docstrings away, without which Great Expectations is not even "
                "imported: unset PYTHONOPTIMIZE"
            )
        import great_expectations as gx

        self._gx = gx
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = _NO_BARS
        asset = context.data_sources.add_pandas("features").add_dataframe_asset("features")
        self._batches = asset.add_batch_definition_whole_dataframe("all")

    def judge(self, checks: Sequence[Check], frame: Frame) -> dict[str, Judgement]:
        """Judge every check on the records of `frame`.

        Raises:
            CheckCrashed: an expectation raised, or was not evaluated on every record.
        """
        import pandas as pd

        table = pd.DataFrame(frame)
        suite = self._gx.ExpectationSuite("checks", expectations=[self._expectation(check) for check in checks])
        result = self._batches.get_batch({"dataframe": table}).validate(
            suite,
            result_format={
                "result_format": "SUMMARY",
                "partial_unexpected_count": MAX_EXAMPLES,
                "unexpected_index_column_names": [RECORD],
            },
        )
        judged = {one.expectation_config.meta["check"]: _judgement(one, len(table)) for one in result.results}
        # An expectation that Great Expectations does not know is dropped without a word, and all is well.
        evaluated = result.statistics["evaluated_expectations"]
        if evaluated != len(checks) or set(judged) != {check.name for check in checks}:
            raise CheckCrashed(f"{evaluated} of {len(checks)} checks were evaluated: {sorted(judged)}")
        return judged

    def _expectation(self, check: Check) -> Any:
        expectations = self._gx.expectations
        meta = {"check": check.name}
        if check.values is not None:
            return expectations.ExpectColumnValuesToBeInSet(column=check.name, value_set=list(check.values), meta=meta)
        return expectations.ExpectColumnValuesToBeBetween(
            column=check.name, min_value=check.minimum, max_value=check.maximum, meta=meta
        )


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
    examples = [short(row[RECORD]) for row in found["partial_unexpected_index_list"]]
    return Judgement(int(found["unexpected_count"]), records, examples)


def validate(data: DataSet, judge: Judge) -> dict[str, Any]:
    """The verdict on `data`, as written to JSON.

    Raises:
        CheckCrashed: a check could not be evaluated.
        InputError: the data cannot be read at all.
    """
    findings = _judge_totals(judge, data.prerequisites, data.prepare())
    if not all(finding.ok for finding in findings):
        rest = [*data.total_checks, *data.record_checks]
        return verdict(data, 0, findings, rest, {"numbers": {}, "histograms": []})
    failed = dict.fromkeys((check.name for check in data.record_checks), 0)
    examples: dict[str, list[str]] = {name: [] for name in failed}
    records = 0
    for frame in data.frames():
        judged = judge.judge(data.record_checks, frame)
        records += len(frame[RECORD])
        for name, judgement in judged.items():
            failed[name] += judgement.failed
            examples[name] = (examples[name] + judgement.examples)[:MAX_EXAMPLES]
    findings += _judge_totals(judge, data.total_checks, data.totals())
    for check in data.record_checks:
        name = check.name
        found = f"{failed[name]:,} of {records:,} {data.record}s do not meet this"
        if not failed[name]:
            found = f"all {records:,} {data.record}s meet this"
        findings.append(Finding(check, failed[name], records, found, tuple(examples[name])))
    return verdict(data, records, findings, (), data.statistics())


def _judge_totals(judge: Judge, checks: Sequence[Check], totals: Totals) -> list[Finding]:
    import numpy as np

    frame = {check.name: np.array([totals.values[check.name]]) for check in checks}
    judged = judge.judge(checks, {RECORD: np.array(["all"]), **frame})
    findings = []
    for check in checks:
        found = totals.shown.get(check.name, number(totals.values[check.name]))
        shown = tuple(short(text) for text in totals.examples.get(check.name, [])[:MAX_EXAMPLES])
        findings.append(Finding(check, judged[check.name].failed, 1, found, shown))
    return findings


def data_sets(name: str, params: Params, root: Path = Path()) -> list[DataSet]:
    """The data set of that name, at its place in the checkout `root`, then what was held out of it."""
    if name == "corpus":
        return [corpus_data(root / artifacts.CORPUS, params.validate_)]
    rules: RulesOf = partial(PretrainRules, masked_fraction=params.pretrain_rows.masked_fraction)
    section = f"pretrain_rows.{name}"
    rows = root / artifacts.rows_folder(name)
    folders = [folder for folder in (rows, held_out_folder(rows)) if folder is not None]
    most = params.model.max_positions
    return [RowData(name, folder, root / artifacts.TOKENIZER, most, section, rules) for folder in folders]


def with_others(values: dict[str, Any], others: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """A verdict that holds for two sets, such as rows and those held out of them: valid if both are, all checks listed.

    Args:
        prefix: what the names of the second set's checks begin with.
    """
    checks = [{**check, "name": f"{prefix} {check['name']}"} for check in others["checks"]]
    return {
        **values,
        "valid": values["valid"] and others["valid"],
        "checks": [*values["checks"], *checks],
        "not_checked": [*values["not_checked"], *(f"{prefix} {name}" for name in others["not_checked"])],
        f"{prefix.replace('-', '_')}_rows": others["rows"],
    }


def write_reports(values: Mapping[str, Any], report: Path) -> Path:
    """Write the verdict and its page; returns the page's path."""
    html = report.with_suffix(".html")
    write_json(report, values)
    write_text(html, page(values))
    return html


def write_data_docs(values: Mapping[str, Any], folder: Path) -> None:
    """Great Expectations' own pages of a verdict, as a site in `folder` (start at index.html).

    One column per check holds the records that failed it in the whole data set, as the frames were judged one by
    one. Made in a temporary project, so that no path of this machine ends in the site.
    """
    import great_expectations as gx
    import pandas as pd

    name = values["data"]
    expectations = [
        gx.expectations.ExpectColumnValuesToBeBetween(
            column=check["name"], max_value=0, description=f"{check['name']}: {check['required']}"
        )
        for check in values["checks"]
    ]
    failed = pd.DataFrame({check["name"]: [check["failed"]] for check in values["checks"]})
    with tempfile.TemporaryDirectory() as project, new_folder(folder) as site:
        context = gx.get_context(mode="file", project_root_dir=project)
        context.variables.progress_bars = _NO_BARS
        store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(site.absolute())}
        index = {"class_name": "DefaultSiteIndexBuilder"}
        context.add_data_docs_site(
            name,
            {
                "class_name": "SiteBuilder",
                "site_index_builder": index,
                "store_backend": store,
                "show_how_to_buttons": False,
            },
        )
        asset = context.data_sources.add_pandas(name).add_dataframe_asset("failed_records")
        suite = context.suites.add(gx.ExpectationSuite(name, expectations=expectations))
        batches = asset.add_batch_definition_whole_dataframe("all")
        definition = gx.ValidationDefinition(name=name, data=batches, suite=suite)
        context.validation_definitions.add(definition).run(batch_parameters={"dataframe": failed})
        context.build_data_docs(site_names=[name])


def judge_and_report(
    name: str,
    open_sets: Callable[[], Sequence[DataSet]],
    data_docs: bool,
    more: Callable[[], Mapping[str, float]] = dict,
) -> str:
    """Judge data sets that share a verdict, write it and its page; the line that says so.

    Args:
        more: gives further figures of valid data for the page, by name.

    Raises:
        DataInvalid: the data are not fit to train on; what is wrong is in the message and on the page.
        CheckCrashed: a check could not be evaluated; there is no verdict then.
    """
    started_at = time.perf_counter()
    report = artifacts.validation_report(name)
    report.unlink(missing_ok=True)  # an older verdict does not speak of these data
    judge, (data, *others) = Judge(), open_sets()
    values = validate(data, judge)
    for other in others:
        values = with_others(values, validate(other, judge), HELD_OUT if other.name == name else other.name)
    values["data"] = name
    if values["valid"]:
        values["statistics"]["numbers"] += [{"name": title, "value": value} for title, value in more().items()]
    html = write_reports(values, report)
    if data_docs:
        write_data_docs(values, artifacts.DATA_DOCS / name)
    if not values["valid"]:
        raise DataInvalid(explain(values, str(html)))
    return (
        f"{name}: {values['rows']:,} {data.record}s, {len(values['checks'])} checks passed, "
        f"{time.perf_counter() - started_at:.1f} s; {html}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.validation.validate",
        description="Give the verdict of Great Expectations on a data set.",
    )
    parser.add_argument("name", type=item, choices=NAMES)
    name = parser.parse_args().name
    params = load_params()
    print(judge_and_report(name, lambda: data_sets(name, params), params.validate_.data_docs))


if __name__ == "__main__":
    run_main(main)
