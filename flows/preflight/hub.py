"""The Hub: the token and its rights where a release goes there, and what is to be read from there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.preflight.finding import Finding, Wanted, ok, problem
from flows.preflight.network import is_usable
from flows.preflight.question import FAR_S, Question
from tasks.preflight.hub_check import LATER
from tasks.project.errors import PublishError
from tasks.release.hub.transaction import TOKEN, token_of_environment


def token(wanted: Wanted) -> Iterator[Finding]:
    """HF_TOKEN, which is never shown; that of a worker is on its host."""
    if not _publishes(wanted):
        if wanted.curious and os.environ.get(TOKEN):
            yield ok("hub", f"{TOKEN} is set; this run publishes to a folder, or not at all")
        return
    try:
        token_of_environment()
    except PublishError as error:
        yield problem("hub", f"{error}. {LATER}")


def asked(wanted: Wanted) -> Iterator[Question]:
    """The Hub itself."""
    publish = []
    if _publishes(wanted):
        try:
            token_of_environment()
            publish = _repositories(wanted)
        except PublishError:
            pass  # said by `token`
    sources = [] if wanted.on_workers else list(_sources(wanted))
    if (publish or sources) and is_usable():
        told = {"publish": publish, "review": wanted.params.publish.review, "sources": sources}
        yield Question("hub", "tasks.preflight.hub_check", told, FAR_S)


def _publishes(wanted: Wanted) -> bool:
    return wanted.publish and wanted.params.publish.target == "hub" and not wanted.on_workers


def _repositories(wanted: Wanted) -> list[str]:
    params = wanted.params
    tasks = [stage.item for stage in wanted.plan if stage.is_gate]
    return [f"{params.glue_publish.repository}-{task}" if task else str(params.publish.repository) for task in tasks]


def _sources(wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Data sets and models that stages read."""
    values = wanted.values
    for stage in wanted.stages:
        name, _, item = stage.partition("@")
        section = {"glue_data": "glue"}.get(name, name)
        if values.get(section, {}).get("source") != "hub":
            continue
        given, place = values[section], section
        if name == "pretrain_rows":
            given, place = given[item], f"{section}.{item}"
        kind = "model" if name in ("tokenizer", "base_model") else "dataset"
        named = given["repository" if kind == "model" else "dataset"]
        revision = given["revision" if kind == "model" else "dataset_revision"]
        if kind == "dataset" and named and (wanted.project / Path(named)).exists():
            continue
        yield {"kind": kind, "section": place, "name": named, "revision": revision}
