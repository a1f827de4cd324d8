"""Model card of a named entity recognition model."""

from tasks.downstream.card import CardFacts, evaluated_on, hub_metadata, list_results, write_card
from tasks.downstream.ner.scores import METRICS
from tasks.records.tags import split_tag

TASK = "token-classification"
HUB_METRICS = {"token_accuracy": "accuracy"}
"""Names of Hub metrics that differ from Podium's."""


def make_card(facts: CardFacts) -> str:
    """Return the model card; see `tasks.downstream.card.write_card`. Hub metrics are fractions."""
    dataset, metrics, titles = evaluated_on(facts, "sentences"), facts.metrics, METRICS.titles
    results = list_results(metrics, titles, HUB_METRICS)
    return write_card(
        __file__,
        "ner_card.md.j2",
        facts,
        "fine-tuning on named entities",
        hub_metadata(facts, TASK, ["named-entity-recognition"], dataset, results),
        titles,
        dataset=dataset[0],
        total=metrics["examples"],
        types=sorted({split_tag(label)[1] for label in facts.config["id2label"].values()} - {""}),
    )
