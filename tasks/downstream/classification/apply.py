"""Texts of a file for a finished model, with or without labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.applying.task import COLUMN, ID, INPUT, UNKNOWN_TO_MODEL
from tasks.downstream.classification import scores
from tasks.downstream.classification.examples import different_labels, number, write_split
from tasks.downstream.classification.format import (
    ENDINGS,
    as_known,
    class_of,
    in_order,
    opened_file,
    schema_of,
    usable,
    value_of,
)
from tasks.downstream.classification.params import TextsParams
from tasks.downstream.labelled.apply import LabelledApplyTask
from tasks.project.errors import InputError
from tasks.reading.labels import labels_of_examples, with_labels, write_labels
from tasks.reading.text_files import Reading


class Task(scores.Task, LabelledApplyTask):
    """The classes that the model names, or its value."""

    general: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = ENDINGS
    labelled_endings: ClassVar[tuple[str, ...]] = ENDINGS

    @classmethod
    def tasks_of(cls, labels: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        return {"classification": {"regression": len(labels) == 1}}

    def write_beside(self, folder: Path, labels: Sequence[str]) -> None:
        """Their names, for the schema of the examples."""
        write_labels(folder, labels)

    @property
    def known(self) -> tuple[str, ...]:
        """The classes of the model."""
        return labels_of_examples(self.examples_file(self.development[0]).parent, self.entry.stage("examples"))

    @property
    def examples_schema(self) -> pa.Schema:
        return schema_of(pa.float32()) if self.is_regression else with_labels(schema_of(pa.int32()), self.known)

    @property
    def _params(self) -> TextsParams:
        assert isinstance(self.entry.params.data, TextsParams)
        return self.entry.params.data

    def unlabelled(self, path: Path, reading: Reading) -> Iterator[dict[str, Any]]:
        opened = opened_file(path, INPUT, self._params, reading, COLUMN, labelled=False)
        for one in usable(opened, lambda _: (0, ""), reading):
            yield {**one._asdict(), ID: one.id}

    def write_labelled(self, path: Path, target: Path, reading: Reading) -> None:
        taken = value_of if self.is_regression else class_of
        examples = usable(opened_file(path, INPUT, self._params, reading, COLUMN), taken, reading)
        write_split(examples, target, pa.float32() if self.is_regression else pa.string())
        if self.is_regression:
            return
        found = as_known(different_labels(target), self.known).values()
        if not set(found) & set(self.known):
            raise InputError(
                f"{path}: no label is a class of the model ({', '.join(self.known)}): found "
                f"{', '.join(list(found)[:5])}; set {COLUMN.format('label')}"
            )
        reading.counts[UNKNOWN_TO_MODEL] += number(target, self.known, in_order(set(found) - set(self.known)))
