"""The model card of a model that answers questions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tasks.downstream.squad import about
from tasks.downstream.squad.slices import TITLE
from tasks.project.errors import PublishError
from tasks.release.card import CardFacts, CardTask, hub_metadata, interval_of, write_card
from tasks.release.provenance import finite
from tasks.release.released_parameters import WITHHELD

TASK = "question-answering"
OWN, OWN_TYPE = "own questions", "own-questions"
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
    (dataset, kind), metrics, own = evaluated_on(facts), facts.metrics, facts.own
    data = {"task_name": "Question Answering", "dataset_type": kind, "dataset_name": dataset, "dataset_split": "dev"}
    results = [
        {**data, "metric_type": metric, "metric_name": title, "metric_value": score(metrics, metric)}
        for metric, _, title in METRICS
    ]
    folder = "FOLDER" if facts.name == "." else shlex.quote(facts.name)
    return write_card(
        __file__,
        "squad_card.md.j2",
        facts,
        "fine-tuning on questions",
        hub_metadata(facts, TASK, [TASK], results),
        [(words, score(metrics, metric), interval_of(metrics, metric)) for metric, words, _ in METRICS],
        dataset=dataset,
        total=metrics.get("total"),
        generated=own["data"]["source"] == "demo",
        max_answer_length=own["evaluate"]["max_answer_length"],
        ask=f'podium ask {folder} "question" --context "text"',
    )


def score(metrics: Mapping[str, Any], name: str) -> float:
    """A percentage of the metrics, rounded to four decimals.

    Raises:
        PublishError: it is not there, not finite, or outside 0 to 100.
    """
    if name not in metrics:
        raise PublishError(f"the metrics have no {name}: run the stage evaluate again; nothing was published")
    value = finite(metrics[name], f"{name} of the metrics")
    if not 0 <= value <= 100:
        raise PublishError(f"{name}={value} of the metrics must be a percentage between 0 and 100")
    return round(value, 4)


def evaluated_on(facts: CardFacts) -> tuple[str, str]:
    """Readable name and identifier of the questions the scores were measured on."""
    questions = facts.own["data"]
    if questions["source"] == "demo":
        return "Podium demo questions (generated)", "podium-demo"
    if facts.data_name:
        return facts.data_name, OWN_TYPE
    if questions["source"] == "hub" and questions["dataset"] != WITHHELD:
        return str(questions["dataset"]), str(questions["dataset"])
    known = questions["source"] == "files" and questions["dev_path"] != WITHHELD
    return f"{OWN} ({questions['dev_path']})" if known else OWN, OWN_TYPE
