"""What a Prefect server shows of a run that has ended: tables, and its name. A run can do without any of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from flows import run_labels, run_tables
from flows.api import extra
from flows.report import RunReport
from tasks.project.errors import PodiumError

UNREADABLE = (PodiumError, OSError, ValueError, KeyError, TypeError, AttributeError)
"""What figures raise that stages wrote half, or that somebody wrote over."""


def show(run: RunReport, project: Path, root: Path, called: str | None) -> None:
    """Give the flow run at work its tables and its last name.

    Args:
        run: its report.
        project: the project's folder.
        root: the checkout that it worked in.
        called: the name that it was given, if any.
    """
    _keep("podium-run", "How the run went, stage by stage", lambda: run_tables.summary(run, project))
    _keep("podium-metrics", "What the models scored, in percent", lambda: run_tables.metrics(run, root, project))
    _keep("podium-gate", "What the gates found and required", lambda: run_tables.gates(run, root, project))
    name = _made("name", lambda: run_labels.name_at_end(called or run.preset, run, root))
    if name:
        run_labels.label(name)


def _keep(key: str, about: str, make: Callable[[], str]) -> None:
    """Make an artifact, unless there is nothing to say."""

    def keep() -> str:
        if text := make():
            extra(lambda: create_markdown_artifact(text, key=key, description=about))
        return text

    _made(key, keep)


def _made(what: str, make: Callable[[], str]) -> str:
    """What `make` returns; empty where it cannot read what it needs."""
    try:
        return make()
    except UNREADABLE as error:
        get_run_logger().warning(f"the server gets no {what} of this run: {error!r}")
        return ""
