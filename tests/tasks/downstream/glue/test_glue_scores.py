"""GLUE's metrics, their intervals, and the constant answer that a model has to beat."""

import numpy as np
import pytest

from tasks.downstream.glue.scores import best_constant, interval, metric_names, official, resampled_scores, scores_of
from tasks.downstream.glue.tasks import TASKS

LABELS = np.array([1, 1, 1, 0, 0, 1.0])
GUESSES = np.array([1, 0, 1, 0, 1, 1.0])


def test_metrics_are_those_worked_out_by_hand():
    """3 hits, 1 false alarm, 1 miss, 1 right no: accuracy 4/6, F1 6/8, Matthews (3*1 - 1*1) / sqrt(4*4*2*2)."""
    assert official("accuracy", LABELS, GUESSES) == pytest.approx(400 / 6)
    assert official("f1", LABELS, GUESSES) == pytest.approx(75)
    assert official("matthews_correlation", LABELS, GUESSES) == pytest.approx(25)
    assert official("pearson", np.arange(4.0), np.array([0, 1, 2, 9.0])) == pytest.approx(1400 / 250**0.5)
    assert official("spearman", np.arange(4.0), np.array([0, 1, 2, 9.0])) == pytest.approx(100)
    assert official("pearson", np.arange(4.0), np.zeros(4)) == 0.0


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_resample_of_examples_has_the_metrics_of_the_library(name):
    """Metrics from counts are those of scikit-learn on the very examples; the table names only metrics there are."""
    task, generator = TASKS[name], np.random.default_rng(1)
    if task.is_regression:
        truth = generator.random(60) * 5
        guesses = truth + generator.normal(size=60)
    else:
        truth = generator.integers(len(task.labels), size=60).astype(float)
        guesses = np.where(generator.random(60) < 0.7, truth, generator.integers(len(task.labels), size=60))
    labels = dict.fromkeys(task.splits[1:], truth)
    exact = scores_of(task, labels, dict.fromkeys(labels, guesses))
    [found] = resampled_scores(task, labels, [dict.fromkeys(labels, guesses)], resamples=1500)
    assert set(found) == set(exact)
    for metric, value in exact.items():
        assert found[metric].shape == (1500,)
        assert found[metric].mean() == pytest.approx(value, abs=3)
        bounds = interval(found[metric], value)
        assert bounds.low < value < bounds.high
    assert exact["score"] == pytest.approx(np.mean([v for n, v in exact.items() if n != "score"]))


def test_the_interval_of_an_accuracy_is_the_binomial_one():
    """Of 872 examples and 80% the standard error is 1.3546 points."""
    truth = np.zeros(872)
    guesses = (np.arange(872) >= 698).astype(float)
    [found] = resampled_scores(TASKS["sst2"], {"dev": truth}, [{"dev": guesses}])
    assert found["accuracy"].std() == pytest.approx(1.3546, rel=0.05)


def test_predictions_are_compared_on_the_same_resamples():
    """A model beside itself never differs, however the examples are drawn; beside its opposite it does."""
    generator = np.random.default_rng(2)
    truth = generator.integers(2, size=200).astype(float)
    guesses = np.where(generator.random(200) < 0.8, truth, 1 - truth)
    one, same, other = resampled_scores(
        TASKS["mrpc"], {"dev": truth}, [{"dev": guesses}, {"dev": guesses}, {"dev": 1 - guesses}]
    )
    assert np.array_equal(one["score"], same["score"])
    np.testing.assert_allclose(one["accuracy"] + other["accuracy"], 100)


def test_the_best_constant_is_the_majority_class_or_what_f1_likes_better():
    truth = np.array([0, 0, 0, 1, 1.0])
    assert best_constant(TASKS["sst2"], {"dev": truth})["dev"].tolist() == [0] * 5
    assert best_constant(TASKS["mrpc"], {"dev": truth})["dev"].tolist() == [1] * 5  # F1 57.1 and accuracy 40 beat 0, 60
    constant = best_constant(TASKS["stsb"], {"dev": truth})
    nothing = {"pearson": 0.0, "spearman": 0.0, "score": 0.0}
    assert scores_of(TASKS["stsb"], {"dev": truth}, constant) == nothing


def test_two_development_sets_have_names_of_their_own():
    assert metric_names(TASKS["mnli"], "dev_mismatched") == {"accuracy": "accuracy_mismatched"}
    assert metric_names(TASKS["sst2"], "dev") == {"accuracy": "accuracy"}
