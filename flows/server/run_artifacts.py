"""Presentation of runs on a Prefect server: names and tags of runs, and result tables.

A run's name has its preset or name, its result and its start: `bert f1 88.41 2026-11-23 14:05`. Names, tags and tables
are optional: if the server does not answer, the run continues without them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from flows.runs.report import RunReport, read_revision
from flows.runs.run_options import NO_PRESET, RunOptions
from flows.server.api import call_optional
from flows.views import run_view
from flows.views.run_view import UNREADABLE, RunView
from tasks.pages.markup import replace_hidden
from tasks.stage.process import is_sent

FORMATTED_NAME = re.compile(r" \d{4}-\d\d-\d\d \d\d:\d\d$")
"""End of a name that `format_name` made."""
UNNAMEABLE = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_NAME = 80
SCORED = ("finished", "proposed", "published")
"""Outcomes for which a name has a score instead."""


def read_run_name(field: str | None) -> str | None:
    """Return the name of the current run: the option `name`, else the "Run Name" of Prefect's form, as a folder's name.

    Runs in a shell and of a schedule have no such name.
    """
    field = (field or "").strip() or None
    if field is not None or not is_sent() or "auto-scheduled" in flow_run.tags:
        return field
    typed = str(flow_run.name)
    if FORMATTED_NAME.search(typed):  # the run is started again, after `format_name` named it
        return typed.partition(" ")[0]
    return UNNAMEABLE.sub("-", typed).strip("-._")[:LONGEST_NAME] or None


def format_start_name() -> str:
    """Return the name of the current flow run at its start, from its parameters (the flow's `flow_run_name`)."""
    options = RunOptions(**flow_run.parameters)
    return format_name(read_run_name(options.name) or options.preset)


def format_end_name(called: str | None, run: RunView) -> str:
    """Return the name of a flow run that has ended."""
    score = run.leading_score if run.outcome in SCORED else None
    began = datetime.fromisoformat(run.record.began) if run.record.began else None
    return format_name(called, run.outcome if score is None else " ".join(score), began)


def format_name(called: str | None, became: str = "", began: datetime | None = None) -> str:
    """Return a flow run's name of three parts.

    Args:
        called: the run's name, else its preset; None: params.yaml.
        became: a score or an outcome; empty: not known yet.
        began: start of the run; None: now.
    """
    date = (began or datetime.now()).strftime("%Y-%m-%d %H:%M")
    return replace_hidden(" ".join(filter(None, [called or NO_PRESET, became, date])))


def make_tags(values: Mapping[str, Any], preset: str | None, project: Path) -> list[str]:
    """Return the tags of a run: task kinds, device, commit, preset."""
    kinds = sorted({f"task:{entry['kind']}" for entry in values["downstream"].values()})
    commit, changed = read_revision(project)
    known = {"commit": f"{commit}{'-changed' * bool(changed)}" if commit else None, "preset": preset}
    return [*kinds, f"device:{values['device']['runtime']}", *(f"{name}:{x}" for name, x in known.items() if x)]


def label_flow_run(name: str | None = None, tags: Iterable[str] = ()) -> None:
    """Set the name of the current flow run, and add tags to those of its deployment."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run = context.flow_run
    run.tags = sorted({*run.tags, *tags})  # the engine's object, so that later calls add to these

    def tell() -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(run.id, name=name, tags=run.tags)

    call_optional(tell)


def create_artifacts(run: RunReport, project: Path, root: Path, called: str | None) -> None:
    """Create the artifacts of the current flow run, and set its final name; `called` is the run's own, if any."""
    view = RunView(run, root, project)
    for key, about, make in (
        ("podium-run", "Outcome, facts and stages of the run", run_view.render_summary),
        ("podium-metrics", "Scores of the models, in percent", run_view.render_metrics),
        ("podium-gate", "Checks and verdicts of the gates", run_view.render_gates),
    ):
        if text := _render(key, partial(make, view)):
            call_optional(partial(create_markdown_artifact, text, key=key, description=about))
    if name := _render("name", lambda: format_end_name(called or run.preset, view)):
        label_flow_run(name)


def _render(what: str, make: Callable[[], str]) -> str:
    """Return the result of `make`; empty if it cannot read its files."""
    try:
        return make()
    except UNREADABLE as error:
        get_run_logger().warning(f"cannot create {what} of this run on the server: {error!r}")
        return ""
