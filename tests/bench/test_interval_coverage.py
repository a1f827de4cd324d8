"""Intervals of scores: how often they hold the truth, by the simulations of docs/evaluation.md."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binomtest

from bench.interval_coverage import (
    World,
    compute_bounds,
    cover_correlation,
    cover_f1,
    cover_recipe,
    cover_shares,
    draw_values,
)
from tasks.downstream.scoring.metrics import Metrics
from tasks.downstream.texts.metrics import metric


@pytest.mark.parametrize(("right", "size"), [(1000, 1000), (0, 1000), (30, 30), (1, 300), (150, 300)])
def test_the_bounds_of_a_share_are_those_of_clopper_and_pearson(right, size):
    exact = binomtest(right, size).proportion_ci(method="exact")
    bounds = compute_bounds((np.arange(size) < right).astype(np.float64))
    assert bounds == pytest.approx((exact.low, exact.high), abs=0.07 * (exact.high - exact.low))  # 2,000 draws


@pytest.mark.parametrize("truth", [0.0, 0.005, 0.01, 0.5, 0.99, 0.995, 1.0])
def test_intervals_of_shares_and_of_means_hold_the_truth_as_often_as_they_say(truth):
    assert all(cover_shares(truth, size) >= 0.95 for size in (30, 300))
    assert cover_f1(truth, 30, 200) >= 0.904  # 0.95 less three standard errors


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_intervals_of_correlations_know_no_scale_and_for_many_examples_are_those_of_the_bootstrap(name):
    outcomes = draw_values(0.8, 1.0, 120, np.random.default_rng(0))
    shrunken = np.stack([outcomes[:, 0], 7 + 0.02 * outcomes[:, 1]], axis=1)
    plain, other = (Metrics((metric(name),)).figures({"dev": rows}) for rows in (outcomes, shrunken))
    assert other == pytest.approx(plain)
    assert plain[f"{name}_low"] < plain[name] < plain[f"{name}_high"]
    values, *errors = np.random.default_rng(0).normal(size=(3, 300))
    models = [{"dev": np.stack([values, values + error], axis=1)} for error in errors]
    studentized, bootstrap = (
        Metrics((measure,)).differences(*models, 0.95)[name]
        for measure in (metric(name), dataclasses.replace(metric(name), correlate=None))
    )
    assert studentized.high - studentized.low == pytest.approx(bootstrap.high - bootstrap.low, rel=0.1)


@pytest.mark.parametrize(("name", "correlation"), [("pearson", 0.3), ("pearson", 0.95), ("spearman", 0.8)])
def test_the_interval_of_a_correlation_holds_it_as_often_as_it_says(name, correlation):
    assert cover_correlation(name, correlation, 0.02, 30, 100) >= 0.884  # 0.95 less three standard errors


@pytest.mark.parametrize(("models", "least"), [(2, 0.87), (3, 0.92), (5, 0.93)])
def test_the_interval_over_seeds_holds_the_mean_of_the_recipe(models, least):
    held, _ = cover_recipe(World(models, 0.2, examples=300), "the gate's", 400, resamples=200)
    assert least <= held <= 0.99
