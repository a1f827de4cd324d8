"""Null scores, the threshold, and the curve of risk and coverage; every number worked out by hand."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from tasks.downstream.scoring.thresholds import ChosenThreshold, risk_coverage
from tasks.downstream.squad.answers import (
    Answer,
    best_span,
    choose_null_threshold,
    null_odds,
    null_scores,
    probable_answers,
    rank_with_null,
)
from tasks.downstream.squad.score_files import best_threshold
from tests.tasks.downstream.entries import task_with
from tests.tasks.downstream.squad.window_files import Window, read_windows, words, write_windows

SPANS = [Answer("red house", 4, 13, 6.0, 0.9), Answer("house", 8, 13, 4.0, 0.1)]


def test_the_null_score_is_the_least_over_the_windows_of_a_question(tmp_path: Path) -> None:
    token = words("red")
    windows = [Window(0, token, [0], [0], outside=2.0), Window(0, token, [0], [0], outside=-1.5)]
    windows.append(Window(1, token, [9], [9], outside=0.25))
    found = read_windows(*write_windows(tmp_path, windows, ["a", "b"]), ["a", "b"])
    assert null_scores(found, 2).tolist() == [-3.0, 0.5]  # [CLS] has the logits of all outside of the context


@pytest.mark.parametrize(
    ("null", "threshold", "texts"),
    [
        (7.0, 0.0, ["", "red house", "house"]),
        (6.0, 0.0, ["red house", "", "house"]),  # equal is not above
        (7.0, 1.0, ["red house", "", "house"]),
        (5.0, -2.0, ["", "red house", "house"]),
        (1.0, 0.0, ["red house", "house", ""]),
    ],
)
def test_no_answer_is_given_above_the_threshold(null: float, threshold: float, texts: list[str]) -> None:
    found = rank_with_null(SPANS, null, threshold)
    assert [one.text for one in found] == texts
    assert null_odds(found) == null - 6.0
    assert best_span(found).text == "red house"
    assert sum(one.probability for one in found) == pytest.approx(1)
    # The lead of what is answered over the next, as the threshold weighs them.
    leads = {"": null - threshold, "red house": 6.0, "house": 4.0}
    ranked = sorted(leads.values(), reverse=True)
    task = dataclasses.replace(task_with("squad", "scores"), chosen=ChosenThreshold(threshold))
    assert task.margin([found], 0) == ranked[0] - ranked[1]


def test_a_question_without_a_token_of_context_gets_no_answer() -> None:
    found = rank_with_null([Answer("", 0, 0, 0.0, 1.0)], -3.0, 0.0)
    assert [one.text for one in found] == [""]
    assert (best_span(found).text, null_odds(found)) == ("", -3.0)


def test_the_threshold_has_the_best_f1() -> None:
    # Ascending odds -2, -1, 0, 1; gains +1, -1, +0.5, +0.6: the sums are 1, 0, 0.5, 1.1.
    odds, f1, has_answer = [1.0, -2.0, 0.0, -1.0], [0.6, 1.0, 0.5, 0.0], [True, True, True, False]
    assert choose_null_threshold(odds, f1, has_answer).value == 1.0
    assert choose_null_threshold(odds, [0.4, *f1[1:]], has_answer).value == -2.0  # 0.9 is less than 1
    for first in (0.6, 0.4):
        scores = [first, *f1[1:]]
        official = best_threshold(scores, odds, has_answer, [True] * 4)[1]
        assert official == choose_null_threshold(odds, scores, has_answer).value


def test_equal_odds_fall_to_one_side_together() -> None:
    # At 0 both or none: +1 - 1 is not a gain, and answering nothing is as good.
    found = choose_null_threshold([0.0, 0.0, 3.0], [1.0, 0.0, 0.0], [True, False, False])
    assert found.value < 0.0


def test_where_no_span_pays_the_threshold_answers_nothing() -> None:
    found = choose_null_threshold([-5.0, 2.0], [0.0, 0.0], [True, False])
    assert -5.0001 < found.value < -5.0


def test_the_interval_holds_the_threshold_and_narrows_with_more_questions() -> None:
    draw = np.random.default_rng(0)

    def chosen(count: int) -> tuple[float, float, float]:
        has_answer = draw.random(count) < 0.5
        odds = draw.normal(np.where(has_answer, -1.0, 1.0), 1.5)
        found = choose_null_threshold(odds.tolist(), np.where(has_answer, 0.9, 0.0).tolist(), has_answer.tolist())
        assert found.examples == count
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.value <= found.high
        return found.value, found.low, found.high

    _, low, high = chosen(200)
    value, nearer_low, nearer_high = chosen(20_000)
    assert nearer_high - nearer_low < (high - low) / 2
    assert abs(value) < 0.3, "where both densities are equal, 0.9 against 1"


def test_risk_and_coverage() -> None:
    curve = risk_coverage([0.5, -1.0, 2.0, 0.0], [0.0, 1.0, 0.0, 1.0])
    assert curve.points == ((0.25, 0.0, -1.0), (0.5, 0.0, 0.0), (0.75, pytest.approx(1 / 3), 0.5), (1.0, 0.5, 2.0))
    assert curve.area == pytest.approx((1 / 3 + 1 / 2) / 4)
    assert curve.look_up(0.5)[0] == 0.75
    assert curve.look_up(-2.0) == (0.0, 0.0)
    many = risk_coverage(list(range(1003)), [1.0] * 1003).sample(200)
    assert len(many) <= 202
    assert many[-1][0] == 1.0


def test_asked_questions_are_decided_as_evaluated_ones_in_one_window(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    context = "the red house by the sea"
    for number in range(20):
        start, end = (draw.normal(size=6).tolist() for _ in range(2))
        window = Window(0, words(context), start, end, outside=float(draw.normal()))
        found = read_windows(*write_windows(tmp_path / str(number), [window], ["q"]), ["q"])
        spans = [start[a] + end[b] for a in range(6) for b in range(a, 6)]
        odds = 2 * window.outside - max(spans)
        for threshold in (odds - 1e-3, odds + 1e-3):
            asked = probable_answers(found, context, np.arange(6), top=3, max_answer_length=6, null_threshold=threshold)
            assert (asked[0].text == "") == (odds > threshold)
            assert len(asked) == 3
            assert math.isfinite(asked[0].score)
        assert all(one.text for one in probable_answers(found, context, np.arange(6), top=3, max_answer_length=6))
