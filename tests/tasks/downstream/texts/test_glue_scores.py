"""GLUE's metrics, their intervals, and the constant answer that a model has to beat."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from tasks.downstream.scoring.metrics import make_interval
from tasks.downstream.texts.metrics import metric
from tasks.downstream.texts.task_table import TASKS
from tests.tasks.downstream.entries import dev_set, task_with


def outcomes_of(truth, guesses):
    return np.stack([truth, guesses], axis=1).astype(float)


LABELS = np.array([1, 1, 1, 0, 0, 1.0])
GUESSES = np.array([1, 0, 1, 0, 1, 1.0])


def test_metrics_are_those_worked_out_by_hand():
    """3 hits, 1 false alarm, 1 miss, 1 right no: accuracy 4/6, F1 6/8, Matthews (3*1 - 1*1) / sqrt(4*4*2*2)."""
    for name, value in (("accuracy", 400 / 6), ("f1", 75), ("matthews_correlation", 25)):
        assert metric(name).whole(outcomes_of(LABELS, GUESSES)) == pytest.approx(value)
    values = outcomes_of(np.arange(4.0), np.array([0, 1, 2, 9.0]))
    assert metric("pearson").whole(values) == pytest.approx(1400 / 250**0.5)
    assert metric("spearman").whole(values) == pytest.approx(100)
    for constant in (0.0, 0.1, 1e9 / 3):
        assert metric("pearson").whole(outcomes_of(np.arange(7.0), np.full(7, constant))) == 0.0


LIBRARY = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews_correlation": matthews_corrcoef,
    "pearson": lambda truth, guesses: pearsonr(truth, guesses).statistic,
    "spearman": lambda truth, guesses: spearmanr(truth, guesses).statistic,
}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_resample_of_examples_has_the_metrics_of_the_library(name):
    """Metrics of weighted examples are those of scikit-learn and scipy on examples that come N times."""
    task, generator = task_with(f"glue-{name}", "scores"), np.random.default_rng(1)
    if task.task.is_regression:
        truth = generator.random(60) * 5
        guesses = truth + generator.normal(size=60)
    else:
        truth = generator.integers(len(task.task.labels), size=60).astype(float)
        guesses = np.where(generator.random(60) < 0.7, truth, generator.integers(len(task.task.labels), size=60))
    weights = generator.integers(0, 4, size=(3, 60))
    for name in task.task.metrics:
        again = [100 * LIBRARY[name](truth.repeat(row), guesses.repeat(row)) for row in weights]
        assert metric(name).weighted(outcomes_of(truth, guesses), weights.astype(float)) == pytest.approx(again)
    outcomes = dict.fromkeys(task.entry.development, outcomes_of(truth, guesses))
    exact = task.metrics.compute(outcomes)
    [found] = task.metrics.resample([outcomes])
    assert set(found) == set(exact)
    for part, value in exact.items():
        assert found[part].shape == (2000,)
        assert found[part].mean() == pytest.approx(value, abs=3)
        bounds = make_interval(found[part], value)
        assert bounds.low < value < bounds.high
    assert exact["score"] == pytest.approx(np.mean([v for n, v in exact.items() if n != "score"]))


def test_the_best_constant_is_the_majority_class_or_what_f1_likes_better():
    labels = np.array([0, 0, 0, 1, 1.0])
    tasks = {name: task_with(f"glue-{name}", "scores") for name in ("sst2", "mrpc", "stsb")}
    found = {name: task.baseline({"dev": dev_set(task, ["x"] * 5, labels)}) for name, task in tasks.items()}
    assert found["sst2"].outcomes["dev"][:, 1].tolist() == [0] * 5
    assert found["mrpc"].outcomes["dev"][:, 1].tolist() == [1] * 5  # F1 57.1 and accuracy 40 beat 0, 60
    nothing = {"pearson": 0.0, "spearman": 0.0, "score": 0.0}
    assert tasks["stsb"].metrics.compute(found["stsb"].outcomes) == nothing
