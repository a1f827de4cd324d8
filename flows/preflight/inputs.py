"""Given files and folders: that they are there, and that the stages will be able to read them."""

from __future__ import annotations

from collections.abc import Iterator

from flows.preflight.finding import Finding, Wanted, problem
from flows.preflight.question import HERE_S, Question
from tasks.preflight.given_inputs import wanted as given_to
from tasks.project.given import check_given


def there(wanted: Wanted) -> Iterator[Finding]:
    """Every path that the parameters name, where none of them is a person's own, which may be large."""
    if not list(heads(wanted)):
        for text in check_given(wanted.values, wanted.project):
            yield problem("files", text, of_parameters=True)


def heads(wanted: Wanted) -> Iterator[Question]:
    """The same, and the first records of the files, read as their stages read them."""
    read = sorted({path for stage in wanted.plan for path in stage.deps})
    if given_to(wanted.params, read) and not wanted.on_workers:
        yield Question("files", "tasks.preflight.given_inputs", {"values": wanted.values, "read": read}, HERE_S)
