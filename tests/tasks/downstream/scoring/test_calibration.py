"""Calibration and the parts of evaluation pages, against scikit-learn and cases worked out by hand."""

import re

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score

from tasks.downstream.scoring.calibration import calibrate, compute_calibration
from tasks.downstream.scoring.page_parts import (
    count_confusions,
    plot_risk_coverage,
    plot_thresholds,
)
from tasks.downstream.scoring.thresholds import risk_coverage


def test_error_and_brier_score_by_hand():
    # Two bins are used: (0.5, 0.6] with 0.6, 0.6 (one right), and (0.9, 1] with 1.0, 1.0 (both right).
    found = compute_calibration([0.6, 0.6, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0])
    assert (found.error, found.brier) == (pytest.approx(0.05), pytest.approx(0.13))
    used = [(one.low, one.high, one.count, one.accuracy) for one in found.bins if one.count]
    assert used == [(0.5, 0.6, 2, 0.5), (0.9, 1.0, 2, 1.0)]
    edges = compute_calibration([0.0, 0.1, 0.1 + 1e-9, 0.999, 1.0], [0.0] * 5)
    assert [one.count for one in edges.bins] == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert [one.accuracy for one in edges.bins if not one.count] == [None] * 7


def test_probabilities_that_were_drawn_honestly_are_calibrated():
    draw = np.random.default_rng(0)
    stated = draw.random(20_000)
    honest = compute_calibration(stated, (draw.random(20_000) < stated).astype(float))
    assert honest.error < 0.02
    assert honest.brier == pytest.approx(1 / 6, abs=0.01)  # mean of p (1 - p) for p even in [0, 1]
    inside = [one.accuracy_low <= one.confidence <= one.accuracy_high for one in honest.bins]
    assert sum(inside) >= 8


@pytest.mark.parametrize(("right", "low", "high"), [(0, 0.0, 0.27753), (5, 0.23659, 0.76341), (10, 0.72247, 1.0)])
def test_shares_have_wilson_intervals_as_published(right, low, high):
    """Agresti and Coull 1998: 0 of 10 gives (0, 0.2775); by symmetry 10 of 10 gives (0.7225, 1)."""
    [found] = [one for one in compute_calibration([0.95] * 10, [1.0] * right + [0.0] * (10 - right)).bins if one.count]
    assert (found.accuracy_low, found.accuracy_high) == pytest.approx((low, high), abs=1e-4)


def drawn(count, temperature, seed=0):
    """Probabilities of two classes, of a model whose logits are right if divided by `temperature`."""
    random = np.random.default_rng(seed)
    leads = np.abs(random.normal(0, 2, count)) * temperature
    right = random.random(count) < 1 / (1 + np.exp(-leads / temperature))
    return (lambda divisor: 1 / (1 + np.exp(-leads / divisor))), right.astype(float)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_that_spoilt_the_probabilities_is_found(temperature):
    found = calibrate(*drawn(20_000, temperature))
    assert found.temperature == pytest.approx(temperature, rel=0.05)
    assert found.scaled.error < 0.02
    assert found.scaled.brier < found.brier or temperature == 1.0
    record = found.record()
    assert record["calibration_error_with_temperature"] == round(found.scaled.error, 6)
    assert record["calibration_error"] == round(found.error, 6), "as predicted"


def test_figures_with_temperature_are_measured_on_the_other_half():
    """Few answers choose a temperature that suits them better than others: fitted on all, it would look too good."""
    honest, optimistic = [], []
    for seed in range(40):
        scaled, right = drawn(40, 1.0, seed)
        found = calibrate(scaled, right)
        if found.scaled is not None and found.temperature is not None:
            honest.append(found.scaled.brier)
            optimistic.append(compute_calibration(scaled(found.temperature).tolist(), right.tolist()).brier)
    assert len(honest) > 30
    assert np.mean(honest) > np.mean(optimistic) + 0.002


def test_no_temperature_is_fitted_on_a_handful_of_answers_or_without_mistakes():
    for found in (calibrate(*drawn(39, 1.0)), calibrate(drawn(100, 1.0)[0], np.ones(100))):
        assert found.temperature is None
        assert "temperature" not in found.record()


def test_the_confusion_matrix_is_that_of_scikit_learn():
    gold, found = np.random.default_rng(0).integers(0, 4, (2, 300))
    rows = count_confusions(("a", "b", "c", "d"), gold, np.where(found == 3, -1, found))
    kept = found != 3
    expected = confusion_matrix(gold[kept], found[kept], labels=range(4))
    assert rows == list(zip("abcd", expected.tolist(), strict=True))


def test_the_curve_of_a_threshold_is_the_f1_of_accepting_above_it():
    random = np.random.default_rng(1)
    truth = random.integers(0, 2, 200)
    shares = np.clip(truth * 0.3 + random.random(200) * 0.7, 0, 1)
    plot = str(plot_thresholds({"<b>spam</b>": (shares, truth)}, {"<b>spam</b>": 0.55}))
    expected = 100 * f1_score(truth, shares > 0.55)
    assert f"threshold in use 0.550&#10;F1 {expected:.1f}" in plot
    shown = re.search(r"threshold \(probability\) 0.3&#10;F1 \(percent\) ([\d.]+)", plot)
    assert float(shown[1]) == pytest.approx(100 * f1_score(truth, shares > 0.3), abs=0.01)
    assert "<b>spam" not in plot


def test_coverage_is_stated_with_the_probability_that_gives_it():
    sure, right = np.array([0.95, 0.9, 0.8, 0.7, 0.6, 0.55, 0.54, 0.53, 0.52, 0.51]), np.array([1.0] * 6 + [0.0] * 4)
    curve = risk_coverage(-sure, right)
    assert curve.steps() == [
        (1.0, 0.4, "0.510"),
        (0.9, pytest.approx(1 / 3), "0.520"),
        (0.8, 0.25, "0.530"),
        (0.7, pytest.approx(1 / 7), "0.540"),
        (0.5, 0.0, "0.600"),
    ]
    assert "probability from 0.530&#10;coverage 80.0%&#10;risk 25.0%" in str(plot_risk_coverage(curve))
