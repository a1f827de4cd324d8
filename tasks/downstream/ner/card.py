"""The model card of a model that finds named entities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.downstream.card import CardFacts, CardTask, evaluated_on, hub_metadata, percentage, write_card
from tasks.downstream.ner import about
from tasks.downstream.ner.scores import METRICS
from tasks.downstream.ner.tags import parted

TASK = "token-classification"
HUB_METRICS = {"token_accuracy": "accuracy"}
"""Names of the Hub's metrics where they differ from ours."""


class Task(about.Task, CardTask):
    """Cards of models that find named entities."""

    def card(self, facts: CardFacts) -> str:
        """See `tasks.downstream.card.write_card`; on the Hub precision, recall, F1 and accuracy are fractions.

        Raises:
            PublishError: a score is missing, or is no finite number.
        """
        dataset, metrics, titles = evaluated_on(facts, "sentences"), facts.metrics, METRICS.titles
        results = [
            {
                "metric_type": HUB_METRICS.get(name, name),
                "metric_name": title,
                "metric_value": round(percentage(metrics, name) / 100, 6),
            }
            for name, title in titles.items()
        ]
        return write_card(
            __file__,
            "ner_card.md.j2",
            facts,
            "fine-tuning on named entities",
            hub_metadata(facts, TASK, ["named-entity-recognition"], dataset, results),
            titles,
            dataset=dataset[0],
            total=metrics["examples"],
            types=sorted({parted(label)[1] for label in facts.config["id2label"].values()} - {""}),
        )

    def released_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Without the types that the model does not know: their names are the user's text."""
        return {**metrics, "slices": [part for part in metrics["slices"] if part.get("learnt", True)]}
