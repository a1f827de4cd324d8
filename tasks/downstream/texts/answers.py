"""Answers to texts: one class, several labels, or a value; decoded from logits and compared with the examples' labels.

Legend: N examples, C classes or labels that the model knows, L all of them, also those that only dev has.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring.metrics import Array, Metric
from tasks.downstream.scoring.thresholds import ChosenThreshold, choose_probability, score_both_classes
from tasks.downstream.texts.metrics import is_exact, is_right, label_metrics, metric, selective_metrics
from tasks.downstream.texts.params import ClassificationEvaluateParams
from tasks.downstream.texts.spec import make_flags
from tasks.downstream.texts.task_table import TextTask
from tasks.rows.row_files import from_arrow

TITLES = {"accuracy": "accuracy", "macro_f1": "macro F1", "pearson": "Pearson", "spearman": "Spearman"}
"""Names of the metrics for your own texts."""
NO_ANSWER = -1
"""Class number of an example without an answer."""


class AnswerForm(ABC):
    """Form of the answers of a task; predictions are plain values, as in predictions.json."""

    def __init__(self, task: TextTask, decision: ClassificationEvaluateParams) -> None:
        self.task, self.decision = task, decision
        self.thresholds: list[ChosenThreshold] = []
        """Threshold of the decision, or one per label; empty: there is none yet."""

    def read_labels(self, columns: Sequence[pa.Array], classes: int) -> Array:
        """Return the labels of the examples, [N] or [N, L]."""
        return np.concatenate([from_arrow(one).astype(np.float64) for one in columns])

    def probabilities(self, logits: Array) -> Array:
        """Return probabilities [N, C], or the values [N, 1]."""
        return logits

    def choose(self, shares: Array) -> np.ndarray:
        """Return what probabilities or values decide, whether it is given as an answer or not."""
        return shares

    @abstractmethod
    def decide(self, shares: Array) -> list[Any]:
        """Return the predictions that probabilities or values decide."""

    def confidences(self, logits: Array) -> Sequence[float] | None:
        """Return the probability of each prediction; None for values."""
        return None

    def margin(self, logits: Array, number: int) -> float | None:
        """Return the lead of a prediction over the next best; None for values."""
        return None

    def is_answer(self, value: Any, classes: int) -> bool:
        """Return True for a valid prediction."""
        low, high = self.task.answers
        return isinstance(value, int | float) and bool(np.isfinite(value) and low <= value <= high)

    def outcomes(self, labels: Array, predictions: Sequence[Any]) -> Array:
        """Return label and prediction of each example, [N, 2]; a missing prediction is always wrong."""
        answers = [float(NO_ANSWER) if one is None else float(one) for one in predictions]
        return np.stack([labels, np.array(answers, dtype=np.float64)], axis=1)

    def correctness(self, outcomes: Array) -> Array:
        return is_right(outcomes)

    def metrics(self, split: str, names: Mapping[str, str]) -> tuple[Metric, ...]:
        """Return the metrics of a development set.

        Args:
            names: metric -> its name in the metrics file.
        """
        titles = {} if self.task.name else TITLES
        return tuple(metric(one, title=titles.get(one, ""), called=name, split=split) for one, name in names.items())

    def constants(self, labels: Array, classes: int) -> list[Any]:
        """Return the constant predictions of which the best is the baseline."""
        return [0.0]

    def choose_thresholds(self, logits: Array, labels: Array) -> None:
        """Choose the thresholds on held-out examples."""
        raise NotImplementedError("values have no thresholds")


class ValueAnswers(AnswerForm):
    """Values, clipped to the range of the task."""

    def decide(self, shares: Array) -> list[Any]:
        return [round(x, 6) for x in np.clip(shares[:, 0], *self.task.answers).tolist()]


class ClassAnswers(AnswerForm):
    """Numbers of classes: the most probable one, or the second of two above a threshold, or none."""

    def probabilities(self, logits: Array) -> Array:
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        found: Array = odds / odds.sum(axis=1, keepdims=True)
        return found

    def choose(self, shares: Array) -> np.ndarray:
        """Return the number of a class for each example, [N]."""
        if self.thresholds:
            return (shares[:, 1] > self.thresholds[0].value).astype(np.int64)
        return shares.argmax(axis=1)

    def decide(self, shares: Array) -> list[Any]:
        chosen, least = self.choose(shares), self.decision.min_probability
        if least is not None:
            chosen = np.where(np.take_along_axis(shares, chosen[:, None], 1)[:, 0] < least, NO_ANSWER, chosen)
        found: list[int] = chosen.tolist()
        return found

    def confidences(self, logits: Array) -> Sequence[float]:
        """Return the probability of the chosen class, whether it is given or not."""
        shares = self.probabilities(logits)
        found: list[float] = np.take_along_axis(shares, self.choose(shares)[:, None], 1)[:, 0].tolist()
        return found

    def margin(self, logits: Array, number: int) -> float | None:
        second, first = np.sort(logits[number])[-2:]
        return round(float(first - second), 4)

    def is_answer(self, value: Any, classes: int) -> bool:
        rejected = value == NO_ANSWER and self.decision.min_probability is not None
        return rejected or (super().is_answer(value, classes) and value == int(value))

    def metrics(self, split: str, names: Mapping[str, str]) -> tuple[Metric, ...]:
        return super().metrics(split, names) + (
            selective_metrics() if self.decision.min_probability is not None else ()
        )

    def constants(self, labels: Array, classes: int) -> list[Any]:
        return list(range(classes))

    def choose_thresholds(self, logits: Array, labels: Array) -> None:
        self.thresholds = [choose_probability(self.probabilities(logits)[:, 1], labels == 1, score_both_classes)]


class LabelAnswers(AnswerForm):
    """Lists of the numbers of all labels whose probability is above their threshold."""

    def read_labels(self, columns: Sequence[pa.Array], classes: int) -> Array:
        return np.concatenate([make_flags(one, classes) for one in columns]).astype(np.float64)

    def probabilities(self, logits: Array) -> Array:
        found: Array = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
        return found

    def choose(self, shares: Array) -> np.ndarray:
        """Return True for each label that is predicted, [N, C]."""
        found: np.ndarray = shares > np.array([one.value for one in self.thresholds])
        return found

    def decide(self, shares: Array) -> list[Any]:
        return [np.flatnonzero(one).tolist() for one in self.choose(shares)]

    def confidences(self, logits: Array) -> Sequence[float]:
        """Return the probability that all labels are right, as if they were independent."""
        shares = self.probabilities(logits)
        found: list[float] = np.where(self.choose(shares), shares, 1 - shares).prod(axis=1).tolist()
        return found

    def margin(self, logits: Array, number: int) -> float | None:
        """Return the least distance of a logit from its threshold."""
        limits = np.clip([one.value for one in self.thresholds], 1e-12, 1 - 1e-12)
        return round(float(np.abs(logits[number] - np.log(limits / (1 - limits))).min()), 4)

    def is_answer(self, value: Any, classes: int) -> bool:
        numbers = isinstance(value, list) and all(type(one) is int and 0 <= one < classes for one in value)
        return numbers and len(set(value)) == len(value)

    def outcomes(self, labels: Array, predictions: Sequence[Any]) -> Array:
        """Return 1 or 0 for each true and each predicted label, [N, 2 * L]."""
        answers = pa.array([one or [] for one in predictions], pa.list_(pa.int32()))
        found = make_flags(answers, labels.shape[1]).astype(np.float64)
        missing = [number for number, one in enumerate(predictions) if one is None]
        found[missing] = 1 - labels[missing]
        return np.concatenate([labels, found], axis=1)

    def correctness(self, outcomes: Array) -> Array:
        return is_exact(outcomes)

    def metrics(self, split: str, names: Mapping[str, str]) -> tuple[Metric, ...]:
        return label_metrics()

    def constants(self, labels: Array, classes: int) -> list[Any]:
        """Return the most frequent labels, as many as give the best micro F1."""
        counts = labels[:, :classes].sum(axis=0)
        order, sizes = np.argsort(-counts, kind="stable"), np.arange(1, classes + 1)
        scores = 2 * np.cumsum(counts[order]) / (labels.sum() + sizes * len(labels))
        return [sorted(order[: int(scores.argmax()) + 1].tolist())]

    def choose_thresholds(self, logits: Array, labels: Array) -> None:
        shares, (count, classes) = self.probabilities(logits), logits.shape
        truth = labels[:, :classes]
        if self.decision.threshold == "per_label":
            self.thresholds = [choose_probability(*one) for one in zip(shares.T, truth.T, strict=True)]
        else:
            owners = np.repeat(np.arange(count), classes)
            self.thresholds = [choose_probability(shares.reshape(-1), truth.reshape(-1), owners=owners)]


def make_form(task: TextTask, decision: ClassificationEvaluateParams) -> AnswerForm:
    """Return the form of the answers of a task."""
    if task.is_regression:
        return ValueAnswers(task, decision)
    return LabelAnswers(task, decision) if task.is_multilabel else ClassAnswers(task, decision)
