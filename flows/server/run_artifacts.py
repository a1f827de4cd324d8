"""What a Prefect server shows of runs: the form that starts one by hand, its name and tags, and tables at its end.

The form is made from the schema that a deployment gets (`podium deploy`), in the order of the flow's parameters, which
its docstring describes. What may be left out is an empty field there; "or null" would make two of each. Fields for text
have room for lines, and an item that was added is empty: space around a text counts for nothing, nor does an empty one.

A name says what was run, how it came out and when: `bert f1 88.41 2026-11-23 14:05`. Names, tags and tables may not
cost a run anything: where the server does not answer, the run goes on without them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from pydantic import WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from flows.runs.report import RunReport, revision_of
from flows.runs.stage_plan import part_names
from flows.server.api import extra
from flows.views import run_texts
from flows.views.run_view import RunView
from tasks.pages.markup import readable
from tasks.params.downstream import kind_names
from tasks.params.overlays import preset_names
from tasks.plan.plan_file import definitions_of
from tasks.stage import artifacts
from tasks.stage.errors import InputError, PodiumError

UNREADABLE = (PodiumError, OSError, ValueError, KeyError, TypeError, AttributeError)
"""What figures raise that stages wrote half, or that somebody wrote over."""
DATE = "%Y-%m-%d %H:%M"
JUDGED = ("finished", "proposed", "published")
"""Outcomes that a score says more than."""
CHANGED = "-changed"
"""Ends the tag of a commit where files are not as it has them."""


def _parts() -> list[str]:
    """Those of the project's folder; a form is no place to say what is wrong with its dvc.yaml."""
    with contextlib.suppress(OSError, InputError):
        return part_names(definitions_of(Path()), kind_names())
    return part_names({}, kind_names())


NO_PRESET = str(artifacts.PARAMS)
"""What is chosen in place of a preset where params.yaml counts."""
Preset = Annotated[str | None, WithJsonSchema({"type": "string", "enum": [NO_PRESET, *preset_names()]})]
"""Those of the project's folder, where the flow is loaded."""
Text = Annotated[str | None, WithJsonSchema({"type": "string"})]
Part = Annotated[str, WithJsonSchema({"type": "string", "enum": _parts()})]
Words = Annotated[Sequence[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string", "default": ""}})]
"""The default is what an item is before anything is written into it; without one it would be null, and refused."""

Unseen = Annotated[str | None, SkipJsonSchema()]
"""What `podium run` notes, and nobody at a form knows: it is not in there."""


def text_of(written: str | None) -> str | None:
    """What somebody wrote into a field; None: nothing."""
    return (written or "").strip() or None


def words_of(written: Sequence[str] | None) -> list[str]:
    """The items of a list into which something was written."""
    return [word for item in written or () if (word := text_of(item))]


def preset_of(chosen: str | None) -> str | None:
    """The preset that the form, or a caller, names; None: params.yaml."""
    return None if chosen == NO_PRESET else chosen


def name_at_start() -> str:
    """The name of the flow run that begins, from its parameters; the flow takes this for its `flow_run_name`."""
    given = flow_run.parameters
    return name_of(text_of(given.get("name")) or preset_of(given.get("preset")))


def name_at_end(called: str | None, run: RunView) -> str:
    """The name of a run that has ended.

    Args:
        called: the name that it was given, else its preset; None: params.yaml.
        run: a view of it.
    """
    score = run.leading_score if run.outcome in JUDGED else None
    began = datetime.fromisoformat(run.record.began) if run.record.began else None
    return name_of(called, run.outcome if score is None else " ".join(score), began)


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
    commit, changed = revision_of(project)
    known = {"commit": f"{commit}{CHANGED * bool(changed)}" if commit else None, "preset": preset}
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


def show(run: RunReport, project: Path, root: Path, called: str | None) -> None:
    """Give the flow run at work its tables and its last name.

    Args:
        run: its report.
        project: the project's folder.
        root: the checkout that it worked in.
        called: the name that it was given, if any.
    """
    view = RunView(run, root, project)
    for key, about, make in (
        ("podium-run", "How the run went, stage by stage", run_texts.summary),
        ("podium-metrics", "What the models scored, in percent", run_texts.metrics),
        ("podium-gate", "What the gates found and required", run_texts.gates),
    ):
        if text := _made(key, partial(make, view)):
            extra(partial(create_markdown_artifact, text, key=key, description=about))
    if name := _made("name", lambda: name_at_end(called or run.preset, view)):
        label(name)


def _made(what: str, make: Callable[[], str]) -> str:
    """What `make` returns; empty where it cannot read what it needs."""
    try:
        return make()
    except UNREADABLE as error:
        get_run_logger().warning(f"the server gets no {what} of this run: {error!r}")
        return ""
