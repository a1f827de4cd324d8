"""Model card of sentence embeddings."""

from tasks.downstream.card import CardFacts, evaluated_on, hub_metadata, list_results, score_of, write_card
from tasks.downstream.pairs.scores import PairsScores

TASK = "sentence-similarity"


def make_card(scores: PairsScores, facts: CardFacts) -> str:
    """Return the model card; see `tasks.downstream.card.write_card`. Hub metrics are fractions."""
    dataset, metrics, titles = evaluated_on(facts, "pairs"), facts.metrics, scores.metrics.titles
    tags = ["sentence-transformers", "feature-extraction"]
    return write_card(
        __file__,
        "pairs_card.md.j2",
        facts,
        "contrastive fine-tuning on pairs of texts",
        hub_metadata(facts, TASK, tags, dataset, list_results(metrics, titles, {}), library="sentence-transformers"),
        titles,
        dataset=dataset[0],
        total=metrics["examples"],
        texts=metrics["texts"],
        baselines=[
            (baseline["name"], score_of(baseline, scores.limits[0].metric)) for baseline in metrics["baselines"]
        ],
        lead=titles[scores.limits[0].metric],
        is_scored=scores.is_scored,
        pooling=facts.entry_parameters["pooling"],
    )
