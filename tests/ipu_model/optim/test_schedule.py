"""Hand-worked learning rates."""

from __future__ import annotations

from typing import Any, List, Tuple

import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.train.training import learning_rate


@pytest.mark.parametrize(
    ("run", "shape", "expected"),
    [
        # Up in quarters of the peak, then down in sixths: the last update still learns.
        ((10, 4, 1.0), (), [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ((4, 0, 8.0), (), [8.0, 6.0, 4.0, 2.0]),
        ((2, 2, 1.0), (), [0.5, 1.0]),
        ((6, 2, 8.0), ("constant",), [4.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
        # 4 + 4 cos(0, 45, 90, 135 degrees)
        ((6, 2, 8.0), ("cosine",), [4.0, 8.0, 8.0, 4.0 + 4.0 * 0.5**0.5, 4.0, 4.0 - 4.0 * 0.5**0.5]),
        # the root of what is left of all 6 updates
        ((6, 2, 8.0), ("square_root",), [4.0, 8.0, *(8.0 * (share / 6) ** 0.5 for share in (4, 3, 2, 1))]),
        ((8, 2, 8.0), ("trapezoid", 4), [4.0, 8.0, 8.0, 8.0, 8.0, 6.0, 4.0, 2.0]),
        ((4, 0, 8.0), ("trapezoid", 4), [8.0, 6.0, 4.0, 2.0]),
        # 1 minus the roots of 0, 1/4, 1/2, 3/4
        ((8, 2, 8.0), ("1-sqrt", 4), [4.0, 8.0, 8.0, 8.0, 8.0, 4.0, 8.0 * (1 - 0.5**0.5), 8.0 * (1 - 0.75**0.5)]),
        ((4, 0, 8.0), ("1-sqrt", 4), [8.0, 4.0, 8.0 * (1 - 0.5**0.5), 8.0 * (1 - 0.75**0.5)]),
    ],
)
def test_every_shape_rises_and_decays_as_its_source_says(
    run: Tuple[int, int, float], shape: Tuple[Any, ...], expected: List[float]
) -> None:
    """Updates, those of the warm-up and the peak; the shape, and the updates of a late decay."""
    assert [learning_rate(step, *run, *shape) for step in range(run[0])] == pytest.approx(expected)


@pytest.mark.parametrize(("step", "warm_up", "word"), [(0, 11, "warmup_fraction"), (10, 0, "outside")])
def test_a_long_warm_up_and_an_update_outside_the_run_are_refused(step: int, warm_up: int, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        learning_rate(step, 10, warm_up, 1.0)
