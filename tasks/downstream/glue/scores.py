"""From logits to the answers of a GLUE task, and GLUE's official metrics of them."""

from __future__ import annotations

from tasks.downstream.glue import about
from tasks.downstream.glue.params import GateParams
from tasks.downstream.glue.tasks import GlueTask
from tasks.downstream.labelled.metrics import metric
from tasks.downstream.labelled.scores import LabelledScoresTask
from tasks.downstream.scoring.metrics import Metrics
from tasks.downstream.scoring.scores import Limit

SCORE = "score"
"""The mean of all metrics, over both development sets where there are two."""


class Task(about.Task, LabelledScoresTask):
    """Judged by the mean of the official metrics."""

    @property
    def metrics(self) -> Metrics:
        parts = [
            metric(one, called=name, split=split)
            for split in self.development
            for one, name in metric_names(self.glue, split).items()
        ]
        return Metrics(tuple(parts), mean=SCORE)

    @property
    def limits(self) -> tuple[Limit, ...]:
        gate = self.entry.params.gate
        assert isinstance(gate, GateParams)
        return (Limit(SCORE, gate.min_score, "min_score", gate.max_drop, "max_drop"),)

    @property
    def confidence(self) -> float:
        assert isinstance(self.entry.params.gate, GateParams)
        return self.entry.params.gate.confidence


def metric_names(task: GlueTask, split: str) -> dict[str, str]:
    """Metric -> its name in the metrics file: with the development set where the task has several."""
    if len(task.dev) == 1:
        return {name: name for name in task.metrics}
    return {name: f"{name}_{split.removeprefix('dev_')}" for name in task.metrics}
