"""Calibration against cases worked out by hand."""

import numpy as np
import pytest

from tasks.downstream.scoring.calibration import compute_calibration
from tasks.downstream.squad.page import reliability_plot
from tasks.pages.render import render_html


def test_error_and_brier_score_by_hand() -> None:
    # Two bins are used: (0.5, 0.6] with 0.6, 0.6 (one right), and (0.9, 1] with 1.0, 1.0 (both right).
    found = compute_calibration([0.6, 0.6, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0])
    assert found.error == pytest.approx((2 * 0.1 + 2 * 0.0) / 4)
    assert found.brier == pytest.approx((0.16 + 0.36 + 0 + 0) / 4)
    used = [one for one in found.bins if one.count]
    assert [(one.low, one.high, one.count, one.accuracy) for one in used] == [(0.5, 0.6, 2, 0.5), (0.9, 1.0, 2, 1.0)]
    assert [one.accuracy for one in found.bins if not one.count] == [None] * 8


def test_a_model_that_is_always_sure_and_always_wrong_has_the_worst_figures() -> None:
    worst = compute_calibration([1.0] * 5, [0.0] * 5)
    assert (worst.error, worst.brier) == (1.0, 1.0)
    best = compute_calibration([0.0, 1.0], [0.0, 1.0])
    assert (best.error, best.brier) == (0.0, 0.0)


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
    drawn = render_html(__file__, "reliability.html.j2", found=found, reliability_plot=reliability_plot(found))
    assert drawn.count('class="dot"') == 3
    assert drawn.count('class="line" d="M') == 3 + 1, "three intervals and the diagonal"
    assert "2 questions&#10;probability 0.950&#10;accuracy 0.500&#10;95% interval 0.095 to 0.905" in drawn
    assert "Expected calibration error 0.375 (0 is perfect)" in drawn  # (0.15 + 0.45 + 2 * 0.45) / 4
