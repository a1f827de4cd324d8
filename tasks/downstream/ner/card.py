"""The model card of a model that finds named entities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.downstream.ner import about
from tasks.downstream.ner.scores import METRICS
from tasks.downstream.ner.tags import parted
from tasks.project.errors import PublishError
from tasks.release.card import CardFacts, CardTask, hub_metadata, interval_of, write_card
from tasks.release.provenance import finite
from tasks.release.released_parameters import WITHHELD

TASK = "token-classification"
HUB_METRICS = {"token_accuracy": "accuracy"}
"""Names of the Hub's metrics where they differ from ours."""
OWN, OWN_TYPE = "own sentences", "own-sentences"


class Task(about.Task, CardTask):
    """Cards of models that find named entities."""

    def card(self, facts: CardFacts) -> str:
        return ner_card(facts)

    def released_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Without the types that the model does not know: their names are the user's text."""
        return {**metrics, "slices": [part for part in metrics["slices"] if part.get("learnt", True)]}


def ner_card(facts: CardFacts) -> str:
    """See `tasks.release.card.write_card`; on the Hub precision, recall, F1 and accuracy are fractions.

    Raises:
        PublishError: a score is missing, or is no finite number.
    """
    (dataset, kind), metrics = evaluated_on(facts), facts.metrics
    titles = METRICS.titles
    found = {name: score(metrics, name) for name in titles}
    data = {"task_name": "Token Classification", "dataset_type": kind, "dataset_name": dataset, "dataset_split": "dev"}
    results = [
        {
            **data,
            "metric_type": HUB_METRICS.get(name, name),
            "metric_name": titles[name],
            "metric_value": round(value / 100, 6),
        }
        for name, value in found.items()
    ]
    return write_card(
        __file__,
        "ner_card.md.j2",
        facts,
        "fine-tuning on named entities",
        hub_metadata(facts, TASK, ["named-entity-recognition"], results),
        [(titles[name], value, interval_of(metrics, name)) for name, value in found.items()],
        dataset=dataset,
        total=metrics["examples"],
        types=sorted({parted(label)[1] for label in facts.config["id2label"].values()} - {""}),
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
    """Readable name and identifier of the sentences the scores were measured on."""
    sentences = facts.own["data"]
    if facts.data_name:
        return facts.data_name, OWN_TYPE
    if sentences["source"] == "hub" and sentences["dataset"] != WITHHELD:
        return str(sentences["dataset"]), str(sentences["dataset"])
    known = sentences["source"] == "files" and sentences["dev_path"] != WITHHELD
    return f"{OWN} ({sentences['dev_path']})" if known else OWN, OWN_TYPE
