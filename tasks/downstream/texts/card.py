"""Model card of a text classification or regression model."""

from collections.abc import Mapping
from typing import Any

from tasks.downstream.card import CardFacts, CardTask, evaluated_on, hub_metadata, score_of, write_card
from tasks.downstream.texts.scores import MIN_PROBABILITY, THRESHOLD, TextsScores, select_thresholds

TASK = "text-classification"
HUB_METRICS = {"macro_f1": "f1", "micro_f1": "f1", "pearson": "pearsonr", "spearman": "spearmanr"}
"""Names of Hub metrics that differ from Podium's."""


class TextsCard(TextsScores, CardTask):
    """Model cards for text classification and regression."""

    def settings(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return select_thresholds(metrics)

    def card(self, facts: CardFacts) -> str:
        """Return the model card; see `tasks.downstream.card.write_card`. Hub metrics are fractions.

        Raises:
            PublishError: a score is missing or not finite.
        """
        spec, metrics = self.spec, facts.metrics
        dataset = (f"GLUE {spec.title}", "glue") if spec.name else evaluated_on(facts, "examples")
        parts = sorted(self.metrics.parts, key=lambda one: one.name)
        results = [
            {
                **({"dataset_config": spec.name, "dataset_split": spec.hub_split(one.split)} if spec.name else {}),
                "metric_type": HUB_METRICS.get(one.name, one.name.removesuffix("_matched").removesuffix("_mismatched")),
                "metric_name": one.title.capitalize() if spec.name else one.title,
                "metric_value": round(score_of(metrics, one.name) / 100, 6),
            }
            for one in parts
        ]
        tags = ["glue", spec.name] if spec.name else ["text-regression" if spec.is_regression else TASK]
        return write_card(
            __file__,
            "texts_card.md.j2",
            facts,
            f"fine-tuning on {spec.title if spec.name else 'labelled texts'}",
            hub_metadata(facts, TASK, tags, dataset, results),
            {one.name: one.title for one in parts},
            task=spec,
            decision={THRESHOLD: None, MIN_PROBABILITY: None, **self.settings(metrics)},
            is_chosen=self.decision.is_chosen,
            dataset=dataset[0],
            total=metrics["examples"],
            labels=spec.labels
            or [name for _, name in sorted(facts.config["id2label"].items(), key=lambda one: int(one[0]))],
            constant_score=score_of(metrics, "constant_score"),
        )
