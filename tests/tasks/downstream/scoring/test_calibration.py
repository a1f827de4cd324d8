"""Calibration against cases worked out by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from tasks.downstream.scoring.calibration import calibrate, compute_calibration
from tasks.downstream.scoring.page_parts import plot_reliability
from tasks.pages.render import render_html


def test_error_and_brier_score_by_hand() -> None:
    # Two bins are used: (0.5, 0.6] with 0.6, 0.6 (one right), and (0.9, 1] with 1.0, 1.0 (both right).
    found = compute_calibration([0.6, 0.6, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0])
    assert found.error == pytest.approx((2 * 0.1 + 2 * 0.0) / 4)
    assert found.brier == pytest.approx((0.16 + 0.36 + 0 + 0) / 4)
    used = [one for one in found.bins if one.count]
    assert [(one.low, one.high, one.count, one.accuracy) for one in used] == [(0.5, 0.6, 2, 0.5), (0.9, 1.0, 2, 1.0)]
    assert [one.accuracy for one in found.bins if not one.count] == [None] * 8


def test_bins_are_closed_above_and_none_is_lost() -> None:
    found = compute_calibration([0.0, 0.1, 0.1 + 1e-9, 0.999, 1.0], [0.0] * 5)
    assert [one.count for one in found.bins] == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]


def test_probabilities_that_were_drawn_honestly_are_calibrated() -> None:
    draw = np.random.default_rng(0)
    stated = draw.random(20_000)
    honest = compute_calibration(stated, (draw.random(20_000) < stated).astype(float))
    assert honest.error < 0.02
    assert honest.brier == pytest.approx(1 / 6, abs=0.01)  # mean of p (1 - p) for p even in [0, 1]
    inside = [one.accuracy_low <= one.confidence <= one.accuracy_high for one in honest.bins]  # type: ignore[operator]
    assert sum(inside) >= 8


@pytest.mark.parametrize(("right", "low", "high"), [(0, 0.0, 0.27753), (5, 0.23659, 0.76341), (10, 0.72247, 1.0)])
def test_shares_have_wilson_intervals_as_published(right: int, low: float, high: float) -> None:
    """Agresti and Coull 1998: 0 of 10 gives (0, 0.2775); by symmetry 10 of 10 gives (0.7225, 1)."""
    [found] = [one for one in compute_calibration([0.95] * 10, [1.0] * right + [0.0] * (10 - right)).bins if one.count]
    assert (found.accuracy_low, found.accuracy_high) == pytest.approx((low, high), abs=1e-4)


def test_the_diagram_draws_every_bin_that_has_questions() -> None:
    found = compute_calibration([0.15, 0.55, 0.95, 0.95], [0.0, 1.0, 1.0, 0.0])
    plot = plot_reliability(found)
    drawn = render_html(__file__, "reliability.html.j2", calibrated=found, reliability_plot=plot, probability="")
    assert drawn.count('class="dot"') == 3
    assert drawn.count('class="line" d="M') == 3 + 1 + 1, "three intervals, the diagonal and an axis"
    assert "2 answers&#10;probability 0.950&#10;accuracy 0.500&#10;95% interval 0.095 to 0.905" in drawn
    assert '<td>Expected calibration error</td><td class="number">0.375</td>' in drawn  # (0.15 + 0.45 + 2 * 0.45) / 4


def drawn(count: int, temperature: float, seed: int = 0) -> tuple[Callable[[float], np.ndarray], np.ndarray]:
    """Probabilities of two classes, of a model whose logits are right if divided by `temperature`."""
    random = np.random.default_rng(seed)
    leads = np.abs(random.normal(0, 2, count)) * temperature
    right = random.random(count) < 1 / (1 + np.exp(-leads / temperature))
    return (lambda divisor: 1 / (1 + np.exp(-leads / divisor))), right.astype(float)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_that_spoilt_the_probabilities_is_found(temperature: float) -> None:
    found = calibrate(*drawn(20_000, temperature))
    assert found.temperature == pytest.approx(temperature, rel=0.05)
    assert found.scaled is not None
    assert found.scaled.error < 0.02
    assert found.scaled.brier < found.brier or temperature == 1.0
    record = found.record()
    assert record["calibration_error_with_temperature"] == round(found.scaled.error, 6)
    assert record["calibration_error"] == round(found.error, 6), "as predicted"


def test_figures_with_temperature_are_measured_on_the_other_half() -> None:
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


def test_no_temperature_is_fitted_on_a_handful_of_answers_or_without_mistakes() -> None:
    scaled, right = drawn(39, 1.0)
    for found in (calibrate(scaled, right), calibrate(drawn(100, 1.0)[0], np.ones(100))):
        assert found.temperature is None
        assert "temperature" not in found.record()
