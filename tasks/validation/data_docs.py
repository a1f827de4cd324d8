"""Great Expectations' own pages of a data set (Data Docs): its suite, and what was found of every check.

Its renderers make them. What they load from elsewhere (styles, scripts, a logo that is counted) is taken out, and what
people wrote is escaped, which its tables leave to others.
"""

from __future__ import annotations

import html
import importlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ipu_model.files import new_folder, sha256_of, write_text
from tasks.project import artifacts
from tasks.validation.checks import RECORD, Check, Finding, number
from tasks.validation.judge import expectation, great_expectations, suite_values

RESULTS, SUITE = "index.html", "expectations.html"
_NOT_KEPT = re.compile(
    r"<script\b.*?</script>|<style\b.*?</style>|<footer\b.*?</footer>|<link\b[^>]*>|<img\b[^>]*>| onclick=\"[^\"]*\"",
    re.DOTALL,
)
_LOGO = re.compile(r'<a href="[^"]*">\s*</a>')
"""What the picture leaves of the first link of a page."""
_HEAD = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root { color-scheme: light dark; --line: light-dark(#d5d9e0, #3d4450); --quiet: light-dark(#566070, #a3adbb);
  background: light-dark(#fff, #14171c); } @media print { :root { color-scheme: light; } }
body { margin: 0 auto; padding: 0 20px 40px; max-width: 1200px; font: 16px/1.5 system-ui, sans-serif; }
body > nav { height: auto !important; border-bottom: 1px solid var(--line); } ol { list-style: none; padding: 0; }
h4, h5 { margin: 24px 0 8px; font-size: 1.15rem; } h6, .h6 { margin: 8px 0; font-size: 1rem; font-weight: 600; }
table { border-collapse: collapse; max-width: 100%; } .show-scrollbars { overflow-x: auto; }
h4, h5, table table td:last-child { overflow-wrap: anywhere; min-width: 7em; }
th, td { padding: 6px 14px; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th, .lead { color: var(--quiet); font-weight: 400; } table table { margin-top: 8px; }
.ge-navigation-sidebar-content { padding: 0; display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; }
.card-body, #navigation { max-height: none !important; } .card-header, p.card-text { display: none; }
.fas { font-style: normal; } .fa-check-circle::before { content: "✓"; } .fa-times::before { content: "✕"; }
.text-success { color: light-dark(#1a6e37, #6fd08c); } .text-danger { color: light-dark(#a8201a, #ff8f87); }
a[data-toggle] { display: none; } div[style="color:red;"] { color: var(--quiet) !important; }
body:has(#option2:checked) .ge-section:has(.hide-succeeded-validations-column-section-target-child) { display: none; }
@media (max-width: 640px) { th, td { padding: 6px; } .table > thead { display: none; }
  .table > tbody > tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--line); }
  .table > tbody > tr > td { border: 0; min-width: 0; max-width: calc(100% - 48px); } }
</style>
</head>"""
"""Instead of what the pages load: plain styles, and a filter that works without a script."""


def write_data_docs(
    name: str, checks: Sequence[Check], findings: Sequence[Finding], report: Path, folder: Path
) -> None:
    """Write the pages: index.html of what was found of a data set in all frames, and one of its suite.

    Args:
        report: the verdict that was given on it.
    """
    great_expectations()
    pages = importlib.import_module("great_expectations.render.renderer.page_renderer")
    view = importlib.import_module("great_expectations.render.view").DefaultJinjaPageView()
    result = suite_result(name, findings)
    with new_folder(folder) as site:
        write_text(site / artifacts.SPEAKS_OF, sha256_of(report))
        found = pages.ValidationResultsPageRenderer(run_info_at_end=True).render(result)
        suite = great_expectations().ExpectationSuite(**suite_values(name, [_escaped(check) for check in checks]))
        required = pages.ExpectationSuitePageRenderer().render(suite)
        for file, document in ((RESULTS, found), (SUITE, required)):
            write_text(site / file, alone(view.render(document, show_how_to_buttons=False), name))


def alone(page: str, name: str) -> str:
    """A page of Great Expectations that needs nothing from elsewhere, and leads to Podium's page of the data set.

    Args:
        name: of the data set.
    """
    page = _NOT_KEPT.sub("", page).replace("<html>", '<html lang="en">', 1).replace("</head>", _HEAD, 1)
    verdict = f'<a href="../../{artifacts.VALIDATION.name}/{quote(name)}.html">Validation of {html.escape(name)}</a>'
    page = _LOGO.sub(lambda _: verdict, page, count=1)
    page = re.sub(r'href="[./]*/index.html"', f'href="{RESULTS}"', page)
    return re.sub(r'href="[./]*/expectations/[^"]*"', f'href="{SUITE}"', page)


def _escaped(check: Check) -> Check:
    return replace(check, name=html.escape(check.name), required=html.escape(check.required))


def suite_result(name: str, findings: Sequence[Finding]) -> Any:
    """What Great Expectations found, as its own result of the whole suite."""
    gx = great_expectations()
    successful = sum(finding.ok for finding in findings)
    return great_expectations().core.ExpectationSuiteValidationResult(
        success=successful == len(findings),
        results=[_result(finding) for finding in findings],
        suite_name=name,
        statistics={
            "evaluated_expectations": len(findings),
            "successful_expectations": successful,
            "unsuccessful_expectations": len(findings) - successful,
            "success_percent": 100 * successful / len(findings) if findings else None,
        },
        meta={
            "great_expectations_version": gx.__version__,
            "run_id": gx.RunIdentifier(run_name=name),
            "batch_spec": {"data_asset_name": f"features of {name}"},
        },
    )


def _result(finding: Finding) -> Any:
    judged, check = finding.judgement, _escaped(finding.check)
    values = [number(one.value) for one in judged.unexpected]
    counts = [{"value": value, "count": count} for value, count in Counter(values).most_common()]
    rows = [
        {check.name: value, RECORD: html.escape(one.of)} for value, one in zip(values, judged.unexpected, strict=True)
    ]
    percent = 100 * judged.failed / judged.of if judged.of else 0.0
    return great_expectations().core.ExpectationValidationResult(
        success=finding.ok,
        expectation_config=expectation(check).configuration,
        result={
            "element_count": judged.of,
            "unexpected_count": judged.failed,
            "unexpected_percent": percent,
            "partial_unexpected_list": values,
            "partial_unexpected_counts": counts,
            "unexpected_index_list": rows,
            "unexpected_index_column_names": [RECORD],
            "missing_count": 0,
            "missing_percent": 0.0,
            "unexpected_percent_total": percent,
            "unexpected_percent_nonmissing": percent,
        },
    )
