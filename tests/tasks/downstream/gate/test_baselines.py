from tasks.downstream.gate.recipe import find_least_gain
from tasks.downstream.scoring.scores import Baseline
from tasks.downstream.scoring.significance import ConfidenceInterval


def test_every_baseline_must_be_beaten() -> None:
    gains = {"better": ConfidenceInterval(1.0, 0.5, 1.5), "worse but not surely": ConfidenceInterval(2.0, -0.1, 4.0)}
    baselines = [Baseline(name, {name: None}) for name in gains]
    least = find_least_gain(baselines, lambda outcomes: gains[next(iter(outcomes))])
    assert least == (gains["worse but not surely"], "worse but not surely")
    assert find_least_gain([], lambda outcomes: gains["better"]) == (None, "")
