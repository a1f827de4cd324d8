"""A task of GLUE: what all stages know of it."""

from __future__ import annotations

from tasks.downstream.entries import Entry
from tasks.downstream.glue.tasks import glue_task
from tasks.downstream.labelled.about import LabelledTask


class Task(LabelledTask):
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
    def is_regression(self) -> bool:
        return self.glue.is_regression

    @property
    def answers(self) -> tuple[float, float]:
        return self.glue.limits or (0, len(self.labels) - 1)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.glue.labels

    @property
    def development(self) -> tuple[str, ...]:
        return self.glue.splits[1:]
