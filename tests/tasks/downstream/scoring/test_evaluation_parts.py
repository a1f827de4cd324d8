"""Parts of evaluation pages against scikit-learn and cases worked out by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score

from tasks.downstream.scoring.metrics import Slice
from tasks.downstream.scoring.page_parts import (
    MOST_IN_CELLS,
    count_confusions,
    group_bars,
    plot_risk_coverage,
    plot_thresholds,
    sample_cells,
)
from tasks.downstream.scoring.thresholds import risk_coverage


def test_the_confusion_matrix_is_that_of_scikit_learn() -> None:
    gold, found = np.random.default_rng(0).integers(0, 4, (2, 300))
    rows = count_confusions(("a", "b", "c", "d"), gold, np.where(found == 3, -1, found))
    kept = found != 3
    expected = confusion_matrix(gold[kept], found[kept], labels=range(4))
    assert rows == list(zip("abcd", expected.tolist(), strict=True))


def test_the_cells_of_a_confusion_matrix_have_a_bounded_number_of_their_own_examples() -> None:
    gold, found = np.random.default_rng(0).integers(0, 8, (2, 3000))
    cells = sample_cells((gold, np.where(found == 3, -1, found)), lambda one: (str(one), "word " * 100))
    assert len(cells) == 56
    assert sum(map(len, cells.values())) <= MOST_IN_CELLS
    for (row, column), examples in cells.items():
        assert all((gold[int(name)], found[int(name)]) == (row, column) for name, _ in examples)
        assert all(text == ("word " * 100)[:200] + "…" for _, text in examples)


def test_the_curve_of_a_threshold_is_the_f1_of_accepting_above_it() -> None:
    random = np.random.default_rng(1)
    truth = random.integers(0, 2, 200)
    shares = np.clip(truth * 0.3 + random.random(200) * 0.7, 0, 1)
    plot = str(plot_thresholds({"<b>spam</b>": (shares, truth)}, {"<b>spam</b>": 0.55}))
    expected = 100 * f1_score(truth, shares > 0.55)
    assert f"threshold in use 0.550&#10;F1 {expected:.1f}" in plot
    shown = re.search(r"threshold \(probability\) 0.3&#10;F1 \(percent\) ([\d.]+)", plot)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(100 * f1_score(truth, shares > 0.3), abs=0.01)
    assert "<b>spam" not in plot


def test_coverage_is_stated_with_the_probability_that_gives_it() -> None:
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


def test_bars_lead_with_the_first_score_that_all_slices_of_a_property_have() -> None:
    figures = {f"{name}{end}": 50.0 for name in ("accuracy", "macro_f1") for end in ("", "_low", "_high")}
    only = {name: value for name, value in figures.items() if name.startswith("accuracy")}
    slices = [Slice("length", "short", 3, figures), Slice("class", "a", 1200, only), Slice("class", "b", 2, figures)]
    titles = {"macro_f1": "macro F1", "accuracy": "accuracy"}
    assert group_bars(slices, titles) == [
        ("length", ["macro_f1", "accuracy"], slices[:1]),
        ("class", ["accuracy"], slices[1:]),
    ]
