"""Model card of a question answering model."""

import shlex

from tasks.downstream.card import CardFacts, evaluated_on, hub_metadata, list_results, score_of, write_card
from tasks.downstream.squad.answers import NULL_THRESHOLD
from tasks.downstream.squad.scores import SquadScores

TASK = "question-answering"
HUB_TITLES = {
    "exact_match": "Exact match",
    "exact": "Exact match",
    "HasAns_exact": "Exact match (HasAns)",
    "HasAns_f1": "F1 (HasAns)",
    "NoAns_exact": "Exact match (NoAns)",
}
"""Titles on the Hub that differ from Podium's."""


def make_card(scores: SquadScores, facts: CardFacts) -> str:
    """Return the model card; see `tasks.downstream.card.write_card`."""
    metrics, parameters, titles = facts.metrics, facts.entry_parameters, scores.metrics.titles
    generated = parameters["data"]["source"] == "demo"
    dataset = ("Podium demo questions (generated)", "podium-demo") if generated else evaluated_on(facts, "questions")
    results = list_results(metrics, {name: HUB_TITLES.get(name, title) for name, title in titles.items()}, {}, 1)
    folder = "FOLDER" if facts.name == "." else shlex.quote(facts.name)
    return write_card(
        __file__,
        "squad_card.md.j2",
        facts,
        "fine-tuning on questions",
        hub_metadata(facts, TASK, [TASK], dataset, results),
        titles,
        dataset=dataset[0],
        total=metrics.get("total"),
        generated=generated,
        max_answer_length=parameters["evaluate"]["max_answer_length"],
        threshold=metrics[NULL_THRESHOLD] if scores.nullable else None,
        metrics=metrics,
        baseline=score_of(metrics, "constant_score") if "constant_score" in metrics else None,
        ask=f'podium predict {folder} --text "question" --context "text"',
    )
