"""The interval over seeds and examples: known values, and how often it holds the truth in a simulated world."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tasks.downstream.scoring.significance import interval_over_seeds
from tests.tasks.downstream.scoring.seed_coverage import World, coverage


def test_without_spread_between_models_it_is_the_interval_over_examples() -> None:
    drawn = np.random.default_rng(1).normal(80.0, 2.0, 4000)
    found = interval_over_seeds(np.array([80.0, 80.0, 80.0]), np.stack([drawn] * 3), 1001, 0.95)
    assert found.mean == 80.0
    assert found.high - 80 == pytest.approx(1.962 * drawn.std(), rel=1e-3)  # Student's t of 1,000 degrees of freedom
    assert 80 - found.low == pytest.approx(found.high - 80)


def test_without_spread_between_examples_it_is_students_interval_over_models() -> None:
    scores = np.array([80.0, 82.0, 84.0])
    found = interval_over_seeds(scores, np.tile(scores[:, None], 50), 1000, 0.95)
    # The deviation is 2 and its error 2 / sqrt(3); t of 2 degrees of freedom leaves 2.5% above 4.3027.
    assert (found.low, found.high) == pytest.approx((82 - 4.3027 * 2 / 3**0.5, 82 + 4.3027 * 2 / 3**0.5), abs=1e-3)


def test_both_variances_are_added_with_satterthwaites_degrees_of_freedom() -> None:
    # Between models 2 / 2 = 1, between examples 1: 2 in all, with 2^2 / (1^2 / 1 + 1^2 / 1e9) = 4 degrees of freedom.
    wave = np.tile([-1.0, 1.0], 500)
    found = interval_over_seeds(np.array([79.0, 81.0]), np.stack([79 + wave, 81 + wave]), 10**9, 0.9)
    assert found.high - 80 == pytest.approx(2.1318 * 2**0.5, abs=1e-3)


def test_resamples_without_a_score_are_left_out_and_none_at_all_gives_no_bounds() -> None:
    some = np.array([[80.0, math.nan, 82.0], [81.0, math.nan, 83.0]])
    assert math.isfinite(interval_over_seeds(np.array([81.0, 82.0]), some, 10, 0.95).low)
    none = interval_over_seeds(np.array([math.nan] * 2), np.full((2, 3), math.nan), 10, 0.95)
    assert math.isnan(none.low)
    assert math.isnan(none.high)


def test_equal_models_right_everywhere_have_an_interval_without_width() -> None:
    found = interval_over_seeds(np.array([100.0, 100.0]), np.full((2, 5), 100.0), 10, 0.95)
    assert (found.low, found.mean, found.high) == (100.0, 100.0, 100.0)


@pytest.mark.parametrize(("models", "least"), [(2, 0.87), (3, 0.92), (5, 0.93)])
def test_it_holds_what_the_recipe_scores_about_as_often_as_stated_and_examples_alone_do_not(
    models: int, least: float
) -> None:
    world = World(models, skill=0.2, examples=300)
    assert least <= coverage(world, "the gate's", 400, 200)[0] <= 0.99
    assert coverage(world, "one model, examples alone", 400, 200)[0] < 0.8


def test_of_two_models_it_holds_more_often_than_a_bootstrap_that_draws_them() -> None:
    world = World(2, skill=0.5, examples=300)
    ours, theirs = (coverage(world, name, 400, 200)[0] for name in ("the gate's", "bootstrap of models and examples"))
    assert ours > theirs + 0.1
