"""The model card of a model that answers questions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tasks.downstream.card import CardFacts, CardTask, evaluated_on, finite, hub_metadata, percentage, write_card
from tasks.downstream.squad import about
from tasks.downstream.squad.no_answer import NULL_THRESHOLD
from tasks.downstream.squad.slices import TITLE

TASK = "question-answering"
METRICS = (("exact_match", "exact match", "Exact match"), ("f1", "F1", "F1"))
"""Name in the metrics file, in the card, and on the Hub."""
METRICS_V2 = (
    ("exact", "exact match", "Exact match"),
    ("f1", "F1", "F1"),
    ("HasAns_exact", "exact match, questions with an answer", "Exact match (HasAns)"),
    ("HasAns_f1", "F1, questions with an answer", "F1 (HasAns)"),
    ("NoAns_exact", "exact match, questions without an answer", "Exact match (NoAns)"),
)
"""The same where a question may have no answer."""


class Task(about.Task, CardTask):
    """Cards of models that answer questions."""

    def card(self, facts: CardFacts) -> str:
        """See `tasks.downstream.card.write_card`.

        Raises:
            PublishError: exact_match or f1 is missing, or is not a finite number.
        """
        metrics, own = facts.metrics, facts.own
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
            threshold=finite(metrics[NULL_THRESHOLD], NULL_THRESHOLD) if nullable else None,
            metrics=metrics,
            baseline=finite(metrics["constant_score"], "constant_score") if "constant_score" in metrics else None,
            ask=f'podium ask {folder} "question" --context "text"',
        )

    def settings(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {NULL_THRESHOLD: metrics[NULL_THRESHOLD]} if self.nullable else {}

    def released_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Without the slices that are named after articles: their titles are the user's text."""
        slices = [part for part in metrics.get("slices", []) if part.get("by") != TITLE]
        return {**metrics, "slices": slices} if "slices" in metrics else dict(metrics)
