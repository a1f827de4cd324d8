"""Text views of a run: plain for terminals, Markdown for artifacts on a Prefect server.

Browsers open no file:// links from the server's pages. Pages of a run are therefore linked below PODIUM_PAGES_URL if
it is set, and otherwise named by host and full path.
"""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.runs import listing, report, run_params
from flows.views.run_view import RunView, format_value
from tasks.pages.render import render_markdown, render_text
from tasks.stage import artifacts

PAGES_URL = "PODIUM_PAGES_URL"
"""Base URL at which a web server serves the project's folder; unset: pages are named by their paths."""


def format_end(run: RunView) -> str:
    """Return the outcome, results and pages of a run, for a terminal."""
    return render_text(__file__, "ending.txt.j2", run=run)


def format_run(listed: listing.Run, project: Path, origin: str, parameters: Sequence[tuple[str, list[Any]]]) -> str:
    """Return all details of a run, for a terminal.

    Args:
        listed: the run.
        project: its project.
        origin: name of the parameters that its own are compared with.
        parameters: the parameters that differ.
    """
    table = run_params.format_differences(parameters, (origin, listed.name)).rstrip() if parameters else ""
    run, rows = None, list[str]()
    if (record := listed.record) is not None:
        run = RunView(record, listed.folder, project)
        lines = map(report.format_stage, record.stages)
        rows = [report.HEADER, *lines, report.format_total(record)] if record.stages else []
    folder, values = listed.folder.relative_to(project), {"origin": origin, "parameters": table}
    return render_text(__file__, "full.txt.j2", listed=listed, folder=folder, run=run, rows=rows, **values)


def render_summary(run: RunView) -> str:
    """Return a run as Markdown: facts, stages, pages and logs."""
    record = run.record
    own, *others = run.page_paths
    named = [("run", own), *(("page", path) for path in others), *([("log", record.log)] if record.log else [])]
    places = [(name, *_locate(run, path)) for name, path in named]
    receipts = [receipt for one in run.results if (receipt := one.result["published"]) is not None]
    places += [(report.release_status(receipt), *_locate_release(run, receipt)) for receipt in receipts]
    return render_markdown(
        __file__,
        "summary.md.j2",
        run=run,
        record=record,
        parameters=" ".join([record.preset or str(artifacts.PARAMS), *(f"--set {text}" for text in record.overrides)]),
        total=sum(one.seconds for one in record.stages),
        places=places,
    )


def render_metrics(run: RunView) -> str:
    """Return every score with its interval and floor as Markdown; empty if the run evaluated nothing."""
    results = [one for one in run.results if one.scores]
    return render_markdown(__file__, "metrics.md.j2", results=results, format_value=format_value) if results else ""


def render_gates(run: RunView) -> str:
    """Return the checks and verdict of every gate as Markdown; empty without gates."""
    return render_markdown(__file__, "gates.md.j2", results=[one for one in run.results if one.verdict])


def _locate(run: RunView, path: str) -> tuple[str, str | None]:
    """Return the name of a project file on another host, and its URL; empty if unknown."""
    address = os.environ.get(PAGES_URL)
    if address and "*" not in path and not path.startswith(".."):
        return path, f"{address.rstrip('/')}/{quote(path)}"
    return _format_host_path(run, path), ""


def _format_host_path(run: RunView, path: str) -> str:
    return f"{socket.gethostname()}:{os.path.normpath(run.project.resolve() / path)}"


def _locate_release(run: RunView, receipt: dict[str, Any]) -> tuple[str, str | None]:
    """Return place and URL of a release; None: the place is a plain name."""
    if url := receipt.get("url"):
        return url, url
    if folder := receipt.get("folder"):
        return _format_host_path(run, folder), ""
    return report.release_location(receipt), None
