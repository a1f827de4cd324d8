"""A run as Markdown, for the artifacts of a Prefect server: what became of it, what it scored, and why the gate decided
so.

The server's pages lie on another host than those of a run, and browsers open no file:// from them: they get a link
where PODIUM_PAGES_URL says under which address the project's folder can be read, and are named by host and path, never
cut, where not.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows import report
from flows.result_view import results_of
from tasks.pages.markup import markdown_code, markdown_link, markdown_text
from tasks.pages.render import markdown_page
from tasks.project import artifacts

PAGES_URL = "PODIUM_PAGES_URL"
"""The address under which a web server shows the project's folder; without it pages are named by their paths."""


def summary(run: report.RunReport, project: Path) -> str:
    """The whole run: what it was, its stages, and where to look."""
    facts = [
        ("parameters", " ".join([run.preset or str(artifacts.PARAMS), *(f"--set {text}" for text in run.overrides)])),
        ("started", run.began),
        ("ended", run.ended),
        ("started by", run.user),
        ("host", run.host),
        ("commit", run.commit and str(report.Revision(run.commit, bool(run.changed)))),
        ("command", run.command),
    ]
    text = markdown_page(
        __file__,
        "summary.md.j2",
        headline=report.headline(run),
        reasons=run.reasons,
        results=[line.strip().removeprefix("- ") for line in report.results(run)],
        facts=[(name, value) for name, value in facts if value],
        run=run,
        total=sum(one.seconds for one in run.stages),
    )
    return text + "".join(f"{line}\n" for line in places(run, project))


def metrics(run: report.RunReport, root: Path, project: Path) -> str:
    """Every score with its interval, and the floor it is held against; empty where the run judged nothing."""
    results = [one for one in results_of(run, root, project) if one.scores]
    return markdown_page(__file__, "metrics.md.j2", results=results) if results else ""


def gates(run: report.RunReport, root: Path, project: Path) -> str:
    """What every gate found, required and decided; empty where none did."""
    results = [one for one in results_of(run, root, project) if one.verdict]
    return markdown_page(__file__, "gates.md.j2", results=results)


def places(run: report.RunReport, project: Path) -> list[str]:
    """The pages of the run, its log, and what was published, as Markdown."""
    named = [("run", str(artifacts.RUN_PAGE)), *(("page", page) for page in run.pages)]
    lines = [f"{name}: {_place(project, os.path.normpath(Path(run.folder, path)))}" for name, path in named]
    if run.log:
        lines.append(f"log: {_place(project, run.log)}")
    for found in run.results.values():
        if found["published"] is not None:
            lines.append(f"{report.how_published(found['published'])}: {_published(found['published'], project)}")
    return [f"- {line}" for line in lines]


def _place(project: Path, path: str) -> str:
    address = os.environ.get(PAGES_URL)
    if address and "*" not in path and not path.startswith(".."):
        return markdown_link(path, f"{address.rstrip('/')}/{quote(path)}")
    return markdown_code(f"{socket.gethostname()}:{project.resolve() / path}")


def _published(receipt: dict[str, Any], project: Path) -> str:
    if url := receipt.get("url"):
        return markdown_link(str(url), str(url))
    if folder := receipt.get("folder"):
        return markdown_code(f"{socket.gethostname()}:{os.path.normpath(project.resolve() / folder)}")
    return markdown_text(report.where_published(receipt))
