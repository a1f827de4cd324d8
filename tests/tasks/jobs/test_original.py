"""The change of the held-out loss from the original model: its value, and how often its interval contains the truth."""

import numpy as np
import pytest

from tasks.jobs.original import compare_with_original


def compare(groups: np.ndarray) -> dict[str, float]:
    return compare_with_original({"figures": {"mlm_loss": 3.0000004}, "new_head": False, "groups": groups.tolist()})


def test_the_change_is_that_of_the_mean_over_masked_tokens() -> None:
    found = compare(np.array([[30.0, 20.0, 10], [90.0, 88.0, 30]]))
    assert found["mlm_loss"] == 3.0
    assert found["change"] == pytest.approx((108 - 120) / 40)
    # residuals -7 and 7, so the error is sqrt(2 * 98) / 40; Student's t of one degree of freedom is 12.706
    half = 12.7062 * 14 / 40
    assert (found["change_low"], found["change_high"]) == pytest.approx((-0.3 - half, -0.3 + half), rel=1e-4)


def test_one_group_has_no_interval() -> None:
    assert compare(np.array([[30.0, 20.0, 10]])) == {"mlm_loss": 3.0, "new_head": False, "change": -1.0, "groups": 1}


@pytest.mark.parametrize("groups", [5, 40])
def test_intervals_contain_the_truth_in_about_95_percent_of_cases(groups: int) -> None:
    rng, covered = np.random.default_rng(1), 0
    for _ in range(2000):
        labels = rng.integers(5, 20, groups).astype(float)
        old = labels * rng.normal(5, 1, groups)
        new = old + labels * rng.normal(-0.3, 0.5, groups)
        found = compare(np.stack([old, new, labels], 1))
        covered += found["change_low"] <= -0.3 <= found["change_high"]
    assert 0.93 < covered / 2000 < 0.97
