"""The model card of a model that answers questions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tasks.downstream.squad import about
from tasks.downstream.squad.slices import TITLE
from tasks.release.card import CardFacts, CardTask, evaluated_on, hub_metadata, interval_of, percentage, write_card

TASK = "question-answering"
METRICS = (("exact_match", "exact match", "Exact match"), ("f1", "F1", "F1"))
"""Name in the metrics file, in the card, and on the Hub."""


class Task(about.Task, CardTask):
    """Cards of models that answer questions."""

    def card(self, facts: CardFacts) -> str:
        return model_card(facts)

    def released_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Without the slices that are named after articles: their titles are the user's text."""
        slices = [part for part in metrics.get("slices", []) if part.get("by") != TITLE]
        return {**metrics, "slices": slices} if "slices" in metrics else dict(metrics)


def model_card(facts: CardFacts) -> str:
    """See `tasks.release.card.write_card`.

    Raises:
        PublishError: exact_match or f1 is missing, or is not a finite number.
    """
    (dataset, kind), metrics, own = asked(facts), facts.metrics, facts.own
    data = {"task_name": "Question Answering", "dataset_type": kind, "dataset_name": dataset, "dataset_split": "dev"}
    results = [
        {**data, "metric_type": metric, "metric_name": title, "metric_value": percentage(metrics, metric)}
        for metric, _, title in METRICS
    ]
    folder = "FOLDER" if facts.name == "." else shlex.quote(facts.name)
    return write_card(
        __file__,
        "squad_card.md.j2",
        facts,
        "fine-tuning on questions",
        hub_metadata(facts, TASK, [TASK], results),
        [(words, percentage(metrics, metric), interval_of(metrics, metric)) for metric, words, _ in METRICS],
        dataset=dataset,
        total=metrics.get("total"),
        generated=own["data"]["source"] == "demo",
        max_answer_length=own["evaluate"]["max_answer_length"],
        ask=f'podium ask {folder} "question" --context "text"',
    )


def asked(facts: CardFacts) -> tuple[str, str]:
    """Readable name and identifier of the questions the scores were measured on."""
    if facts.own["data"]["source"] == "demo":
        return "Podium demo questions (generated)", "podium-demo"
    return evaluated_on(facts, "questions")
