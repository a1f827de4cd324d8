"""Model card of a question answering model."""

import shlex
from collections.abc import Mapping
from typing import Any

from tasks.downstream.card import (
    CardFacts,
    CardTask,
    evaluated_on,
    hub_metadata,
    percentage,
    require_finite,
    write_card,
)
from tasks.downstream.squad.answers import NULL_THRESHOLD
from tasks.downstream.squad.page import TITLE
from tasks.downstream.squad.spec import SquadSpec

TASK = "question-answering"
METRICS = (("exact_match", "exact match", "Exact match"), ("f1", "F1", "F1"))
"""Name in the metrics file, in the card and on the Hub."""
METRICS_V2 = (
    ("exact", "exact match", "Exact match"),
    ("f1", "F1", "F1"),
    ("HasAns_exact", "exact match of answerable questions", "Exact match (HasAns)"),
    ("HasAns_f1", "F1 of answerable questions", "F1 (HasAns)"),
    ("NoAns_exact", "exact match of unanswerable questions", "Exact match (NoAns)"),
)
"""The same for questions that may have no answer."""


class SquadCard(SquadSpec, CardTask):
    """Model cards for question answering."""

    def card(self, facts: CardFacts) -> str:
        """Return the model card; see `tasks.downstream.card.write_card`.

        Raises:
            PublishError: a score is missing or not finite.
        """
        metrics, own = facts.metrics, facts.entry_parameters
        if own["data"]["source"] == "demo":
            dataset = "Podium demo questions (generated)", "podium-demo"
        else:
            dataset = evaluated_on(facts, "questions")
        nullable = own["data"]["unanswerable"] == "use"
        names = METRICS_V2 if nullable else METRICS
        results = [
            {"metric_type": metric, "metric_name": title, "metric_value": percentage(metrics, metric)}
            for metric, _, title in names
        ]
        folder = "FOLDER" if facts.name == "." else shlex.quote(facts.name)
        return write_card(
            __file__,
            "squad_card.md.j2",
            facts,
            "fine-tuning on questions",
            hub_metadata(facts, TASK, [TASK], dataset, results),
            {metric: words for metric, words, _ in names},
            dataset=dataset[0],
            total=metrics.get("total"),
            generated=own["data"]["source"] == "demo",
            max_answer_length=own["evaluate"]["max_answer_length"],
            threshold=require_finite(metrics[NULL_THRESHOLD], NULL_THRESHOLD) if nullable else None,
            metrics=metrics,
            baseline=require_finite(metrics["constant_score"], "constant_score")
            if "constant_score" in metrics
            else None,
            ask=f'podium ask {folder} "question" --context "text"',
        )

    def settings(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {NULL_THRESHOLD: metrics[NULL_THRESHOLD]} if self.nullable else {}

    def released_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics without slices by title, because titles are the user's text."""
        return {**metrics, "slices": [part for part in metrics["slices"] if part.get("by") != TITLE]}
