"""A run as text: plain for terminals, and as Markdown for the artifacts of a Prefect server.

The server's pages lie on another host than those of a run, and browsers open no file:// from them: they get a link
where PODIUM_PAGES_URL says under which address the project's folder can be read, and are named by host and path, never
cut, where not.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.runs import listing, report, run_params
from flows.views.run_view import RunView, format_value
from tasks.pages.render import markdown_page, text_page
from tasks.stage import artifacts

PAGES_URL = "PODIUM_PAGES_URL"
"""The address under which a web server shows the project's folder; without it pages are named by their paths."""


def ending(run: RunView) -> str:
    """Return how the run ended, what came of it and where to look, for a terminal."""
    return text_page(__file__, "ending.txt.j2", run=run)


def full(listed: listing.Run, project: Path, origin: str, parameters: Sequence[tuple[str, list[Any]]]) -> str:
    """Return all that is known of a run, for a terminal.

    Args:
        listed: the run.
        project: where it belongs.
        origin: what its parameters are compared with.
        parameters: those that differ from there.
    """
    table = run_params.in_words(parameters, (origin, listed.name)).rstrip() if parameters else ""
    run, rows = None, list[str]()
    if (record := listed.record) is not None:
        run = RunView(record, listed.folder, project)
        rows = [report.HEADER, *map(report.row, record.stages), report.total(record)] if record.stages else []
    folder, values = listed.folder.relative_to(project), {"origin": origin, "parameters": table}
    return text_page(__file__, "full.txt.j2", listed=listed, folder=folder, run=run, rows=rows, **values)


def summary(run: RunView) -> str:
    """Return the whole run as Markdown: what it was, its stages, and where to look."""
    record = run.record
    own, *others = run.places
    named = [("run", own), *(("page", path) for path in others), *([("log", record.log)] if record.log else [])]
    places = [(name, *_find(run, path)) for name, path in named]
    receipts = [receipt for one in run.results if (receipt := one.result["published"]) is not None]
    places += [(report.how_published(receipt), *_find_published(run, receipt)) for receipt in receipts]
    return markdown_page(
        __file__,
        "summary.md.j2",
        run=run,
        record=record,
        parameters=" ".join([record.preset or str(artifacts.PARAMS), *(f"--set {text}" for text in record.overrides)]),
        total=sum(one.seconds for one in record.stages),
        places=places,
    )


def metrics(run: RunView) -> str:
    """Return every score with its interval and its floor as Markdown; empty where the run judged nothing."""
    results = [one for one in run.results if one.scores]
    return markdown_page(__file__, "metrics.md.j2", results=results, said=format_value) if results else ""


def gates(run: RunView) -> str:
    """Return what every gate found, required and decided as Markdown; empty where none did."""
    return markdown_page(__file__, "gates.md.j2", results=[one for one in run.results if one.verdict])


def _find(run: RunView, path: str) -> tuple[str, str | None]:
    """Return what a file of the project is called on another host, and its address; empty where none is known."""
    address = os.environ.get(PAGES_URL)
    if address and "*" not in path and not path.startswith(".."):
        return path, f"{address.rstrip('/')}/{quote(path)}"
    return _on_host(run, path), ""


def _on_host(run: RunView, path: str) -> str:
    return f"{socket.gethostname()}:{os.path.normpath(run.project.resolve() / path)}"


def _find_published(run: RunView, receipt: dict[str, Any]) -> tuple[str, str | None]:
    """Return place and address of a release; None where the place is a name."""
    if url := receipt.get("url"):
        return url, url
    if folder := receipt.get("folder"):
        return _on_host(run, folder), ""
    return report.where_published(receipt), None
