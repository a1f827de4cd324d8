"""Hand-worked learning rates."""

from __future__ import annotations

from typing import List

import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.train.training import learning_rate


def test_ten_updates_with_four_of_warm_up() -> None:
    # Up in quarters of the peak, then down in sixths: the last update still learns.
    expected = [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    assert [learning_rate(step, 10, 4, 1.0) for step in range(10)] == pytest.approx(expected)


def test_without_warm_up_the_first_update_has_the_peak() -> None:
    assert [learning_rate(step, 4, 0, 8.0) for step in range(4)] == [8.0, 6.0, 4.0, 2.0]


@pytest.mark.parametrize(
    ("shape", "after_warm_up"),
    [
        ("constant", [8.0, 8.0, 8.0, 8.0]),
        ("cosine", [8.0, 4.0 + 4.0 * 0.5**0.5, 4.0, 4.0 - 4.0 * 0.5**0.5]),  # 4 + 4 cos(0, 45, 90, 135 degrees)
        ("square_root", [8.0 * (share / 6) ** 0.5 for share in (4, 3, 2, 1)]),  # of all 6 updates
    ],
)
def test_every_shape_rises_alike_and_decays_as_its_source_says(shape: str, after_warm_up: List[float]) -> None:
    found = [learning_rate(step, 6, 2, 8.0, shape) for step in range(6)]
    assert found == pytest.approx([4.0, 8.0, *after_warm_up])


@pytest.mark.parametrize(
    ("shape", "at_the_end"),
    [
        ("trapezoid", [8.0, 6.0, 4.0, 2.0]),
        ("1-sqrt", [8.0, 4.0, 8.0 * (1 - 0.5**0.5), 8.0 * (1 - 0.75**0.5)]),  # 1 minus the roots of 0, 1/4, 1/2, 3/4
    ],
)
def test_a_late_decay_follows_a_constant_rate(shape: str, at_the_end: List[float]) -> None:
    found = [learning_rate(step, 8, 2, 8.0, shape, 4) for step in range(8)]
    assert found == pytest.approx([4.0, 8.0, 8.0, 8.0, *at_the_end])
    assert [learning_rate(step, 4, 0, 8.0, shape, 4) for step in range(4)] == pytest.approx(at_the_end)


def test_a_run_of_warm_up_only_ends_at_the_peak() -> None:
    assert [learning_rate(step, 2, 2, 1.0) for step in range(2)] == [0.5, 1.0]


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="warmup_fraction"):
        learning_rate(0, 10, 11, 1.0)


def test_an_update_outside_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="outside"):
        learning_rate(10, 10, 0, 1.0)
