"""Intervals of scores: by hand and at the edge; tests/bench measures how often they hold the truth."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from tasks.downstream.ner.scores import METRICS
from tasks.downstream.scoring.metrics import Metrics, mean_metric
from tasks.downstream.scoring.significance import expect_half_width, interval_over_seeds
from tasks.downstream.squad.scores import OVERALL
from tasks.downstream.texts.metrics import metric

SCORE = Metrics((mean_metric("score", "score", 0),))


def test_few_sentences_with_entities_make_a_wide_interval_whatever_the_others_are():
    rows = np.tile([0.0, 10, 0, 0, 10], (1000, 1))
    rows[:100] = [1, 10, 1, 1, 10]
    figures = METRICS.figures({"dev": rows})
    assert figures["f1"] == figures["f1_high"] == 100
    assert figures["f1_low"] == pytest.approx(100 * 0.025 ** (1 / 100), abs=0.5)
    assert figures["token_accuracy_low"] == pytest.approx(100 * 0.025 ** (1 / 1000), abs=0.05)


@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "f1", "matthews_correlation", "pearson", "spearman"])
def test_every_metric_has_a_paired_test_and_is_not_certain_where_all_are_right(name):
    metrics, labels = Metrics((metric(name),)), np.random.default_rng(0).integers(0, 2, 300).astype(np.float64)
    figures = metrics.figures({"dev": np.stack([labels, labels], axis=1)})
    assert figures[name] == figures[f"{name}_high"] == pytest.approx(100)
    assert 90 < figures[f"{name}_low"] < 99.3
    labels = np.arange(40) % 2.0
    half, most = (np.where(wrong, 1 - labels, labels) for wrong in (np.arange(40) % 4 > 1, np.arange(40) == 0))
    better, most, worse = ({"dev": np.stack([labels, guesses], axis=1)} for guesses in (labels, most, half))
    difference = metrics.differences(better, worse, 0.95)[name]
    assert (difference.verdict(0.95), difference.mcnemar is not None) == ("better", name == "accuracy")
    assert 0 < difference.p_value < 0.05
    if difference.mcnemar is not None:
        assert (difference.mcnemar.first_only, difference.mcnemar.second_only) == (0, 20)
        assert difference.p_value == pytest.approx(binomtest(0, 20, 0.5).pvalue)
        difference = metrics.differences(most, worse, 0.95)[name]
        assert difference.p_value == pytest.approx(binomtest(1, 21, 0.5).pvalue)
        other = {"dev": np.stack([labels, np.where(np.arange(40) == 1, 1 - labels, labels)], axis=1)}
        assert metrics.differences(most, other, 0.95)[name].p_value == 1.0
    same = metrics.differences(worse, worse, 0.95)[name]
    assert (same.p_value, same.verdict(0.95)) == (1.0, "no difference shown")


def test_a_difference_from_a_baseline_has_a_width_where_all_resamples_are_alike():
    right, wrong = {"dev": np.ones((20, 1))}, {"dev": np.zeros((20, 1))}
    differences = SCORE.differences(right, wrong, 0.95)
    assert differences["score"].low == differences["score"].high == 100
    widened = SCORE.widen(differences, [right], wrong, 0.95)["score"]
    assert widened.high == pytest.approx(100)
    assert widened.low == pytest.approx(100 * (1 - 2 * (1 - 0.025 ** (1 / 20))), abs=2)


@pytest.mark.parametrize(("size", "disagreement"), [(300, 0.125), (1200, 0.78)])
def test_the_power_before_training_is_half_the_interval_that_the_gate_measures(size, disagreement):
    differing, order = int(size * disagreement), np.random.default_rng(0).permutation(size)
    first, second = np.zeros((size, 2)), np.zeros((size, 2))
    first[: differing // 2], second[differing // 2 : differing] = 1.0, 1.0
    measured = OVERALL.differences({"dev": first[order]}, {"dev": second[order]}, 0.95)["exact_match"]
    expected = expect_half_width(size, disagreement, 0.95)
    assert (measured.high - measured.low) / 2 == pytest.approx(expected, rel=0.06)  # 2,000 draws
    assert expect_half_width(4 * size, disagreement, 0.95) == pytest.approx(expected / 2)


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("spearman", np.tile(np.arange(4.0), (2, 1)).T),  # every 64th resample has one example alone
        ("matthews_correlation", np.zeros((30, 2))),  # no example of class 1
    ],
)
def test_a_correlation_of_few_examples_is_not_certain(name, outcomes):
    figures = Metrics((metric(name),)).figures({"dev": outcomes})
    assert figures[f"{name}_high"] - figures[f"{name}_low"] > 50


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
    drawn = np.stack([np.nan_to_num(score) + spread for score in scores])
    interval = interval_over_seeds(np.array(scores), drawn, examples, confidence)
    widths = (interval.high - interval.mean, interval.mean - interval.low)
    assert widths == pytest.approx((half, half), rel=1e-3, nan_ok=True)
