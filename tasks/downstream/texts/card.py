"""Model card of a text classification or regression model."""

from tasks.downstream.card import CardFacts, evaluated_on, hub_metadata, list_results, score_of, write_card
from tasks.downstream.texts.scores import MIN_PROBABILITY, THRESHOLD, TextsScores, select_thresholds

TASK = "text-classification"
HUB_METRICS = {"macro_f1": "f1", "micro_f1": "f1", "pearson": "pearsonr", "spearman": "spearmanr"}
"""Names of Hub metrics that differ from Podium's."""


def make_card(scores: TextsScores, facts: CardFacts) -> str:
    """Return the model card; see `tasks.downstream.card.write_card`. Hub metrics are fractions."""
    task, metrics = scores.task, facts.metrics
    dataset = (f"GLUE {task.title}", "glue") if task.name else evaluated_on(facts, "examples")
    parts = scores.metrics.parts
    titles = {metric.name: metric.title.capitalize() if task.name else metric.title for metric in parts}
    kinds = {name: name.removesuffix("_matched").removesuffix("_mismatched") for name in titles} | HUB_METRICS
    results = list_results(metrics, titles, kinds)
    if task.name:
        for result, part in zip(results, parts, strict=True):
            result |= {"dataset_config": task.name, "dataset_split": task.hub_split(part.split)}
    tags = ["glue", task.name] if task.name else ["text-regression" if task.is_regression else TASK]
    return write_card(
        __file__,
        "texts_card.md.j2",
        facts,
        f"fine-tuning on {task.title if task.name else 'labelled texts'}",
        hub_metadata(facts, TASK, tags, dataset, results),
        {metric.name: metric.title for metric in parts},
        task=task,
        decision={THRESHOLD: None, MIN_PROBABILITY: None, **select_thresholds(metrics)},
        is_chosen=scores.decision.is_chosen,
        dataset=dataset[0],
        total=metrics["examples"],
        labels=task.labels
        or [name for _, name in sorted(facts.config["id2label"].items(), key=lambda item: int(item[0]))],
        constant_score=score_of(metrics, "constant_score"),
    )
