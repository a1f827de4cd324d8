"""Which pictures are built from which results."""

import pytest

from bench.plots import summarise_cost, write_plots
from bench.protocol import Sample
from bench.results import Measurement, Results
from bench.targets import OURS


def measured(case, variant):
    rounds = [[Sample(cpu=cpu, wall=cpu, units=1000)] for cpu in (0.1, 0.2, 0.4)]
    return Measurement(case, variant, 1, "real tokens", rounds)


def test_only_what_was_measured_is_drawn(tmp_path):
    results = Results()
    assert write_plots(results, tmp_path) == []
    results.measured = [measured("length-64", OURS), measured("length-128", OURS), measured("length-128", "hf fp32")]
    assert write_plots(results, tmp_path) == ["cost-by-length"]
    results.measured += [measured("corpus-rows", "corpus x 0.25"), measured("pretrain-tiny", OURS)]
    assert write_plots(results, tmp_path) == ["rates", "cost-by-length", "cost-by-corpus"]
    pictures = sorted(path.name for path in tmp_path.iterdir())
    assert pictures == [
        f"{name}.{end}" for name in ("cost-by-corpus", "cost-by-length", "rates") for end in ("png", "svg")
    ]


def test_the_cost_of_a_token_in_microseconds():
    found = summarise_cost(measured("length-64", OURS))
    assert (found.low, found.median, found.high) == pytest.approx((100, 200, 400))
