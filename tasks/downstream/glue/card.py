"""The model card of a GLUE classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.downstream.entries import Entry
from tasks.downstream.glue import about
from tasks.downstream.glue.scores import metric_names
from tasks.downstream.glue.tasks import GlueTask
from tasks.project.errors import PublishError
from tasks.release.card import CardFacts, CardTask, hub_metadata, write_card
from tasks.release.provenance import finite

TASK = "text-classification"
HUB_METRICS = {"matthews_correlation": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
"""Names of the Hub's metrics where they differ from ours."""


class Task(about.Task, CardTask):
    """Cards of classifiers, and of models that give a value."""

    def card(self, facts: CardFacts) -> str:
        return glue_card(self.glue, facts)


def glue_card(task: GlueTask, facts: CardFacts) -> str:
    """See `tasks.release.card.write_card`; metrics of GLUE are fractions on the Hub.

    Raises:
        PublishError: a score is missing, or is no finite number.
    """
    found = metrics_of(task, facts.metrics, facts.entry)
    data = {"dataset_type": "glue", "dataset_name": f"GLUE {task.title}", "dataset_config": task.name}
    results = [
        {
            **data,
            "task_name": "Text Classification",
            "dataset_split": _hub_split(task, name),
            "metric_type": _hub_metric(name),
            "metric_name": name.replace("_", " ").capitalize(),
            "metric_value": round(value / 100, 6),
        }
        for name, value in found.items()
    ]
    return write_card(
        __file__,
        "glue_card.md.j2",
        facts,
        f"fine-tuning on {task.title}",
        hub_metadata(facts, TASK, ["glue", task.name], results),
        {name: name.replace("_", " ") for name in found},
        task=task,
        total=facts.metrics["examples"],
        constant_score=finite(facts.metrics.get("constant_score"), "constant_score"),
    )


def metrics_of(task: GlueTask, metrics: Mapping[str, Any], entry: Entry) -> dict[str, float]:
    """The official metrics by name, percent, rounded to four decimals.

    Raises:
        PublishError: one is not there, or is no finite number.
    """
    names = [name for name in metrics if f"{name}_low" in metrics and name != "score"]
    if not any(name.startswith(task.metrics[0]) for name in names):
        raise PublishError(
            f"metrics/{entry.name}.json has no {task.metrics[0]}: run `dvc repro {entry.stage('evaluate')}` again; "
            "nothing was published"
        )
    return {name: round(finite(metrics[name], name), 4) for name in names}


def _hub_split(task: GlueTask, name: str) -> str:
    """The Hub's split that a metric of metrics_of was counted on."""
    return next(hub for split, hub in task.dev if name in metric_names(task, split).values())


def _hub_metric(name: str) -> str:
    return HUB_METRICS.get(name, name.removesuffix("_matched").removesuffix("_mismatched"))
