"""The Hub: the token and its rights where a release goes there, and what is to be read from there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.preflight.finding import Finding, ok, problem, warning
from flows.preflight.network import is_usable
from flows.preflight.question import FAR_S, Question
from flows.run_request import RunRequest
from tasks.preflight.hub_check import LATER
from tasks.project.errors import PublishError
from tasks.project.plan_file import value_at
from tasks.reading.model_card import read_origin
from tasks.release.hub.token import TOKEN, token_of_environment
from tasks.release.origin import require_origin, resolve_origin


def token(request: RunRequest) -> Iterator[Finding]:
    """HF_TOKEN, which is never shown; that of a worker is on its host."""
    if not _publishes(request):
        if request.curious and os.environ.get(TOKEN):
            yield ok("hub", f"{TOKEN} is set; this run publishes to a folder, or not at all")
        return
    try:
        token_of_environment()
    except PublishError as error:
        yield problem("hub", f"{error}. {LATER}")


def origin(request: RunRequest) -> Iterator[Finding]:
    """Licence and language of the model, which its card on the Hub states."""
    base, folder = request.params.base_model, request.project / request.params.base_model.path
    elsewhere = base.source == "folder" and request.on_workers and not folder.is_dir()
    if not _goes_to_hub(request) or base.source == "hub" or elsewhere:
        return  # of a base model on the Hub, `asked` reads them; of a folder on a worker's host, publishing does
    resolved = resolve_origin(request.params, read_origin(folder) if base.source == "folder" else None)
    try:
        require_origin(request.params, resolved)
    except PublishError as error:
        yield problem("hub", str(error), of_parameters=True)
    if base.source == "folder" and resolved.base_model is None:
        yield warning(
            "hub",
            f"the files of {base.path} do not say what the model is called on the Hub, so the card will name no base "
            "model: state it, such as --set publish.base_model=user/name, if it is there",
        )


def asked(request: RunRequest) -> Iterator[Question]:
    """The Hub itself."""
    publish = []
    if _publishes(request):
        try:
            token_of_environment()
            publish = _repositories(request)
        except PublishError:
            pass  # said by `token`
    sources = [] if request.on_workers else list(_sources(request))
    publishing = request.params.publish
    stated = publishing.license and publishing.language
    origin = _goes_to_hub(request) and request.params.base_model.source == "hub" and not stated
    if (publish or sources or origin) and is_usable():
        told = {"values": request.values, "publish": publish, "review": publishing.review}
        yield Question("hub", "tasks.preflight.hub_check", told | {"sources": sources, "origin": origin}, FAR_S)


def _publishes(request: RunRequest) -> bool:
    return _goes_to_hub(request) and not request.on_workers


def _goes_to_hub(request: RunRequest) -> bool:
    return request.publish and request.params.publish.target == "hub"


def _repositories(request: RunRequest) -> list[str]:
    names = [stage.item for stage in request.stages if stage.is_gate]
    return [str(request.params.downstream[name].publish.repository) for name in names]


def _sources(request: RunRequest) -> Iterator[dict[str, Any]]:
    """Data sets and models that stages read."""
    for stage in request.stages:
        for section in dict.fromkeys(key for keys in stage.params.values() for key in keys):
            given, holder = (value_at(request.values, name) for name in (section, section.rpartition(".")[0]))
            if not isinstance(given, dict) or "hub" not in (given.get("source"), (holder or {}).get("source")):
                continue
            for kind, key in (("model", "repository"), ("dataset", "dataset")):
                named, revision = given.get(key), given.get("revision" if kind == "model" else "dataset_revision")
                is_here = named and section != "base_model" and (request.project / Path(named)).exists()
                if key not in given or is_here:
                    continue
                yield {"kind": kind, "section": section, "name": named, "revision": revision}
