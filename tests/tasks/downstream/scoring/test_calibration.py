"""Calibration and confusions, against scikit-learn and cases worked out by hand."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from tasks.downstream.scoring.calibration import calibrate, compute_calibration
from tasks.downstream.scoring.page_parts import count_confusions


def used_bins(calibration):
    return [part for part in calibration.bins if part.count]


def test_error_and_brier_score_by_hand_and_of_probabilities_that_were_drawn_honestly():
    # Two bins are used: (0.5, 0.6] with 0.6, 0.6 (one right), and (0.9, 1] with 1.0, 1.0 (both right).
    small = compute_calibration([0.6, 0.6, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0])
    assert (small.error, small.brier) == (pytest.approx(0.05), pytest.approx(0.13))
    used = [(part.low, part.high, part.count, part.accuracy) for part in used_bins(small)]
    assert used == [(0.5, 0.6, 2, 0.5), (0.9, 1.0, 2, 1.0)]
    edges = compute_calibration([0.0, 0.1, 0.1 + 1e-9, 0.999, 1.0], [0.0] * 5)
    assert [part.count for part in edges.bins] == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert [part.accuracy for part in edges.bins if not part.count] == [None] * 7
    draw = np.random.default_rng(0)
    probabilities = draw.random(20_000)
    honest = compute_calibration(probabilities, (draw.random(20_000) < probabilities).astype(float))
    assert honest.error < 0.02
    assert honest.brier == pytest.approx(1 / 6, abs=0.01)  # mean of p (1 - p) for p even in [0, 1]
    assert sum(part.accuracy_low <= part.confidence <= part.accuracy_high for part in honest.bins) >= 8


@pytest.mark.parametrize(("right", "low", "high"), [(0, 0.0, 0.27753), (5, 0.23659, 0.76341), (10, 0.72247, 1.0)])
def test_shares_have_wilson_intervals_as_published(right, low, high):
    """Agresti and Coull 1998: 0 of 10 gives (0, 0.2775); by symmetry 10 of 10 gives (0.7225, 1)."""
    [part] = used_bins(compute_calibration([0.95] * 10, [1.0] * right + [0.0] * (10 - right)))
    assert (part.accuracy_low, part.accuracy_high) == pytest.approx((low, high), abs=1e-4)


def drawn(count, temperature, seed=0):
    """Probabilities of two classes, of a model whose logits are right if divided by `temperature`."""
    random = np.random.default_rng(seed)
    leads = np.abs(random.normal(0, 2, count)) * temperature
    right = random.random(count) < 1 / (1 + np.exp(-leads / temperature))
    return (lambda divisor: 1 / (1 + np.exp(-leads / divisor))), right.astype(float)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_that_spoilt_the_probabilities_is_found(temperature):
    calibration = calibrate(*drawn(20_000, temperature))
    assert calibration.temperature == pytest.approx(temperature, rel=0.05)
    assert calibration.scaled.error < 0.02
    assert calibration.scaled.brier < calibration.brier or temperature == 1.0
    record = calibration.record()
    assert record["calibration_error_with_temperature"] == round(calibration.scaled.error, 6)
    assert record["calibration_error"] == round(calibration.error, 6), "as predicted"


def test_figures_with_temperature_are_measured_on_the_other_half_of_enough_answers_with_mistakes():
    """Few answers choose a temperature that suits them better than others: fitted on all, it would look too good."""
    honest, optimistic = [], []
    for seed in range(40):
        scaled, right = drawn(40, 1.0, seed)
        calibration = calibrate(scaled, right)
        if calibration.temperature is not None:
            honest.append(calibration.scaled.brier)
            optimistic.append(compute_calibration(scaled(calibration.temperature), right).brier)
    assert len(honest) > 30
    assert np.mean(honest) > np.mean(optimistic) + 0.002
    for unfit in (calibrate(*drawn(39, 1.0)), calibrate(drawn(100, 1.0)[0], np.ones(100))):
        assert "temperature" not in unfit.record()


def test_the_confusion_matrix_is_that_of_scikit_learn():
    gold, guesses = np.random.default_rng(0).integers(0, 4, (2, 300))
    rows = count_confusions(("a", "b", "c", "d"), gold, np.where(guesses == 3, -1, guesses))
    kept = guesses != 3
    expected = confusion_matrix(gold[kept], guesses[kept], labels=range(4))
    assert rows == list(zip("abcd", expected.tolist(), strict=True))
