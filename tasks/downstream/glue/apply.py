"""Sentences of a file for a finished model, with or without labels, and its classes or values as records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.applying.task import ID, INPUT
from tasks.downstream.glue import scores
from tasks.downstream.glue.examples import write_split
from tasks.downstream.glue.format import ENDINGS, examples_from_file, schema_of, text_of
from tasks.downstream.glue.tasks import TASKS
from tasks.downstream.labelled.apply import LabelledApplyTask
from tasks.inputs.tables import Column, read_table, text_of_id
from tasks.reading.text_files import Reading


class Task(scores.Task, LabelledApplyTask):
    """The classes of a task, or its value."""

    endings: ClassVar[tuple[str, ...]] = ENDINGS[1:]
    labelled_endings: ClassVar[tuple[str, ...]] = ENDINGS

    @classmethod
    def tasks_of(cls, labels: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """By the names of the classes; where they have none, by how many there are."""
        unnamed = tuple(f"LABEL_{number}" for number in range(len(labels)))
        return {
            name: {"task": name}
            for name, task in TASKS.items()
            if task.labels == labels or (labels == unnamed and len(task.labels) == len(labels))
        }

    @property
    def examples_schema(self) -> pa.Schema:
        return schema_of(self.glue)

    def unlabelled(self, path: Path, reading: Reading) -> Iterator[dict[str, Any]]:
        columns = [Column(ID, INPUT, False), *(Column(name, INPUT, True) for name in self.glue.columns)]
        for where, values in read_table(path, columns, INPUT, reading, self.entry.params.data.separator):
            texts = [text_of(values, name, f"{path}, {where}") for name in self.glue.columns]
            name = text_of_id(values.get(ID), reading)
            yield {ID: name, "first": texts[0], "second": texts[1] if len(texts) > 1 else None, "label": 0}

    def write_labelled(self, path: Path, target: Path, reading: Reading) -> None:
        split, separator = self.development[0], self.entry.params.data.separator
        found = examples_from_file(self.glue, path, reading, INPUT, separator)
        write_split(self.glue, found, split, target, reading)
