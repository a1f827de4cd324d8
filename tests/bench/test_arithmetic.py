"""Rates, ratios, bars and FLOPs against numbers worked out by hand."""

import pytest

from bench import variants
from bench.flops import answering_flops, pretraining_flops
from bench.plots import summarise_cost
from bench.protocol import Sample
from bench.report import evaluate_target
from bench.results import Measurement, Results
from bench.statistics import Summary, cpu_rate, ratios, summarise, wall_rate
from bench.targets import OURS, TARGETS, Target
from ipu_model.models.config import ModelConfig


def test_a_rate_is_all_units_over_all_seconds():
    samples = [Sample(cpu=1.0, wall=2.0, units=100), Sample(cpu=3.0, wall=3.0, units=500)]
    assert cpu_rate(samples) == 600 / 4  # and not the mean of 100 and 166.7
    assert wall_rate(samples) == 600 / 5
    rounds = [[Sample(cpu=cpu, wall=cpu, units=1000)] for cpu in (0.1, 0.2, 0.4)]
    cost = summarise_cost(Measurement("length-64", OURS, 1, "real tokens", rounds))
    assert (cost.low, cost.median, cost.high) == pytest.approx((100, 200, 400)), "microseconds of a token"


def test_ratios_pair_neighbouring_rounds():
    # Both sides slow down together: every pair says 2, though the separate medians of the sides would say 1.5.
    assert ratios([20, 10, 6], [10, 5, 3]) == [2, 2, 2]
    assert ratios([20, 10, 6], [10, 5]) == [2, 2], "the round that one side did not finish is left out"
    assert summarise([4.0, 1.0, 2.0]) == Summary(median=2.0, low=1.0, high=4.0, count=3)


def test_the_ratio_of_a_case():
    results = Results()
    results.measured = [
        Measurement("c", name, 1, "real tokens", [[Sample(cpu=2.0, wall=2.0, units=2.0 * rate)] for rate in rates], {})
        for name, rates in ((OURS, (30, 40, 50)), ("peer", (10, 10, 10)))
    ]
    assert results.ratio("c", OURS, "peer") == Summary(4.0, 3.0, 5.0, 3)
    assert results.ratio("c", OURS, "peer", threads=2) is None, "nothing was measured with two threads"
    results.measured[1].unit = "GFLOP"
    assert results.ratio("c", OURS, "peer") is None, "tokens and GFLOP have no ratio"


def test_flops_of_one_layer():
    config = ModelConfig(vocab_size=10, hidden_size=2, num_layers=1, num_heads=1, intermediate_size=8)
    # One sequence of 3 tokens: projections 8 * 4 * 3 = 96, inner layer 4 * 2 * 8 * 3 = 192, attention 4 * 2 * 9 = 72.
    encoder = 96 + 192 + 72
    heads = 1 * (2 * 4 + 2 * 2 * 10) + (2 * 4 + 4 * 2)  # one masked position; pooler and two logits
    assert pretraining_flops(config, [3], masked=1) == 3 * (encoder + heads) == 1272
    assert answering_flops(config, [3]) == 3 * (encoder + 4 * 2 * 3) == 1152


def test_bars_are_met_at_the_bar_and_not_below():
    higher = Target("ratio", 9.0, 12.0, lambda _: Summary(9.0, 8.0, 10.0, 3))
    state = evaluate_target(higher, Results())
    assert (state["met"], state["stretch_met"]) == (True, False)
    lower = Target("share", 1.0, None, lambda _: Summary(1.1, 1.0, 1.2, 3), "%", at_most=True)
    assert evaluate_target(lower, Results())["met"] is False
    assert evaluate_target(Target("nothing", 1.0, None, lambda _: None), Results())["met"] is None


CASES = {
    "pretrain-tiny": variants.PRETRAIN_TINY,
    "pretrain-base": variants.PRETRAIN_BASE,
    "squad-tiny": variants.SQUAD_TINY,
    "utilisation": variants.UTILISATION,
    "lamb-base": variants.LAMB,
    "predict-tiny": variants.PREDICT,
    "prepare-squad": variants.QUESTIONS,
    "start": variants.STARTS,
}


def test_every_bar_can_be_measured_and_none_is_met_by_nothing():
    """The names in the table of bars are those of cases and variants: with results for all of them none is None."""
    results = Results()
    assert all(bar.measure(results) is None for bar in TARGETS)
    rounds = [[Sample(1.0, 1.0, 100, {"flops": 1e9, "read_cpu": 0.5})]]
    results.measured = [
        Measurement(case, variant.name, threads, variant.unit or "x", rounds, {"peak_memory_mb": 7.0})
        for case, lines in CASES.items()
        for threads in (1, 2)
        for variant in lines
    ]
    measured = {bar.text: bar.measure(results) for bar in TARGETS}
    assert None not in measured.values(), measured
    # 1 GFLOP a second next to a matrix peak of 100, and half a second of reading in each second.
    for words, median in (("matrix peak", 1.0), ("reading rows", 50.0)):
        assert next(v for k, v in measured.items() if words in k).median == pytest.approx(median)
