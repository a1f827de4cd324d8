"""The page of named entities: the worst mistakes in their sentences, scores by type, and text that stays text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tasks.downstream.ner.page import (
    Piece,
    known_slices,
    split_pieces,
    type_slices,
    word_types,
    worst_mistakes,
)
from tasks.downstream.ner.scores import METRICS, NerAnswers, NerDevSet, WordLogits, count_outcomes
from tasks.downstream.scoring.metrics import slice_by
from tasks.downstream.scoring.report import EvaluationView
from tasks.records.tags import find_entities
from tests.tasks.downstream.entries import task_with
from tests.tasks.hostile import HOSTILE, Page

TOKENS = [["Ada", "met", "Babbage"], ["in", "New", "York"], ["noone"], ["Ada"]]
GOLD = [["B-person", "O", "B-person"], ["O", "B-location", "I-location"], ["O"], ["B-person"]]
LABELS = ("O", "B-group", "I-group", "B-person", "I-person")
FOUND = [["B-person", "O", "O"], ["O", "O", "B-location"], ["O"], ["B-group"]]


def named(tokens: list[list[str]], tags: list[list[str]]) -> NerDevSet:
    return NerDevSet(tokens, tags, [f"line {number}" for number in range(1, len(tokens) + 1)])


def answers(tags: list[list[str]], sure: float = 0.9) -> NerAnswers:
    sureness = [np.full(len(one), sure) for one in tags]
    sureness[1][1] = 0.6
    return NerAnswers(tags, sureness, sureness)


def mistakes() -> list[Any]:
    given = answers(FOUND)
    return worst_mistakes(named(TOKENS, GOLD), given, count_outcomes(GOLD, given.texts))


def test_mistakes_come_lowest_f1_first_and_then_the_surest() -> None:
    found = mistakes()
    assert [one["number"] for one in found] == [1, 3, 0]
    assert [one["sureness"] for one in found if one["number"] == 1] == [0.9]
    [last] = [one for one in found if one["number"] == 0]
    assert (last["missed"], last["invented"]) == ([("Babbage", "person")], [])
    [other] = [one for one in found if one["number"] == 3]
    assert (other["missed"], other["invented"]) == ([("Ada", "person")], [("Ada", "group")])


def test_a_sentence_is_parted_where_entities_begin_and_end() -> None:
    found = split_pieces(TOKENS[1], find_entities(GOLD[1]), find_entities(FOUND[1]), 0, 3)
    assert found == [Piece("in", "", ""), Piece("New", "location", ""), Piece("York", "location", "location")]
    [first, *_] = split_pieces(TOKENS[0], find_entities(GOLD[0]), find_entities(FOUND[0]), 0, 3)
    assert first == Piece("Ada", "person", "person", exact=True)


def test_a_long_sentence_is_shown_around_its_mistakes() -> None:
    words = [f"w{number}" for number in range(200)]
    gold = ["O"] * 200
    gold[100] = "B-person"
    given = NerAnswers([["O"] * 200], [np.full(200, 0.5)], [np.zeros(200)])
    [found] = worst_mistakes(named([words], [gold]), given, count_outcomes([gold], given.texts))
    assert [piece.text.split()[0] for piece in found["pieces"]] == ["…", "w75", "w100", "w101", "…"]


def test_scores_by_type_count_what_is_there_found_and_correct() -> None:
    found = type_slices(GOLD, [" ".join(tags) for tags in FOUND], LABELS)
    counted = {one.slice: (one.examples, one.counts["found"], one.counts["correct"]) for one in found}
    assert counted == {"group": (0, 1, 0), "location": (1, 1, 0), "person": (3, 1, 1)}
    [person] = [one for one in found if one.slice == "person"]
    record = person.record()
    assert (record["f1"], record["precision"], record["recall"]) == (50.0, 100.0, pytest.approx(33.3333))
    assert record["by"] == "type"
    assert [one.slice for one in found if not one.counts["learnt"]] == ["location"]
    assert record["f1_low"] <= 50 <= record["f1_high"]


def test_entities_that_train_has_are_scored_apart_from_new_ones() -> None:
    examples, predictions = named(TOKENS, GOLD), [" ".join(tags) for tags in FOUND]
    seen, new = known_slices(examples, predictions, frozenset({"ada", "york"}))
    assert (seen.slice, seen.examples, seen.counts["found"], seen.counts["correct"]) == ("seen in train", 2, 3, 1)
    assert (new.slice, new.examples, new.counts["found"], new.counts["correct"]) == ("new", 2, 0, 0)
    assert (seen.figures["recall"], seen.figures["precision"]) == (50.0, pytest.approx(33.3333))
    assert known_slices(examples, predictions, None) == [], "podium evaluate has no training sentences"


def test_the_confusion_matrix_counts_words_by_type() -> None:
    names, gold, seen = word_types(GOLD, FOUND)
    assert names == ["group", "location", "person", "O"]
    pairs = [(names[one], names[other]) for one, other in zip(gold, seen, strict=True)]
    assert pairs[:3] == [("person", "person"), ("O", "O"), ("person", "O")]
    assert pairs[-1] == ("person", "group")


def test_the_probability_of_an_entity_is_the_mean_of_its_words() -> None:
    """As the records of `podium predict` state it; a temperature divides the logits."""
    task, logits = task_with("ner", "scores"), np.log([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.9, 0.05, 0.05]])
    examples = named([["New", "York", "is"]], [["B-x", "I-x", "O"]])
    found = task.answer(examples, WordLogits(("O", "B-x", "I-x"), logits, np.array([0, 3])))
    scaled = task.scaled_confidences(found)
    assert scaled(1.0) == pytest.approx([0.7])
    parts = np.exp(logits / 2)
    assert scaled(2.0) == pytest.approx([((parts[0] / parts[0].sum())[1] + (parts[1] / parts[1].sum())[2]) / 2])
    assert task.correctness(examples, found, np.zeros((1, 5))).tolist() == [1.0]
    other = named([["New", "York", "is"]], [["B-x", "O", "O"]])
    assert task.correctness(other, found, np.zeros((1, 5))).tolist() == [0.0], "other boundaries"


def page_of(tokens: list[list[str]], gold: list[list[str]], tags: list[list[str]]) -> str:
    given, examples = answers(tags), named(tokens, gold)
    outcomes = count_outcomes(gold, given.texts)
    slices: list[Any] = [*type_slices(gold, given.texts, LABELS)]
    slices += slice_by("length", ["short"] * len(gold), ["short"], METRICS, "dev", outcomes)
    metrics = {**METRICS.figures({"dev": outcomes}), "examples": len(gold), "answered": len(gold)}
    found: EvaluationView[NerDevSet, NerAnswers] = EvaluationView(
        {"dev": examples},
        {"dev": given},
        {"dev": given.texts},
        {"dev": outcomes},
        slices,
        None,
        metrics,
    )
    return str(task_with("ner", "report").page(found))


def test_the_page_marks_what_was_missed_and_what_was_invented() -> None:
    text = page_of(TOKENS, GOLD, FOUND)
    assert '<mark class="gold">Babbage<small>person</small></mark>' in text
    assert '<mark class="both">Ada<small>person</small></mark>' in text
    assert '<mark class="clash">York<small>location, predicted location</small></mark>' in text
    assert '<mark class="clash">Ada<small>person, predicted group</small></mark>' in text
    assert "3 sentences have a missed or wrong entity" in text
    assert "No other" not in page_of(TOKENS, GOLD, FOUND)
    assert "all entities are correct" in page_of(TOKENS, GOLD, GOLD)


@pytest.mark.parametrize("name", HOSTILE)
def test_words_and_types_stay_text(name: str) -> None:
    plain = page_of([["Ada"], ["New", "York"]], [["B-person"], ["O", "O"]], [["O"], ["B-x", "O"]])
    text = page_of([[HOSTILE[name]], [HOSTILE[name], "York"]], [["B-person"], ["O", "O"]], [["O"], ["B-x", "O"]])
    assert Page(text).elements == Page(plain).elements
