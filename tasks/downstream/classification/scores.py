"""Accuracy and F1 of classes, or the correlations of values."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tasks.downstream.classification import about
from tasks.downstream.classification.params import FLOORS, GateParams
from tasks.downstream.labelled.metrics import metric
from tasks.downstream.labelled.scores import Examples, LabelledScoresTask
from tasks.downstream.scoring.metrics import Metrics
from tasks.downstream.scoring.scores import Limit, keys_of
from tasks.reading.labels import all_labels_in
from tasks.reading.parquet import read_batches

TITLES = {"accuracy": "accuracy", "macro_f1": "F1, mean of classes", "pearson": "Pearson", "spearman": "Spearman"}


class Task(about.Task, LabelledScoresTask):
    """Classes are those that the examples state."""

    def read_examples(self, path: Path) -> Examples:
        found, made_by = super().read_examples(path), self.entry.stage("examples")
        ids = [one for batch in read_batches(path, ("id",), 65536, made_by) for one in batch["id"].to_pylist()]
        names = [str(number) if one is None else one for number, one in enumerate(ids)]
        if self.is_regression:
            return dataclasses.replace(found, names=names)
        labels, others = all_labels_in(path)
        return dataclasses.replace(found, names=names, classes=(*labels, *others), learnt=len(labels))

    def keys(self, examples: Examples) -> list[str]:
        """With the classes: what a number means follows from them."""
        classes = json.dumps(examples.classes[: examples.learnt])
        return keys_of(f"{text}\n{classes}" for text in examples.texts)

    @property
    def metrics(self) -> Metrics:
        names = [name.removeprefix("min_") for name in FLOORS[self.is_regression]]
        return Metrics(tuple(metric(name, title=TITLES[name]) for name in names))

    @property
    def metrics_of_a_class(self) -> Metrics:
        return Metrics(self.metrics.parts[:1])

    @property
    def limits(self) -> tuple[Limit, ...]:
        gate = self.entry.params.gate
        assert isinstance(gate, GateParams)
        return tuple(
            Limit(floor.removeprefix("min_"), getattr(gate, floor), floor, gate.max_drop, "max_drop")
            for floor in FLOORS[self.is_regression]
        )

    @property
    def confidence(self) -> float:
        return self.entry.params.gate.confidence
