"""A run as tables of Markdown, for the artifacts of a Prefect server: what became of it, what it scored, and why the
gate decided so.

Every text of a run or of data goes through tasks/pages/markup.py. The server's pages lie on another host than those of
a run, and browsers open no file:// from them: they get a link where PODIUM_PAGES_URL says under which address the
project's folder can be read, and are named by host and path, never cut, where not.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows import report
from flows.gate_rows import Gate, gates_of
from flows.report import Revision
from tasks.downstream.judging.recipe_words import WITHOUT_FLOOR
from tasks.pages.markup import markdown_code, markdown_link, markdown_text
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
        ("commit", run.commit and str(Revision(run.commit, bool(run.changed)))),
        ("command", run.command),
    ]
    # No table: Prefect's pages cut a long cell off, and commands are long.
    said = [f"- **{name}**: {markdown_text(value)}" for name, value in facts if value]
    stages = [(one.name, one.status, f"{one.seconds:.1f}", one.host or run.host or "") for one in run.stages]
    total = ("all stages", "", f"{sum(one.seconds for one in run.stages):.1f}", "")
    why = [text for text in (run.error, run.paused) if text is not None]
    parts = [
        f"## {markdown_text(report.headline(run))}",
        *(_quoted(text) for text in why),
        *(f"- {markdown_text(line.strip().removeprefix('- '))}" for line in report.results(run)),
        "### This run",
        *said,
        "### Stages",
        table(("stage", "status", "seconds", "host"), [*stages, total], "llrl"),
        "### Where to look",
        *places(run, project),
    ]
    return _joined(parts)


def metrics(run: report.RunReport, root: Path, project: Path) -> str:
    """Every score with its interval, and the floor it is held against; empty where the run judged nothing."""
    rows = []
    for found, gate in _judged(run, root, project):
        figures = report.read_json_object(root / artifacts.metrics_file(found["name"])) or {}
        floors = {row.check: row.required for row in gate.checks if row.margin}
        rows += [
            (found["name"], name, f"{value:.2f}", report.interval(figures, name) or "none", floors.get(name, "none"))
            for name, value in found["scores"].items()
        ]
    if not rows:
        return ""
    heads = ("entry", "metric", "score", "95% interval", "floor")
    return _joined(["## Scores, in percent", table(heads, rows, "llrrr")])


def gates(run: report.RunReport, root: Path, project: Path) -> str:
    """What every gate found, required and decided; empty where none did."""
    parts = []
    for found, gate in _judged(run, root, project):
        if found["decision"] is None:
            continue
        verdict = "accepted" if found["decision"]["accepted"] else "rejected"
        rows = [(row.check, row.found, row.required_in_words, row.margin, row.verdict) for row in gate.checks]
        parts += [
            f"## {markdown_text(found['name'])}: {verdict}",
            table(("check", "found", "required", "margin", "verdict"), rows, "lrrrl"),
            *(f"- {markdown_text(reason)}" for reason in found["decision"]["reasons"]),
            *(f"- {markdown_text(text)}" for text in [found["decision"].get(WITHOUT_FLOOR)] if text),
        ]
    return _joined(parts)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table of Markdown; every cell is text.

    Args:
        heads: of the columns.
        rows: cells.
        align: a letter for each column, l or r; empty: all to the left.
    """
    lines = [heads, ["---:" if side == "r" else "---" for side in align or "l" * len(heads)]]
    shown = [[markdown_text(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [*lines, *shown])


def places(run: report.RunReport, project: Path) -> list[str]:
    """The pages of the run, its log, and what was published."""
    named = [("run", str(artifacts.RUN_PAGE)), *(("page", page) for page in run.pages)]
    lines = [f"- {name}: {_place(project, os.path.normpath(Path(run.folder, path)))}" for name, path in named]
    if run.log:
        lines.append(f"- log: {_place(project, run.log)}")
    for found in run.results.values():
        if found["published"] is not None:
            lines.append(f"- {report.how_published(found['published'])}: {_published(found['published'], project)}")
    return lines


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


def _judged(run: report.RunReport, root: Path, project: Path) -> Iterable[tuple[dict[str, Any], Gate]]:
    gates = gates_of(run, root, project)
    return ((found, gates.get(stage, Gate())) for stage, found in run.results.items())


def _quoted(text: str) -> str:
    """An error as lines of their own, none of which is markup."""
    return "\n".join(f"> {markdown_text(line)}  " for line in text.splitlines() if line.strip())


def _joined(parts: Iterable[str]) -> str:
    """Blocks apart, points of a list together."""
    text = ""
    for part in parts:
        near = part.startswith("- ") and text.rpartition("\n")[2].startswith("- ")
        text += ("" if not text else "\n" if near else "\n\n") + part
    return f"{text}\n" if text else ""
