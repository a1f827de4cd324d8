"""Given files and folders: that the stages will be able to read them, and where a release may be written."""

from __future__ import annotations

from collections.abc import Iterator

from flows.preflight.finding import Finding, problem
from flows.preflight.question import HERE_S, Question
from flows.run_request import RunRequest
from tasks.preflight.given_inputs import wanted as given_to
from tasks.project.errors import PublishError
from tasks.project.given import check_given, given_places, value_at
from tasks.project.written_folders import check_written
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
    places = [place for place in given_places(request.values) if value_at(request.checkout.values, place) in deps]
    read = sorted({value_at(request.values, place) for place in places})
    if given_to(request.params, read) and not request.on_workers:
        yield Question("files", "tasks.preflight.given_inputs", {"values": request.values, "read": read}, HERE_S)
