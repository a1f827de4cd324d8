import time

import numpy as np
import pytest

from tasks.statistics.significance import Interval, bootstrap_interval, bootstrap_intervals, paired_bootstrap


def test_equal_values_have_an_interval_without_width() -> None:
    interval = bootstrap_interval([0.25] * 40)
    assert (interval.mean, interval.low, interval.high) == (0.25, 0.25, 0.25)


def test_a_single_question_has_an_interval_without_width() -> None:
    assert bootstrap_interval([0.5]) == Interval(0.5, 0.5, 0.5)


def test_half_right_of_400_is_five_points_either_way() -> None:
    # Standard error of a proportion of one half: sqrt(0.25 / 400) = 0.025; 1.96 of them are 0.049.
    interval = bootstrap_interval([1.0, 0.0] * 200, confidence=0.95)
    assert interval.mean == 0.5
    assert interval.low == pytest.approx(0.451, abs=0.004)
    assert interval.high == pytest.approx(0.549, abs=0.004)


def test_more_confidence_is_a_wider_interval() -> None:
    narrow, wide = (bootstrap_interval([1.0, 0.0] * 50, confidence=c) for c in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_same_seed_gives_the_same_bounds() -> None:
    values = np.random.default_rng(1).random(60)
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)


def test_columns_share_their_resamples() -> None:
    values = np.random.default_rng(1).random(60)
    first, second = bootstrap_intervals(np.stack([values, values * 2], axis=1))
    assert second.low == pytest.approx(2 * first.low)
    assert second.high == pytest.approx(2 * first.high)


def test_pairing_takes_the_difficulty_of_the_questions_out() -> None:
    # The candidate is 0.1 better on every question, hard or easy: no doubt is left.
    released = np.random.default_rng(2).random(50)
    paired = paired_bootstrap((released + 0.1).tolist(), released.tolist())
    assert paired.low == pytest.approx(0.1)
    assert paired.high == pytest.approx(0.1)


def test_the_sign_is_candidate_minus_released() -> None:
    assert paired_bootstrap([0.0, 0.0], [1.0, 1.0]).mean == -1.0


@pytest.mark.parametrize(
    ("columns", "confidence", "message"),
    [
        (np.empty((0, 1)), 0.95, "at least one question"),
        ([[float("nan")]], 0.95, "finite"),
        ([[1.0]], 1.0, "between 0 and 1"),
    ],
)
def test_what_has_no_interval_is_refused(columns: object, confidence: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap_intervals(columns, confidence=confidence)  # type: ignore[arg-type]


def test_unequal_lengths_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="2 and 1 values"):
        paired_bootstrap([1.0, 0.0], [1.0])


def test_ten_thousand_questions_take_two_seconds_at_most() -> None:
    values = np.random.default_rng(5).random((10_000, 2))
    bootstrap_intervals(values[:2])  # imports scipy
    started_at = time.process_time()
    bootstrap_intervals(values)
    assert time.process_time() - started_at < 2.0
