"""Given files and folders: that the stages will be able to read them, and where a release may be written."""

from __future__ import annotations

from collections.abc import Iterator

from flows.preflight.finding import Finding, Wanted, problem
from flows.preflight.question import HERE_S, Question
from tasks.preflight.given_inputs import wanted as given_to
from tasks.project.errors import PublishError
from tasks.project.given import check_given
from tasks.project.written_folders import check_written
from tasks.release.release import refuse_foreign


def there(wanted: Wanted) -> Iterator[Finding]:
    """Every path that the parameters name, where none of them is a person's own, which may be large."""
    if not list(heads(wanted)):
        for text in check_given(wanted.values, wanted.project):
            yield problem("files", text, of_parameters=True)


def written(wanted: Wanted) -> Iterator[Finding]:
    """Every folder that the parameters name for what is written, and what a release would replace."""
    if problems := check_written(wanted.values, wanted.project):
        yield from (problem("folders", text, of_parameters=True) for text in problems)
        return
    if not wanted.publish or wanted.on_workers or wanted.params.publish.target != "local":
        return
    for gate in (stage for stage in wanted.plan if stage.is_gate):
        try:
            refuse_foreign(wanted.project / wanted.params.downstream[gate.item].publish.folder)
        except PublishError as error:
            yield problem("publish", str(error), of_parameters=True)


def heads(wanted: Wanted) -> Iterator[Question]:
    """The same, and the first records of the files, read as their stages read them."""
    read = sorted({path for stage in wanted.plan for path in stage.deps})
    if given_to(wanted.params, read) and not wanted.on_workers:
        yield Question("files", "tasks.preflight.given_inputs", {"values": wanted.values, "read": read}, HERE_S)
