"""What a run is given and where its release goes: files and folders, and the Hub with the token and its rights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.preflight.question import FAR_S, HERE_S, Finding, Question, ok, problem, warning
from flows.preflight.server import is_usable
from flows.run_request import RunRequest
from tasks.preflight.given_inputs import LATER
from tasks.preflight.given_inputs import wanted as given_to
from tasks.project import plan_file
from tasks.project.errors import PublishError
from tasks.project.given import READ, check_given, check_written, find_parameters
from tasks.reading.model_card import read_origin
from tasks.release.hub.token import TOKEN, token_of_environment
from tasks.release.origin import require_origin, resolve_origin
from tasks.release.release import refuse_foreign


def there(request: RunRequest) -> Iterator[Finding]:
    """Every path that the parameters name, where none of them is a person's own, which may be large."""
    if not list(heads(request)):
        for text in check_given(request.values, request.project):
            yield problem("files", text, of_parameters=True)


def written(request: RunRequest) -> Iterator[Finding]:
    """Every folder that the parameters name for what is written, and what a release would replace."""
    if problems := check_written(request.values, request.project, request.plan):
        yield from (problem("folders", text, of_parameters=True) for text in problems)
        return
    if not request.publish or request.on_workers or request.params.publish.target != "local":
        return
    for gate in (stage for stage in request.stages if stage.is_gate):
        try:
            refuse_foreign(request.project / request.params.downstream[gate.item].publish.folder)
        except PublishError as error:
            yield problem("publish", str(error), of_parameters=True)


def heads(request: RunRequest) -> Iterator[Question]:
    """The same, and the first records of the files, read as their stages read them."""
    deps = {path for stage in request.stages for path in stage.deps}  # as the checkout calls them
    there = find_parameters(request.checkout.values, READ)
    read = sorted({path for name, path in find_parameters(request.values, READ).items() if there[name] in deps})
    if given_to(request.params, read) and not request.on_workers:
        yield Question("files", "tasks.preflight.given_inputs", {"values": request.values, "read": read}, HERE_S)


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
            gates = [stage.item for stage in request.stages if stage.is_gate]
            publish = [str(request.params.downstream[name].publish.repository) for name in gates]
        except PublishError:
            pass  # said by `token`
    sources = [] if request.on_workers else list(_sources(request))
    publishing = request.params.publish
    stated = publishing.license and publishing.language
    origin = _goes_to_hub(request) and request.params.base_model.source == "hub" and not stated
    if (publish or sources or origin) and is_usable():
        told = {"values": request.values, "publish": publish, "review": publishing.review}
        yield Question("hub", "tasks.preflight.given_inputs", told | {"sources": sources, "origin": origin}, FAR_S)


def _publishes(request: RunRequest) -> bool:
    return _goes_to_hub(request) and not request.on_workers


def _goes_to_hub(request: RunRequest) -> bool:
    return request.publish and request.params.publish.target == "hub"


def _sources(request: RunRequest) -> Iterator[dict[str, Any]]:
    """Data sets and models that stages read."""
    for stage in request.stages:
        for section in dict.fromkeys(key for keys in stage.params.values() for key in keys):
            given, holder = (plan_file.value_at(request.values, name) for name in (section, section.rpartition(".")[0]))
            if not isinstance(given, dict) or "hub" not in (given.get("source"), (holder or {}).get("source")):
                continue
            for kind, key in (("model", "repository"), ("dataset", "dataset")):
                named, revision = given.get(key), given.get("revision" if kind == "model" else "dataset_revision")
                is_here = named and section != "base_model" and (request.project / Path(named)).exists()
                if key not in given or is_here:
                    continue
                yield {"kind": kind, "section": section, "name": named, "revision": revision}
