"""The model card of a model that classifies texts, or gives them values."""

from __future__ import annotations

from tasks.downstream.classification import about
from tasks.downstream.classification.scores import TITLES
from tasks.project.errors import PublishError
from tasks.release.card import CardFacts, CardTask, evaluated_on, hub_metadata, write_card
from tasks.release.provenance import finite

TASK = "text-classification"
HUB_METRICS = {"accuracy": "accuracy", "macro_f1": "f1", "pearson": "pearsonr", "spearman": "spearmanr"}


class Task(about.Task, CardTask):
    """Cards of classifiers, and of models that give a value."""

    def card(self, facts: CardFacts) -> str:
        return classification_card(facts, is_regression=self.is_regression)


def classification_card(facts: CardFacts, *, is_regression: bool) -> str:
    """See `tasks.release.card.write_card`; on the Hub these metrics are fractions.

    Raises:
        PublishError: a score is missing, or is no finite number.
    """
    (dataset, kind), metrics = evaluated_on(facts, "examples"), facts.metrics
    found = {name: round(finite(metrics[name], name), 4) for name in TITLES if name in metrics}
    if not found:
        raise PublishError(
            f"metrics/{facts.entry.name}.json has no score: run `dvc repro {facts.entry.stage('evaluate')}` again"
        )
    results = [
        {
            "task_name": "Text Classification",
            "dataset_type": kind,
            "dataset_name": dataset,
            "dataset_split": "dev",
            "metric_type": HUB_METRICS[name],
            "metric_name": TITLES[name],
            "metric_value": round(value / 100, 6),
        }
        for name, value in found.items()
    ]
    return write_card(
        __file__,
        "classification_card.md.j2",
        facts,
        "fine-tuning on labelled texts",
        hub_metadata(facts, TASK, ["text-regression" if is_regression else TASK], results),
        {name: TITLES[name] for name in found},
        dataset=dataset,
        total=metrics["examples"],
        is_regression=is_regression,
        labels=[name for _, name in sorted(facts.config["id2label"].items(), key=lambda one: int(one[0]))],
        constant_score=finite(metrics.get("constant_score"), "constant_score"),
    )
