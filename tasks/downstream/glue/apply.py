"""Sentences of a file for a finished model, with or without labels, and its classes or values as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.applying.task import ID, INPUT, ApplyTask
from tasks.downstream.glue import scores
from tasks.downstream.glue.examples import write_split
from tasks.downstream.glue.format import examples_from_file, schema_of, text_of
from tasks.downstream.glue.scores import Examples, probabilities
from tasks.downstream.glue.tasks import TASKS
from tasks.downstream.scoring.metrics import Array
from tasks.inputs.tables import ENDINGS, Column, read_table
from tasks.reading.text_files import Reading


class Task(scores.Task, ApplyTask[Examples, Array, Array]):
    """The most probable class, its probability and those of all; or the value."""

    architecture: ClassVar[str] = "BertForSequenceClassification"
    endings: ClassVar[tuple[str, ...]] = ENDINGS
    labelled_endings: ClassVar[tuple[str, ...]] = (".tsv", *ENDINGS)

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
        for where, values in read_table(path, columns, INPUT, reading):
            texts = [text_of(values, name, f"{path}, {where}") for name in self.glue.columns]
            yield {ID: values.get(ID), "first": texts[0], "second": texts[1] if len(texts) > 1 else None, "label": 0}

    def write_labelled(self, path: Path, target: Path, reading: Reading) -> None:
        split = self.development[0]
        write_split(self.glue, examples_from_file(self.glue, path, reading, INPUT), split, target, reading)

    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        if self.glue.is_regression:
            return pa.schema([("value", pa.float64())])
        each = pa.struct([(name, pa.float64()) for name in self.labels])
        return pa.schema([("label", pa.string()), ("score", pa.float64()), ("scores", each)])

    def records(self, examples: Examples, answers: Array, n_best: int) -> Iterator[dict[str, Any]]:
        if self.glue.is_regression:
            yield from ({"value": value} for value in self.predictions(answers))
            return
        shares = probabilities(answers).round(6).tolist()
        for number, scored in zip(self.predictions(answers), shares, strict=True):
            yield {
                "label": self.labels[number],
                "score": scored[number],
                "scores": dict(zip(self.labels, scored, strict=True)),
            }
