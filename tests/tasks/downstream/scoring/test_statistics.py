"""Intervals of scores: by hand, at the edge, and how often they hold the truth."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from tasks.downstream.ner.scores import METRICS
from tasks.downstream.scoring.metrics import Metrics
from tasks.downstream.scoring.significance import expect_half_width, interval_over_seeds
from tasks.downstream.squad.scores import OVERALL
from tasks.downstream.texts.metrics import metric
from tests.tasks.downstream.scoring.interval_coverage import (
    SCORE,
    SIZES,
    TRUTHS,
    World,
    coverage,
    coverage_of_correlation,
    coverage_of_f1,
    coverage_of_shares,
    draw_values,
    percentiles,
    stated,
)


def scores(right, size):
    return (np.arange(size) < right).astype(np.float64)


@pytest.mark.parametrize(("right", "size"), [(1000, 1000), (0, 1000), (30, 30), (1, 300), (299, 300), (150, 300)])
def test_the_bounds_of_a_share_are_those_of_clopper_and_pearson(right, size):
    low, high = stated(scores(right, size))
    exact = binomtest(right, size).proportion_ci(method="exact")
    width = exact.high - exact.low
    assert low == pytest.approx(exact.low, abs=0.07 * width)  # 2,000 draws
    assert high == pytest.approx(exact.high, abs=0.07 * width)


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("size", SIZES[:2])
def test_the_interval_of_a_share_holds_it_as_often_as_it_says(truth, size):
    assert coverage_of_shares(truth, size) >= 0.95


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_interval_of_a_mean_holds_it_as_often_as_it_says(truth):
    # 200 trials: 0.95 less three standard errors.
    assert coverage_of_f1(truth, SIZES[0], trials=200) >= 0.904
    if 0 < truth < 0.1:
        assert coverage_of_f1(truth, SIZES[0], 200, percentiles) < 0.8, "the reason for all of this"


def test_few_sentences_with_entities_make_a_wide_interval_whatever_the_others_are():
    rows = np.tile([0.0, 10, 0, 0, 10], (1000, 1))
    rows[:100] = [1, 10, 1, 1, 10]
    found = METRICS.figures({"dev": rows})
    assert found["f1"] == found["f1_high"] == 100
    assert found["f1_low"] == pytest.approx(100 * 0.025 ** (1 / 100), abs=0.5)
    assert found["token_accuracy_low"] == pytest.approx(100 * 0.025 ** (1 / 1000), abs=0.05)


@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "f1", "matthews_correlation", "pearson", "spearman"])
def test_every_metric_has_a_paired_test_and_is_not_certain_where_all_are_right(name):
    metrics, labels = Metrics((metric(name),)), np.random.default_rng(0).integers(0, 2, 300).astype(np.float64)
    figures = metrics.figures({"dev": np.stack([labels, labels], axis=1)})
    assert figures[name] == figures[f"{name}_high"] == pytest.approx(100)
    assert 90 < figures[f"{name}_low"] < 99.3
    labels = np.arange(40) % 2.0
    half = np.where(np.arange(40) % 4 < 2, labels, 1 - labels)
    better, worse = (np.stack([labels, found], axis=1) for found in (labels, half))
    found = metrics.differences({"dev": better}, {"dev": worse}, 0.95)[name]
    assert (found.verdict(0.95), found.mcnemar is not None) == ("better", name == "accuracy")
    assert 0 < found.p_value < 0.05
    if found.mcnemar is not None:
        assert (found.mcnemar.first_only, found.mcnemar.second_only) == (0, 20)
        assert found.p_value == pytest.approx(binomtest(0, 20, 0.5).pvalue)
    same = metrics.differences({"dev": worse}, {"dev": worse}, 0.95)[name]
    assert (same.p_value, same.verdict(0.95)) == (1.0, "no difference shown")


def test_a_difference_from_a_baseline_has_a_width_where_all_resamples_are_alike():
    right, wrong = {"dev": np.ones((20, 1))}, {"dev": np.zeros((20, 1))}
    found = SCORE.differences(right, wrong, 0.95)
    assert found["score"].low == found["score"].high == 100
    widened = SCORE.widen(found, [right], wrong, 0.95)["score"]
    assert widened.high == pytest.approx(100)
    assert widened.low == pytest.approx(100 * (1 - 2 * (1 - 0.025 ** (1 / 20))), abs=2)


@pytest.mark.parametrize(("size", "disagreement"), [(300, 0.5), (300, 0.125), (1200, 0.78)])
def test_the_power_before_training_is_half_the_interval_that_the_gate_measures(size, disagreement):
    differing, generator = int(size * disagreement), np.random.default_rng(0)
    first, second = np.zeros((size, 2)), np.zeros((size, 2))
    first[: differing // 2], second[differing // 2 : differing] = 1.0, 1.0
    order = generator.permutation(size)
    measured = OVERALL.differences({"dev": first[order]}, {"dev": second[order]}, 0.95)["exact_match"]
    expected = expect_half_width(size, disagreement, 0.95)
    assert (measured.high - measured.low) / 2 == pytest.approx(expected, rel=0.06)  # 2,000 draws
    assert expect_half_width(4 * size, disagreement, 0.95) == pytest.approx(expected / 2)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("ratio", [0.3, 0.02])
def test_the_interval_of_a_correlation_does_not_depend_on_the_scale_of_predictions(name, ratio):
    outcomes = draw_values(0.8, 1.0, 120, np.random.default_rng(0))
    shrunken = np.stack([outcomes[:, 0], 7 + ratio * outcomes[:, 1]], axis=1)
    plain, other = (Metrics((metric(name),)).figures({"dev": rows}) for rows in (outcomes, shrunken))
    assert other == pytest.approx(plain)
    assert plain[f"{name}_low"] < plain[name] < plain[f"{name}_high"]


@pytest.mark.parametrize(("name", "truth"), [("pearson", 0.3), ("pearson", 0.95), ("spearman", 0.8)])
def test_the_interval_of_a_correlation_holds_it_as_often_as_it_says(name, truth):
    # 100 trials: 0.95 less three standard errors.
    assert coverage_of_correlation(name, truth, 0.02, SIZES[0], trials=100) >= 0.884


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_the_paired_interval_of_correlations_is_that_of_the_bootstrap_for_many_examples(name):
    values, *errors = np.random.default_rng(0).normal(size=(3, 300))
    first, second = ({"dev": np.stack([values, values + error], axis=1)} for error in errors)
    studentized, plain = (
        Metrics((one,)).differences(first, second, 0.95)[name]
        for one in (metric(name), dataclasses.replace(metric(name), correlate=None))
    )
    assert studentized.high - studentized.low == pytest.approx(plain.high - plain.low, rel=0.1)


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("spearman", np.tile(np.arange(4.0), (2, 1)).T),  # every 64th resample has one example alone
        ("matthews_correlation", np.zeros((30, 2))),  # no example of class 1
    ],
)
def test_a_correlation_of_few_examples_is_not_certain(name, outcomes):
    found = Metrics((metric(name),)).figures({"dev": outcomes})
    assert found[f"{name}_high"] - found[f"{name}_low"] > 50


WAVE = np.tile([-1.0, 1.0], 500)
NORMAL = np.random.default_rng(1).normal(0.0, 2.0, 4000)


@pytest.mark.parametrize(
    ("scores", "spread", "examples", "confidence", "half"),
    [
        # Between models 2 / 2 = 1, between examples 1: 2 in all, with 2^2 / (1^2 / 1 + 1^2 / 1e9) = 4 degrees.
        ([79.0, 81.0], WAVE, 10**9, 0.9, 2.1318 * 2**0.5),
        # Of models alone the deviation is 2 and its error 2 / sqrt(3); t of 2 degrees leaves 2.5% above 4.3027.
        ([78.0, 80.0, 82.0], np.zeros(50), 1000, 0.95, 4.3027 * 2 / 3**0.5),
        ([80.0] * 3, NORMAL - NORMAL.mean(), 1001, 0.95, 1.962 * NORMAL.std()),  # t of 1,000 degrees
        ([80.0] * 2, np.zeros(5), 10, 0.95, 0.0),
        ([80.0] * 2, np.array([math.nan, *WAVE]), 10**9, 0.95, 1.96),  # resamples without a score are left out
        ([math.nan] * 2, WAVE * math.nan, 10, 0.95, math.nan),
    ],
)
def test_variances_of_models_and_examples_are_added_with_satterthwaites_degrees_of_freedom(
    scores, spread, examples, confidence, half
):
    drawn = np.stack([np.nan_to_num(one) + spread for one in scores])
    found = interval_over_seeds(np.array(scores), drawn, examples, confidence)
    assert (found.high - found.mean, found.mean - found.low) == pytest.approx((half, half), rel=1e-3, nan_ok=True)


@pytest.mark.parametrize(("models", "least"), [(2, 0.87), (3, 0.92), (5, 0.93)])
def test_it_holds_the_mean_of_the_recipe_as_often_as_stated(models, least):
    world = World(models, skill=0.2, examples=300)
    assert least <= coverage(world, "the gate's", 400, 200)[0] <= 0.99
    assert coverage(world, "one model, examples alone", 400, 200)[0] < 0.8
