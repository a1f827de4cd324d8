"""Tags and the entities they stand for; counts held against conlleval's, worked out by hand and by its own rules."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tasks.downstream.ner.scores import METRICS, count_outcomes
from tasks.records.tags import (
    find_begin_starts,
    find_entities,
    find_inside_starts,
    find_problem,
)
from tests.tasks.downstream.ner.ner_checkout import conlleval


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-a I-a O B-b", [("a", 0, 2), ("b", 3, 4)]),
        ("B-a B-a I-a", [("a", 0, 1), ("a", 1, 3)]),
        ("I-a I-a B-a I-b", [("a", 0, 2), ("a", 2, 3), ("b", 3, 4)]),  # IOB1, and I- after another type
        ("O I-a O I-a", [("a", 1, 2), ("a", 3, 4)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
    ],
)
def test_entities_are_those_of_conlleval(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert find_entities(tags.split()) == expected


def test_what_only_one_of_the_schemes_has_is_found() -> None:
    assert find_inside_starts(["I-a", "I-a", "O", "B-a", "I-b"]) == [0, 4]
    assert find_begin_starts(["B-a", "B-a", "O", "B-a", "B-b", "I-b"]) == [0, 3, 4]


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("B", "without a type"),
        ("B-", "without a type"),
        ("I", "without a type"),
        ("I-", "without a type"),
        ("S-person", "another scheme"),
        ("L-x", "another scheme"),
        ("person", "not O"),
        ("o", "not O"),
        ("", "not O"),
        ("b-person", "not O"),
        ("X-person", "not O"),
        ("O-person", "not O"),
        ("B-a b", "not a word"),
        ("B-\u202ea", "not a word"),
        ("B-\u200c", "not a word"),
        ("B-a\u00a0", "not a word"),
        ("B-" + "a" * 101, "not a word"),
        (3, "not text"),
        (None, "not text"),
    ],
)
def test_what_is_no_tag_is_said(tag: object, said: str) -> None:
    assert said in (find_problem(tag) or "")


@pytest.mark.parametrize(
    "tag", ["O", "B-person", "I-creative-work", "B-1", "B-ORG/LOC", "I-München", "B-شخص\u200cها", "I-a\u00a0b"]
)
def test_sound_tags_have_no_problem(tag: str) -> None:
    assert find_problem(tag) is None


GOLD = ["B-PER I-PER O B-LOC O", "B-ORG O O", "O O B-PER"]
FOUND = ["B-PER I-PER O B-ORG O", "B-ORG I-ORG O", "O I-PER B-PER"]


def test_precision_recall_and_f1_are_those_worked_out_by_hand() -> None:
    """What conlleval prints of these eleven words:

    processed 11 tokens with 4 phrases; found: 5 phrases; correct: 2.
    accuracy:  72.73%; precision:  40.00%; recall:  50.00%; FB1:  44.44
                  LOC: precision:   0.00%; recall:   0.00%; FB1:   0.00  0
                  ORG: precision:   0.00%; recall:   0.00%; FB1:   0.00  2
                  PER: precision:  66.67%; recall: 100.00%; FB1:  80.00  3

    The words: I-PER after O begins an entity, and B-ORG I-ORG is another one than B-ORG.
    """
    gold = [tags.split() for tags in GOLD]
    outcomes = count_outcomes(gold, FOUND)
    assert outcomes.tolist() == [[2, 5, 2, 1, 4], [1, 3, 1, 0, 2], [1, 3, 2, 1, 2]]
    found = {name: round(value, 2) for name, value in METRICS.compute({"dev": outcomes}).items()}
    assert found == {"f1": 44.44, "precision": 40.0, "recall": 50.0, "token_accuracy": 72.73}
    by_type = {}
    for name in ("LOC", "ORG", "PER"):
        values = METRICS.compute({"dev": count_outcomes(gold, FOUND, only=name)})
        by_type[name] = [round(values[metric], 2) for metric in ("precision", "recall", "f1")]
    assert by_type == {"LOC": [0, 0, 0], "ORG": [0, 0, 0], "PER": [66.67, 100, 80]}


def test_counts_are_those_of_the_script_whatever_the_tags() -> None:
    draw, tags = random.Random(0), ["O", "B-a", "I-a", "B-b", "I-b"]
    seen = np.zeros(3, int)
    for _ in range(3000):
        length = draw.randint(1, 12)
        gold = [draw.choice(tags) for _ in range(length)]
        found = [one if draw.random() < 0.7 else draw.choice(tags) for one in gold]
        [(there, words, guessed, correct, right)] = count_outcomes([gold], [" ".join(found)]).tolist()
        assert (there, guessed, correct) == conlleval(gold, found), (gold, found)
        assert (words, right) == (length, sum(a == b for a, b in zip(gold, found, strict=True)))
        seen += np.array([there, guessed, correct], int)
    assert seen.min() > 1000


def test_a_sentence_without_an_answer_has_nothing_right() -> None:
    assert count_outcomes([["B-a", "O"]], [None]).tolist() == [[1, 2, 0, 0, 0]]
    assert set(METRICS.compute({"dev": count_outcomes([["O"]], ["O"])}).values()) == {0, 100}, (
        "nothing to find, all tags right"
    )


def test_a_resample_has_the_metrics_of_sentences_that_come_so_often() -> None:
    generator = np.random.default_rng(1)
    correct = generator.integers(0, 3, 40)
    outcomes = np.stack(
        [
            correct + generator.integers(0, 3, 40),
            np.full(40, 9),
            correct + generator.integers(0, 3, 40),
            correct,
            np.full(40, 8),
        ],
        axis=1,
    ).astype(float)
    weights = generator.integers(0, 4, (5, 40))
    for metric in METRICS.parts:
        again = [metric.whole(outcomes.repeat(row, axis=0)) for row in weights]
        assert metric.weighted(outcomes, weights.astype(float)) == pytest.approx(again)
    sums = outcomes.sum(axis=0)
    precision, recall = 100 * sums[3] / sums[2], 100 * sums[3] / sums[0]
    figures = METRICS.figures({"dev": outcomes})
    assert figures["f1"] == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-4)
    assert figures["f1_low"] < figures["f1"] < figures["f1_high"]
