"""The best answer that needs no model: which rule is chosen, on which questions, and what it asks of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipu_model.core.files import read_json, write_json
from tasks.downstream.gate.gate import gate
from tasks.downstream.squad import scores
from tasks.downstream.squad.examples import write_questions
from tasks.downstream.squad.questions import SquadQuestion
from tasks.downstream.squad.scores import RULES, choose_rule
from tasks.params.entries import find_entry
from tasks.params.schema import load_params, parameter_values, validate_params
from tests.tasks.downstream.entries import change_parameters, make_question, part_of
from tests.tasks.trained_checkout import make_checkout, write_gate

CONTEXT = "Ada Lovelace wrote notes. She added a program of her own, for an engine that no one had built yet, to them."


def ask(*answers: str | None) -> list[SquadQuestion]:
    """Questions on CONTEXT with an answer, or without one."""
    stated = [() if answer is None else (answer,) for answer in answers]
    places = [[max(0, CONTEXT.find(answer)) for answer in one] for one in stated]
    found = enumerate(zip(stated, places, strict=True))
    return [make_question(f"q{i}", "What?", CONTEXT, one, place) for i, (one, place) in found]


@pytest.mark.parametrize(
    ("answers", "rule"),
    [
        (["Ada", "Ada", CONTEXT], "the first word of the context"),
        (["Ada Lovelace", "Ada Lovelace", "her own"], "the first 2 words of the context"),
        (["Ada Lovelace wrote"], "the first 3 words of the context"),
        (["Ada Lovelace wrote notes. She"], "the first 5 words of the context"),
        (["Ada Lovelace wrote notes."], "the first sentence of the context"),
        ([CONTEXT, CONTEXT, "Ada"], "the whole context"),
        (["zebra"], "the first word of the context"),
        ([], "the first word of the context"),
        ([CONTEXT, *[None] * 9], "the whole context"),  # questions without an answer choose none
    ],
)
def test_the_rule_with_the_best_f1_is_chosen_and_of_equal_ones_the_first(answers: list[str | None], rule: str) -> None:
    assert choose_rule(ask(*answers)) == rule


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("東京は首都です。人口は多い。", "東京は首都です。"),
        ("Is it so? It is.", "Is it so?"),
        ("Version 3.5 is out. Get it.", "Version 3.5 is out."),
        ("no end of a sentence", "no end of a sentence"),
        ("", ""),
    ],
)
def test_rules_take_a_part_of_any_context(context: str, answer: str) -> None:
    assert RULES["the first sentence of the context"](context) == answer
    assert RULES["the first 20 words of the context"](context) in context


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Training asks for the first two words, development for the whole context; the model answers two words."""
    root = make_checkout(tmp_path / "checkout")
    change_parameters(root, {"downstream": {"squad": {"gate": {"min_f1": None}}}})
    write_questions(ask(*["Ada Lovelace"] * 3), root / "data/examples/squad/train.parquet")
    write_questions(ask(*[CONTEXT] * 8), root / "data/examples/squad/dev.parquet")
    write_json(root / "evaluation/squad/predictions.json", {f"q{i}": "Ada Lovelace" for i in range(8)})
    write_gate(root)
    return root


def test_the_rule_of_training_questions_is_what_a_model_has_to_beat(checkout: Path) -> None:
    metrics, verdict = (read_json(checkout / f"metrics/{name}.json") for name in ("squad", "squad-gate"))
    assert metrics["baseline"] == "the first 2 words of the context"
    assert metrics["constant_score"] == metrics["f1"] < 50, "the whole context would score 100 there"
    assert verdict["accepted"] is False
    [reason] = verdict["reasons"]
    assert reason.startswith("F1 is no better than the first 2 words of the context as the answer (")
    assert "): +0.00" in reason
    write_json(checkout / "evaluation/squad/predictions.json", {f"q{i}": CONTEXT for i in range(8)})
    write_gate(checkout)
    values = parameter_values(load_params(checkout / "params.yaml"))
    assert gate(parameter_values(validate_params(values)), "squad", checkout)["accepted"]


def test_a_rule_is_chosen_on_so_many_questions_at_most(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(scores, "MOST_QUESTIONS", 2)
    monkeypatch.setattr(scores, "choose_rule", lambda questions: seen.append(len(questions)) or next(iter(RULES)))
    part_of(find_entry(load_params(checkout / "params.yaml"), "squad"), "scores").choose_rule(checkout)
    assert seen == [2]
