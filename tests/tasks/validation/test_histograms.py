"""Distributions, worked out by hand."""

import numpy as np
import pytest

from tasks.validation import checks
from tasks.validation.checks import Histogram


def lengths(*parts):
    counted = Histogram()
    for part in parts:
        counted.add(np.array(part, dtype=np.int64))
    return counted


def test_few_different_lengths_have_a_bar_each_and_none_an_empty_one():
    shape = {"title": "t", "unit": "tokens", "open_end": False, "widening": False}
    found = lengths([3, 5, 5], [], [4, 5]).histogram("t", "tokens")
    assert found == shape | {"edges": [3, 4, 5, 6], "counts": [1, 1, 3]}
    assert lengths().histogram("t", "u")["counts"] == [0]
    assert (lengths().mean, lengths().quantile(0.5)) == (0.0, 0)
    assert lengths([10, 10_000]).histogram("t", "u")["widening"]
    assert not lengths([150, 450]).histogram("t", "u")["widening"]


def test_mean_and_quantiles_are_exact_over_all_parts():
    counted = lengths([1, 2], [3, 10])
    assert (counted.count, counted.sum, counted.largest, counted.mean) == (4, 16, 10, 4.0)
    assert [counted.quantile(share) for share in (0.25, 0.5, 0.75, 1.0)] == [1, 2, 3, 10]


@pytest.mark.parametrize("seen", [[0, 1, 100_000], [100, 400], [1, 33], [7], [0, 40], [5, 90_000, 12, 13]])
def test_every_length_is_in_exactly_one_bar(seen):
    drawn = lengths(seen).histogram("t", "u")
    edges, counts = drawn["edges"], drawn["counts"]
    assert edges == sorted(set(edges))
    assert len(edges) == len(counts) + 1 <= checks.BARS + 2
    assert counts == [sum(low <= one < high for one in seen) for low, high in zip(edges, edges[1:], strict=False)]
    assert sum(counts) == len(seen)


def test_lengths_above_the_highest_are_counted_in_the_last_bar_and_exactly_in_the_sum(monkeypatch):
    monkeypatch.setattr(checks, "HIGHEST", 10)
    counted = lengths([4, 10, 5_000])
    drawn = counted.histogram("t", "u")
    assert drawn["open_end"]
    assert drawn["counts"][-1] == 2
    assert counted.sum == 5014
