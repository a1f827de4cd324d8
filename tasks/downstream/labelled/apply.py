"""Classes or values of texts as records, for whoever uses a finished model on a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.applying.task import ApplyTask
from tasks.downstream.labelled.scores import Examples, LabelledScoresTask, probabilities
from tasks.downstream.scoring.metrics import Array


class LabelledApplyTask(LabelledScoresTask, ApplyTask[Examples, Array, Array]):
    """The most probable class, its probability and those of all; or the value."""

    architecture: ClassVar[str] = "BertForSequenceClassification"

    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        if self.is_regression:
            return pa.schema([("value", pa.float64())])
        each = pa.struct([(name, pa.float64()) for name in self.labels or labels])
        return pa.schema([("label", pa.string()), ("score", pa.float64()), ("scores", each)])

    def records(self, examples: Examples, answers: Array, n_best: int) -> Iterator[dict[str, Any]]:
        if self.is_regression:
            yield from ({"value": value} for value in self.predictions(answers))
            return
        shares, names = probabilities(answers).round(6).tolist(), self.classes(examples)[: self.learnt(examples)]
        for number, scored in zip(self.predictions(answers), shares, strict=True):
            scores = dict(zip(names, scored, strict=True))
            yield {"label": names[number], "score": scored[number], "scores": scores}
