"""Exact match and F1 by the official SQuAD v1.1 rule; every number worked out by hand."""

import pytest

from tasks.downstream.squad.score_files import exact_match, f1, normalize_answer, score


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Broncos", "broncos"),
        ("  A\tlarge\n  AN  house ", "large house"),
        ("theatre", "theatre"),  # an article only as a word of its own
        ("U.S.", "us"),  # punctuation goes first ...
        ("a.m.", "am"),  # ... so this has no article
        ("a-b", "ab"),
        ("the-end", "theend"),
        ("$5,000!", "5000"),
        ("«the» café", "« » café"),  # only ASCII punctuation is removed; the article leaves a space
        ("ÉCOLE", "école"),
        ("Łódź the 2nd", "łódź 2nd"),
        ("naïve—a test", "naïve— test"),  # the long dash stays and bounds the word "a"
        ("one\u00a0two", "one two"),  # a no-break space is white space
        ("The", ""),
        ("", ""),
    ],
)
def test_normalisation_lowers_drops_punctuation_then_articles_then_spaces(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "references", "match", "overlap"),
    [
        ("Denver Broncos", ["the Denver Broncos!"], 1, 1.0),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),  # precision 1, recall 1/2
        ("in Denver Colorado", ["Denver Broncos"], 0, 0.4),  # precision 1/3, recall 1/2
        ("Broncos", ["Panthers", "the Broncos"], 1, 1.0),  # best over the references
        ("Denver Broncos team", ["Denver", "Broncos team"], 0, 0.8),  # 1/2 against the first, 4/5 against the second
        ("big big dog", ["big dog dog"], 0, 2 / 3),  # bags: one big and one dog in common, 2/3 each way
        ("Paris", ["London"], 0, 0.0),
        ("", ["London"], 0, 0.0),
        ("the", ["The", "an"], 1, 0.0),  # no word left on either side: v1.1 gives exact match without F1
        ("Ångström", ["ångström"], 1, 1.0),
        ("1,000", ["1000"], 1, 1.0),
        ("1,000", ["1 000"], 0, 0.0),
    ],
)
def test_exact_match_and_f1(prediction: str, references: list[str], match: int, overlap: float) -> None:
    assert exact_match(prediction, references) == match
    assert f1(prediction, references) == pytest.approx(overlap, abs=1e-12)


def test_scores_are_percent_over_all_questions_and_unanswered_ones_count_zero() -> None:
    questions = [("1", ["Denver Broncos"]), ("2", ["Paris"]), ("3", ["a dog"])]
    scores = score(questions, {"1": "Denver", "3": "dog", "9": "x"})
    assert scores.exact_match == (0.0, 0.0, 1.0)
    assert scores.f1 == (pytest.approx(2 / 3), 0.0, 1.0)
    assert scores.unanswered == ("2",)
    assert scores.extra == ("9",)
    assert scores.summary() == {"exact_match": 33.3333, "f1": 55.5556, "total": 3}  # (2/3 + 0 + 1) / 3


def test_an_empty_prediction_is_an_answer_and_scores_zero() -> None:
    scores = score([("1", ["Paris"])], {"1": ""})
    assert (scores.unanswered, scores.f1) == ((), (0.0,))


def test_an_id_that_comes_twice_is_counted_twice() -> None:
    assert score([("1", ["Paris"]), ("1", ["Rome"])], {"1": "Rome"}).exact_match == (0.0, 1.0)


def test_a_question_without_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="no reference answer"):
        f1("x", [])


def test_no_question_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no question"):
        score([], {})
