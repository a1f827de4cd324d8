"""Copies of pages: reports/run.html is that of the newest run in its folder, reports/runs/ has those that ended."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.pages.facts import KIND, link
from flows.report import RunReport, outcome
from tasks.project import artifacts

MOST = 50
"""In a folder; of more, the oldest go."""
NAMED = re.compile(r"(\d{8}-\d{6})-([a-z]+)\.html")
STAMP = "%Y%m%d-%H%M%S"


def place_of(report: RunReport, root: Path) -> Path:
    """Where the copy of a run's page lies; its name says when the run began, and how it ended."""
    began = datetime.fromisoformat(report.began) if report.began else datetime.fromtimestamp(0)
    return root / artifacts.RUN_PAGES / f"{began.strftime(STAMP)}-{outcome(report)}.html"


def every(root: Path) -> list[Path]:
    """All copies in a checkout, the newest first."""
    found = (root / artifacts.RUN_PAGES).glob("*.html")
    return sorted((path for path in found if NAMED.fullmatch(path.name)), key=lambda path: path.name, reverse=True)


def others(report: RunReport, root: Path, folder: Path) -> list[dict[str, Any]]:
    """When other runs of the checkout began, how they ended, and their pages, for a page in `folder`."""
    own = place_of(report, root)
    found = [(path, NAMED.fullmatch(path.name)) for path in every(root) if path != own]
    return [
        {
            "link": link(path, folder),
            "began": datetime.strptime(match[1], STAMP).strftime("%Y-%m-%d %H:%M:%S"),
            "outcome": match[2],
            "kind": KIND.get(match[2], ""),
        }
        for path, match in found
        if match is not None
    ]
