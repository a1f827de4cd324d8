"""A task of GLUE: what all stages know of it."""

from __future__ import annotations

from tasks.downstream.entries import Entry
from tasks.downstream.glue.tasks import glue_task
from tasks.downstream.task import DownstreamTask


class Task(DownstreamTask):
    """Classes, or a value, of a sentence or of a pair of them."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.glue = glue_task(str(entry.params.options["task"]))

    @property
    def released_below(self) -> str:
        return self.glue.name

    @property
    def title(self) -> str:
        return self.glue.title

    @property
    def head(self) -> str:
        return "sequence_classification"

    @property
    def labels(self) -> tuple[str, ...]:
        return self.glue.labels

    @property
    def row_kind(self) -> str:
        return "sequence_regression" if self.glue.is_regression else "sequence_classification"

    @property
    def development(self) -> tuple[str, ...]:
        return self.glue.splits[1:]
