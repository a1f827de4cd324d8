"""What the examples of a GLUE task must be."""

from __future__ import annotations

from pathlib import Path

from tasks.downstream.glue import about
from tasks.downstream.glue.format import schema_of
from tasks.downstream.glue.tasks import GlueTask
from tasks.downstream.labelled.checks import LabelledChecksTask, LabelledData, Meant
from tasks.validation.checks import DataSet

LOOK = "look at source, path and dataset of its section data in params.yaml"


class Task(about.Task, LabelledChecksTask):
    """The examples of one task."""

    def data(self, folder: Path) -> DataSet:
        return LabelledData(meant(self.glue, self.entry.params.data.min_examples), folder, self.splits)


def meant(task: GlueTask, min_examples: int) -> Meant:
    """What the examples of a task are."""
    classes = None if task.is_regression else task.labels
    values = task.limits or (0, len(task.labels) - 1)
    name, columns = f"glue-{task.name}", task.columns
    return Meant(name, schema_of(task), columns, values, classes, len(task.labels), min_examples, LOOK)
