"""By what a run is found among others on a Prefect server: its name, and tags.

A name says what was run, how it came out and when: `bert f1 88.41 2026-11-23 14:05`. None of this may cost a run
anything: where the server does not answer, the run keeps the name that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from flows import report
from flows.api import extra
from flows.gate_rows import leading_score
from flows.revision import revision_of
from flows.start_form import NO_PRESET, preset_of, text_of
from tasks.pages.markup import readable

DATE = "%Y-%m-%d %H:%M"
JUDGED = ("finished", "proposed", "published")
"""Outcomes that a score says more than."""
CHANGED = "-changed"
"""Ends the tag of a commit where files are not as it has them."""


def name_at_start() -> str:
    """The name of the flow run that begins, from its parameters; the flow takes this for its `flow_run_name`."""
    given = flow_run.parameters
    return name_of(text_of(given.get("name")) or preset_of(given.get("preset")))


def name_at_end(called: str | None, run: report.RunReport, root: Path) -> str:
    """The name of a run that has ended.

    Args:
        called: the name that it was given, else its preset; None: params.yaml.
        run: its report.
        root: its checkout.
    """
    outcome = report.outcome(run)
    score = leading_score(run, root) if outcome in JUDGED else None
    began = datetime.fromisoformat(run.began) if run.began else None
    return name_of(called, outcome if score is None else f"{score[0]} {score[1]:.2f}", began)


def name_of(called: str | None, became: str = "", began: datetime | None = None) -> str:
    """A name of three parts.

    Args:
        called: the name that the run was given, else its preset; None: params.yaml.
        became: a score or an outcome; empty: nobody knows yet.
        began: None: now.
    """
    date = (began or datetime.now()).strftime(DATE)
    return readable(" ".join(filter(None, [called or NO_PRESET, became, date])))


def tags_of(values: Mapping[str, Any], preset: str | None, project: Path) -> list[str]:
    """What runs are filtered by: kinds of task, device, commit, preset."""
    kinds = sorted({f"task:{entry['kind']}" for entry in values["downstream"].values()})
    revision = revision_of(project)
    commit = None if revision is None else f"{revision.commit}{CHANGED if revision.changed else ''}"
    known = {"commit": commit, "preset": preset}
    return [*kinds, f"device:{values['device']['runtime']}", *(f"{name}:{x}" for name, x in known.items() if x)]


def label(name: str | None = None, tags: Iterable[str] = ()) -> None:
    """Give the flow run that is at work a name, and more tags than it has: its deployment's stay."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run = context.flow_run
    run.tags = sorted({*run.tags, *tags})  # the engine's own: what comes later adds to them

    def tell() -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(run.id, name=name, tags=run.tags)

    extra(tell)
